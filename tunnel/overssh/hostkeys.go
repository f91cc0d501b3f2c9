// Host keys: which key each node's sshd must show.

package overssh

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/hawser-project/hawser/tunnel"
)

// maxKeyFile bounds a file of host keys.
const maxKeyFile = 16 << 20

// A HostKey is a public key by which an sshd proves who it is.
type HostKey struct {
	key       ssh.PublicKey
	authority bool // it signs host certificates, and is not shown itself
}

// ParseHostKey reads a key as ssh writes it: a line of a .pub file.
func ParseHostKey(line string) (HostKey, error) {
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	switch {
	case err != nil:
		return HostKey{}, fmt.Errorf("host key: %w", err)
	case len(bytes.TrimSpace(rest)) > 0:
		return HostKey{}, errors.New("host key: more than one line")
	}
	return HostKey{key: key}, nil
}

// Fingerprint is the key's, as ssh-keygen -l shows it: SHA256:….
func (k HostKey) Fingerprint() string { return ssh.FingerprintSHA256(k.key) }

// Type is the key's algorithm, such as ssh-ed25519.
func (k HostKey) Type() string { return k.key.Type() }

// String is the key as a line of a .pub file has it, without a comment.
func (k HostKey) String() string {
	return strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(k.key)), "\n")
}

// words name the key to a person.
func (k HostKey) words() string {
	if k.authority {
		return "authority " + k.Type() + " " + k.Fingerprint()
	}
	return k.Type() + " " + k.Fingerprint()
}

func (k HostKey) equal(o HostKey) bool {
	return k.authority == o.authority && bytes.Equal(k.key.Marshal(), o.key.Marshal())
}

// A HostKeyError is an sshd that did not show a pinned key, or one that is not
// dialed because none is pinned. It is a tunnel.Denied.
type HostKeyError struct {
	Node string
	Addr string
	// File is where keys are pinned.
	File string
	// Shown is what the sshd showed; zero if it was not asked. Of a certificate it
	// is the key that the certificate is for.
	Shown HostKey
	// Pinned is what it should have; empty if nothing is pinned.
	Pinned []HostKey
	// Cause is a *knownhosts.RevokedError, or why a certificate does not count;
	// nil if the key is only another one.
	Cause error
}

// Error names the fingerprints and the remedy.
func (e *HostKeyError) Error() string {
	var revoked *knownhosts.RevokedError
	if errors.As(e.Cause, &revoked) {
		return fmt.Sprintf("ssh host key of node %s is revoked: %s shows %s, which %s revokes in line %d; give the node a new host key and pin that with hawser ssh pin %s", e.Node, e.Addr, e.Shown.words(), e.File, revoked.Revoked.Line, e.Node)
	}
	if len(e.Pinned) == 0 {
		shows := "is not dialed"
		if e.Shown.key != nil {
			shows = "shows " + e.Shown.words()
		}
		return fmt.Sprintf("no ssh host key is pinned for node %s in %s, and its sshd at %s %s: compare the key and pin it with hawser ssh pin %s", e.Node, e.File, e.Addr, shows, e.Node)
	}
	pinned := make([]string, len(e.Pinned))
	for i, k := range e.Pinned {
		pinned[i] = k.words()
	}
	shows := e.Shown.words()
	if e.Cause != nil {
		shows += " (" + e.Cause.Error() + ")"
	}
	return fmt.Sprintf("ssh host key of node %s has changed: %s shows %s, pinned in %s is %s; if the node was reinstalled, compare the key and pin the new one with hawser ssh pin %s, else somebody is in between", e.Node, e.Addr, shows, e.File, strings.Join(pinned, ", "), e.Node)
}

// Unwrap makes it a tunnel.Denied.
func (e *HostKeyError) Unwrap() []error {
	if e.Cause == nil {
		return []error{tunnel.Denied}
	}
	return []error{tunnel.Denied, e.Cause}
}

// HostKeys are the pinned keys of nodes, in a file. Nothing gets in but by Pin or by
// the file: a key that is seen for the first time is not trusted. Its methods may be
// called at the same time.
//
// The file is ssh's known_hosts and means what it means to ssh -o HostKeyAlias=NODE:
// hashed names, patterns, certificate authorities and revoked keys count. One thing
// is stricter: a key that is revoked for one host is revoked for all.
//
// Another process may write the file: it is looked at each time somebody asks.
// While it cannot be read, no key counts.
type HostKeys struct {
	path string

	mu   sync.Mutex  // guards the following, and writing to path
	file keyFile     // what it said when it was read
	read fs.FileInfo // of the file then; nil if it never was
	bad  error       // why what it said does not count
}

// OpenHostKeys reads path, and keeps to it what Pin and Unpin change. A file that
// does not exist is empty.
func OpenHostKeys(path string) (*HostKeys, error) {
	h := &HostKeys{path: path}
	if _, err := h.current(); err != nil {
		return nil, err
	}
	return h, nil
}

// current is what the file says.
func (h *HostKeys) current() (keyFile, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.currentLocked()
}

// currentLocked reads the file if it is not the one that was read last.
func (h *HostKeys) currentLocked() (keyFile, error) {
	info, err := os.Stat(h.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return keyFile{}, nil
	case err != nil:
		return keyFile{}, fmt.Errorf("read host keys: %w", err)
	case h.read == nil || !os.SameFile(info, h.read) || !info.ModTime().Equal(h.read.ModTime()) || info.Size() != h.read.Size():
		h.file, h.bad = readKeyFile(h.path, info.Size())
		h.read = info
	}
	return h.file, h.bad
}

// Pin makes keys the only ones that node may show, and keeps that in the file. It is
// for an administrator who has compared fingerprints. Of two processes that do so at
// the same time one may undo the other's; the caller sees to it that there is one.
func (h *HostKeys) Pin(node string, keys ...HostKey) error {
	if node == "" || strings.ContainsAny(node, "*?!|,#@:[] \t\r\n\"\v\f") {
		return fmt.Errorf("pin host key: %q is not the name of a node", node)
	}
	if len(keys) == 0 || slices.ContainsFunc(keys, func(k HostKey) bool { return k.key == nil }) {
		return fmt.Errorf("pin host key of %s: no key given", node)
	}
	return h.change(node, keys)
}

// Unpin forgets node's keys. It can be dialed no more.
func (h *HostKeys) Unpin(node string) error { return h.change(node, nil) }

// change replaces what the file says of node alone. All else in it stays as it is.
func (h *HostKeys) change(node string, keys []HostKey) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, err := h.currentLocked()
	if err != nil {
		return err
	}
	text, err := f.without(node)
	if err != nil {
		return fmt.Errorf("host keys %s: %w", h.path, err)
	}
	for i, k := range keys {
		if slices.ContainsFunc(keys[:i], k.equal) {
			continue
		}
		if err := f.revoked(k.key); err != nil {
			return &HostKeyError{Node: node, Addr: node, File: h.path, Shown: k, Cause: err}
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += knownhosts.Line([]string{node}, k.key) + "\n"
	}
	if len(text) > maxKeyFile {
		return fmt.Errorf("keep host keys: %s would be longer than %d bytes", h.path, maxKeyFile)
	}
	if err := writeFile(h.path, []byte(text)); err != nil {
		return fmt.Errorf("keep host keys: %w", err)
	}
	h.read = nil // so that the next look reads what was written
	return nil
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

// Pinned are the keys by which node may prove itself, and the authorities. It fails
// if the file cannot be read.
func (h *HostKeys) Pinned(node string) ([]HostKey, error) {
	f, err := h.current()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	return f.pinned(node), nil
}

// A Pin is an entry of the file.
type Pin struct {
	// Name is the node's name, or a pattern, or hashed; a marker stands before it.
	Name string
	Key  HostKey
}

// List is all that the file says, in the order of names.
func (h *HostKeys) List() ([]Pin, error) {
	f, err := h.current()
	if err != nil {
		return nil, err
	}
	var pins []Pin
	for i, line := range f.lines {
		marker, names, rest := splitLine(line)
		if names == "" {
			continue
		}
		key, err := ParseHostKey(rest)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		key.authority = marker == authorityMarker
		for name := range strings.SplitSeq(names, ",") {
			pins = append(pins, Pin{strings.TrimSpace(marker + " " + name), key})
		}
	}
	slices.SortStableFunc(pins, func(a, b Pin) int { return cmp.Compare(a.Name, b.Name) })
	return pins, nil
}

// known is nil if a key is pinned for node, whose sshd is at addr.
func (h *HostKeys) known(node, addr string) error {
	pinned, err := h.Pinned(node)
	if err == nil && len(pinned) == 0 {
		err = &HostKeyError{Node: node, Addr: addr, File: h.path}
	}
	return err
}

// check is nil if node may show key.
func (h *HostKeys) check(node, addr string, key ssh.PublicKey) error {
	f, err := h.current()
	if err != nil {
		return fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	err = f.check(node, key)
	if err == nil {
		return nil
	}
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	e := &HostKeyError{Node: node, Addr: addr, File: h.path, Shown: HostKey{key: key}, Pinned: f.pinned(node)}
	if _, other := err.(*knownhosts.KeyError); !other { //nolint:errorlint // it is never wrapped
		e.Cause = err
	}
	return e
}

// algorithms are those to ask node's sshd for.
func (h *HostKeys) algorithms(node string) []string {
	pinned, _ := h.Pinned(node) // if that fails, so will the check of what is shown
	return algorithmsFor(pinned)
}

// algorithmsFor are those to ask an sshd for: certificates if there is an authority,
// then those of pinned keys, so that an sshd which has several keys shows one of
// them, and then all others, so that one which has none of them can be told from one
// that cannot be talked to.
func algorithmsFor(pinned []HostKey) []string {
	rank := func(algorithm string) int {
		switch {
		case strings.Contains(algorithm, "-cert-"):
			return 0
		case slices.ContainsFunc(pinned, func(k HostKey) bool { return !k.authority && k.Type() == keyType(algorithm) }):
			return 1
		}
		return 2
	}
	algorithms := ssh.SupportedAlgorithms().HostKeys
	if !slices.ContainsFunc(pinned, func(k HostKey) bool { return k.authority }) {
		algorithms = slices.DeleteFunc(algorithms, func(a string) bool { return rank(a) == 0 })
	}
	slices.SortStableFunc(algorithms, func(a, b string) int { return rank(a) - rank(b) })
	return algorithms
}

// keyType is the type of the keys that sign by algorithm.
func keyType(algorithm string) string {
	if algorithm == ssh.KeyAlgoRSASHA256 || algorithm == ssh.KeyAlgoRSASHA512 {
		return ssh.KeyAlgoRSA
	}
	return algorithm
}
