// Host keys: which key each node's sshd must show.

package overssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

// Bounds of a file of host keys.
const (
	maxKeyFile = 16 << 20
	maxPerNode = 16
)

// A HostKey is a public key by which an sshd proves who it is.
type HostKey struct{ key ssh.PublicKey }

// ParseHostKey reads a key as ssh writes it: a line of a .pub file.
func ParseHostKey(line string) (HostKey, error) {
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	switch {
	case err != nil:
		return HostKey{}, fmt.Errorf("host key: %w", err)
	case len(bytes.TrimSpace(rest)) > 0:
		return HostKey{}, errors.New("host key: more than one line")
	}
	return HostKey{key}, nil
}

// Fingerprint is the key's, as ssh-keygen -l shows it: SHA256:….
func (k HostKey) Fingerprint() string { return ssh.FingerprintSHA256(k.key) }

// Type is the key's algorithm, such as ssh-ed25519.
func (k HostKey) Type() string { return k.key.Type() }

// String is the key as a line of a .pub file has it, without a comment.
func (k HostKey) String() string {
	return strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(k.key)), "\n")
}

func (k HostKey) equal(o HostKey) bool { return bytes.Equal(k.key.Marshal(), o.key.Marshal()) }

// A HostKeyError is an sshd that did not show a pinned key. It is a
// tunnel.Denied.
type HostKeyError struct {
	Node string
	Addr string
	// Shown is what the sshd showed.
	Shown HostKey
	// Pinned is what it should have; empty if nothing is pinned.
	Pinned []HostKey
}

// Error names the fingerprints and the remedy.
func (e *HostKeyError) Error() string {
	shown := e.Shown.Type() + " " + e.Shown.Fingerprint()
	if len(e.Pinned) == 0 {
		return fmt.Sprintf("no host key is pinned for node %s: %s shows %s; compare that on the node with ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub and pin the key", e.Node, e.Addr, shown)
	}
	pinned := make([]string, len(e.Pinned))
	for i, k := range e.Pinned {
		pinned[i] = k.Type() + " " + k.Fingerprint()
	}
	return fmt.Sprintf("host key of node %s has changed: %s shows %s, pinned is %s; if the node was reinstalled, compare the key on it and pin the new one, else somebody is in between", e.Node, e.Addr, shown, strings.Join(pinned, ", "))
}

// Unwrap makes it a tunnel.Denied.
func (e *HostKeyError) Unwrap() error { return tunnel.Denied }

// HostKeys are the pinned keys of nodes. Nothing gets in but by Pin or by the
// file: a key that is seen for the first time is not trusted. The zero value is
// empty and lives in memory. Its methods may be called at the same time.
type HostKeys struct {
	path string // where they are kept; empty means in memory only

	mu   sync.Mutex // guards the following, and writing to path
	keys map[string][]HostKey
}

// OpenHostKeys reads path, which has the form of ssh's known_hosts with names of
// nodes for hosts, and keeps to it what Pin and Unpin change. Patterns, hashed
// names and markers are refused. A file that does not exist is empty.
func OpenHostKeys(path string) (*HostKeys, error) {
	h := &HostKeys{path: path}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return h, nil
	case err != nil:
		return nil, fmt.Errorf("read host keys: %w", err)
	case info.Size() > maxKeyFile:
		return nil, fmt.Errorf("host keys %s: longer than %d bytes", path, maxKeyFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read host keys: %w", err)
	}
	if h.keys, err = parseHostKeys(b); err != nil {
		return nil, fmt.Errorf("host keys %s: %w", path, err)
	}
	return h, nil
}

// parseHostKeys reads a file of host keys, line by line so that an error can name
// its line.
func parseHostKeys(b []byte) (map[string][]HostKey, error) {
	keys := make(map[string][]HostKey)
	for i, line := range bytes.Split(b, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		marker, names, key, _, _, err := ssh.ParseKnownHosts(line)
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		case marker != "":
			return nil, fmt.Errorf("line %d: marker @%s is not supported", i+1, marker)
		}
		for _, name := range names {
			if err := checkName(name); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			if err := add(keys, name, HostKey{key}); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
	}
	return keys, nil
}

// checkName says why name cannot stand in a file of host keys; nil if it can.
func checkName(name string) error {
	if name == "" || strings.ContainsAny(name, "*?!|,#@ \t\r\n\"\v\f") {
		return fmt.Errorf("%q is not the name of a node", name)
	}
	return nil
}

// add puts a key beside those that name has.
func add(keys map[string][]HostKey, name string, key HostKey) error {
	if slices.ContainsFunc(keys[name], key.equal) {
		return nil
	}
	if len(keys[name]) == maxPerNode {
		return fmt.Errorf("more than %d host keys for %s", maxPerNode, name)
	}
	keys[name] = append(keys[name], key)
	return nil
}

// Pin makes keys the only ones that node may show, and keeps that in the file
// before it counts. It is for an administrator who has compared fingerprints.
func (h *HostKeys) Pin(node string, keys ...HostKey) error {
	if err := checkName(node); err != nil {
		return fmt.Errorf("pin host key: %w", err)
	}
	if len(keys) == 0 {
		return fmt.Errorf("pin host key of %s: no key given", node)
	}
	pinned := make(map[string][]HostKey)
	for _, k := range keys {
		if k.key == nil {
			return fmt.Errorf("pin host key of %s: empty key", node)
		}
		if err := add(pinned, node, k); err != nil {
			return fmt.Errorf("pin host key: %w", err)
		}
	}
	return h.change(node, pinned[node])
}

// Unpin forgets node's keys. It can be dialed no more.
func (h *HostKeys) Unpin(node string) error { return h.change(node, nil) }

func (h *HostKeys) change(node string, pinned []HostKey) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := make(map[string][]HostKey, len(h.keys)+1)
	for name, k := range h.keys {
		keys[name] = k
	}
	if delete(keys, node); len(pinned) > 0 {
		keys[node] = pinned
	}
	if h.path != "" {
		if err := writeFile(h.path, formatHostKeys(keys)); err != nil {
			return fmt.Errorf("keep host keys: %w", err)
		}
	}
	h.keys = keys
	return nil
}

// formatHostKeys is the inverse of parseHostKeys.
func formatHostKeys(keys map[string][]HostKey) []byte {
	var lines []string
	for name, ks := range keys {
		for _, k := range ks {
			lines = append(lines, name+" "+k.String()+"\n")
		}
	}
	slices.Sort(lines)
	return []byte(strings.Join(lines, ""))
}

// writeFile puts b into path, all of it or nothing.
func writeFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".hostkeys-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the news
	}
	return err
}

// Pinned are node's keys.
func (h *HostKeys) Pinned(node string) []HostKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.keys[node])
}

// check is nil if node may show key.
func (h *HostKeys) check(node, addr string, key ssh.PublicKey) error {
	pinned, shown := h.Pinned(node), HostKey{key}
	if slices.ContainsFunc(pinned, shown.equal) {
		return nil
	}
	return &HostKeyError{Node: node, Addr: addr, Shown: shown, Pinned: pinned}
}

// algorithms are those to ask node's sshd for: first those of pinned keys, so
// that an sshd which has several keys shows one of them, and then all others, so
// that one which has none of them can be told from one that cannot be talked to.
func (h *HostKeys) algorithms(node string) []string {
	var first, rest []string
	var types []string
	for _, k := range h.Pinned(node) {
		types = append(types, k.Type())
	}
	for _, a := range ssh.SupportedAlgorithms().HostKeys {
		keyType := a
		if a == ssh.KeyAlgoRSASHA256 || a == ssh.KeyAlgoRSASHA512 {
			keyType = ssh.KeyAlgoRSA
		}
		switch {
		case strings.Contains(a, "-cert-"): // no authority is pinned
		case slices.Contains(types, keyType):
			first = append(first, a)
		default:
			rest = append(rest, a)
		}
	}
	return append(first, rest...)
}

// errSeen ends a handshake that was begun only to see the host key.
var errSeen = errors.New("host key seen")

// ShownBy asks the sshd at addr, HOST or HOST:PORT, which key it shows, and trusts
// it with nothing. It is what an administrator compares before Pin. A nil dial
// means a net.Dialer.
func ShownBy(ctx context.Context, addr string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (HostKey, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(addr, DefaultPort)
	}
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultConnectTimeout)
	defer cancel()
	c, err := dial(ctx, "tcp", addr)
	if err != nil {
		return HostKey{}, fmt.Errorf("ask %s for its host key: %w", addr, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	var shown HostKey
	_, _, _, err = ssh.NewClientConn(c, addr, &ssh.ClientConfig{
		HostKeyAlgorithms: new(HostKeys).algorithms(""),
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			shown = HostKey{key}
			return errSeen
		},
	})
	if !errors.Is(err, errSeen) {
		return HostKey{}, fmt.Errorf("ask %s for its host key: %w", addr, err)
	}
	return shown, nil
}
