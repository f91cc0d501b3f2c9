// Package oversshtest has what the tests of sessions over SSH share: keys of nodes in memory.
//
// What it is not: a place for the server's own host keys, which auth/hostkeys keeps in a file.
package oversshtest

import (
	"bytes"
	"errors"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Why Pins refuse a node.
var (
	ErrUnpinned = errors.New("no key is pinned")
	ErrOther    = errors.New("another key is pinned")
)

// Pins are the keys that nodes may show. They are an overssh.HostKeys, for any goroutine.
type Pins struct {
	mu   sync.Mutex
	keys map[string]ssh.PublicKey // guarded by mu
}

// Pinned is where node-1 has key, or nobody has one if that is nil.
func Pinned(key ssh.PublicKey) *Pins {
	p := &Pins{keys: make(map[string]ssh.PublicKey)}
	if key != nil {
		p.Pin("node-1", key)
	}
	return p
}

// Pin has a node show key, in place of what it had.
func (p *Pins) Pin(node string, key ssh.PublicKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[node] = key
}

// Algorithms implements overssh.HostKeys.
func (p *Pins) Algorithms(node, _ string) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys[node] == nil {
		return nil, ErrUnpinned
	}
	return []string{p.keys[node].Type()}, nil
}

// Check implements overssh.HostKeys.
func (p *Pins) Check(node, _ string, key ssh.PublicKey) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !bytes.Equal(key.Marshal(), p.keys[node].Marshal()) {
		return ErrOther
	}
	return nil
}
