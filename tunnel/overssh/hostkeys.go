// Host keys: which key each node's sshd must show.

package overssh

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

// words name the key to a person.
func (k HostKey) words() string { return k.Type() + " " + k.Fingerprint() }

func (k HostKey) equal(o HostKey) bool { return bytes.Equal(k.key.Marshal(), o.key.Marshal()) }

// A HostKeyError is an sshd that did not show a pinned key, or one that is not
// dialed because none is pinned. It is a tunnel.Denied.
type HostKeyError struct {
	Node string
	Addr string
	// File is where keys are pinned; empty means in memory.
	File string
	// Shown is what the sshd showed; zero if it was not asked.
	Shown HostKey
	// Pinned is what it should have; empty if nothing is pinned.
	Pinned []HostKey
}

// Error names the fingerprints and the remedy.
func (e *HostKeyError) Error() string {
	file := ""
	if e.File != "" {
		file = " in " + e.File
	}
	if len(e.Pinned) == 0 {
		shows := "is not dialed"
		if e.Shown.key != nil {
			shows = "shows " + e.Shown.words()
		}
		return fmt.Sprintf("no ssh host key is pinned for node %s%s, and its sshd at %s %s: compare the key and pin it with hawser ssh pin %s", e.Node, file, e.Addr, shows, e.Node)
	}
	pinned := make([]string, len(e.Pinned))
	for i, k := range e.Pinned {
		pinned[i] = k.words()
	}
	return fmt.Sprintf("ssh host key of node %s has changed: %s shows %s, pinned%s is %s; if the node was reinstalled, compare the key and pin the new one with hawser ssh pin %s, else somebody is in between", e.Node, e.Addr, e.Shown.words(), file, strings.Join(pinned, ", "), e.Node)
}

// Unwrap makes it a tunnel.Denied.
func (e *HostKeyError) Unwrap() error { return tunnel.Denied }

// HostKeys are the pinned keys of nodes. Nothing gets in but by Pin or by the
// file: a key that is seen for the first time is not trusted. The zero value is
// empty and lives in memory. Its methods may be called at the same time.
//
// Another process may write the file: it is looked at each time somebody asks.
// While it cannot be read, no key counts.
type HostKeys struct {
	path string // where they are kept; empty means in memory only

	mu   sync.Mutex // guards the following, and writing to path
	keys map[string][]HostKey
	read fs.FileInfo // of the file when it was read; nil if there was none
	bad  error       // why what it says does not count
}

// OpenHostKeys reads path, which has the form of ssh's known_hosts with names of
// nodes for hosts, and keeps to it what Pin and Unpin change. Patterns, hashed
// names and markers are refused. A file that does not exist is empty.
func OpenHostKeys(path string) (*HostKeys, error) {
	h := &HostKeys{path: path}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refreshLocked(); err != nil {
		return nil, err
	}
	return h, nil
}

// refreshLocked reads the file if it is not the one that was read last.
func (h *HostKeys) refreshLocked() error {
	if h.path == "" {
		return nil
	}
	info, err := os.Stat(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		h.keys, h.read, h.bad = nil, nil, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("read host keys: %w", err)
	}
	if h.read != nil && os.SameFile(info, h.read) && info.ModTime().Equal(h.read.ModTime()) && info.Size() == h.read.Size() {
		return h.bad
	}
	h.keys, h.bad = readHostKeys(h.path, info.Size())
	h.read = info
	return h.bad
}

// readHostKeys reads a file of size.
func readHostKeys(path string, size int64) (map[string][]HostKey, error) {
	if size > maxKeyFile {
		return nil, fmt.Errorf("host keys %s: longer than %d bytes", path, maxKeyFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read host keys: %w", err)
	}
	keys, err := parseHostKeys(b)
	if err != nil {
		return nil, fmt.Errorf("host keys %s: %w", path, err)
	}
	return keys, nil
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
// before it counts. It is for an administrator who has compared fingerprints. Of
// two processes that do so at the same time one may undo the other's; the caller
// sees to it that there is one.
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
	if err := h.refreshLocked(); err != nil {
		return err
	}
	keys := make(map[string][]HostKey, len(h.keys)+1)
	maps.Copy(keys, h.keys)
	if delete(keys, node); len(pinned) > 0 {
		keys[node] = pinned
	}
	if h.path != "" {
		if err := writeFile(h.path, formatHostKeys(keys)); err != nil {
			return fmt.Errorf("keep host keys: %w", err)
		}
		h.read = nil // so that the next look reads what was written
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

// Pinned are node's keys. It fails if the file cannot be read.
func (h *HostKeys) Pinned(node string) ([]HostKey, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refreshLocked(); err != nil {
		return nil, fmt.Errorf("%w: %w", tunnel.Denied, err)
	}
	return slices.Clone(h.keys[node]), nil
}

// Nodes are the names that have a key pinned, in order.
func (h *HostKeys) Nodes() ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refreshLocked(); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(h.keys)), nil
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
	pinned, err := h.Pinned(node)
	if err != nil {
		return err
	}
	shown := HostKey{key}
	if slices.ContainsFunc(pinned, shown.equal) {
		return nil
	}
	return &HostKeyError{Node: node, Addr: addr, File: h.path, Shown: shown, Pinned: pinned}
}

// algorithms are those to ask node's sshd for: first those of pinned keys, so
// that an sshd which has several keys shows one of them, and then all others, so
// that one which has none of them can be told from one that cannot be talked to.
func (h *HostKeys) algorithms(node string) []string {
	var first, rest []string
	var types []string
	pinned, _ := h.Pinned(node) // if that fails, so will the check of what is shown
	for _, k := range pinned {
		types = append(types, k.Type())
	}
	for _, a := range ssh.SupportedAlgorithms().HostKeys {
		switch {
		case strings.Contains(a, "-cert-"): // no authority is pinned
		case slices.Contains(types, keyType(a)):
			first = append(first, a)
		default:
			rest = append(rest, a)
		}
	}
	return append(first, rest...)
}

// keyType is the type of the keys that sign by algorithm.
func keyType(algorithm string) string {
	if algorithm == ssh.KeyAlgoRSASHA256 || algorithm == ssh.KeyAlgoRSASHA512 {
		return ssh.KeyAlgoRSA
	}
	return algorithm
}
