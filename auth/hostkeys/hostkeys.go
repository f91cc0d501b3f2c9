// Package hostkeys keeps the SSH host keys of nodes.
//
// The mental model: keys are pinned in a known_hosts file of OpenSSH, with the meaning
// that it has for ssh -o HostKeyAlias=NODE: hashed names, patterns, certificate
// authorities and revoked keys count. Keys are added by Pin or by writing the file; there
// is no trust on first use. The library golang.org/x/crypto/ssh/knownhosts reads the
// file. Two rules are stricter than OpenSSH's: a key that is revoked for one host is
// revoked for all, and a certificate is valid by its authority alone, even if its key is
// pinned too. As for OpenSSH, a line that cannot be read counts for nothing; but if it begins
// with @revoked no key is valid, because what it revokes is unknown.
package hostkeys

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"al.essio.dev/pkg/shellescape"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

// A Key is the public key of an sshd.
type Key struct{ ssh.PublicKey }

// Fingerprint is the key's, as ssh-keygen -l shows it: SHA256:….
func (k Key) Fingerprint() string { return ssh.FingerprintSHA256(k.PublicKey) }

// String is the key's type and fingerprint.
func (k Key) String() string { return k.Type() + " " + k.Fingerprint() }

// A File is a known_hosts file. Its methods may be called at the same time. Another
// process may write the file: it is checked at each call. While it cannot be read, no key
// is valid.
type File struct {
	path string
	log  *slog.Logger

	mu   sync.Mutex  // guards the following, and writing to path
	said content     // the content when it was last read
	bad  error       // why the content is not valid
	read fs.FileInfo // of the file then; nil if it never was
}

// Open reads the file at path. One that does not exist is empty. Each line that cannot be read is
// logged once with its number; a nil log discards that. Open fails if the file cannot be read, or
// such a line begins with @revoked.
func Open(path string, log *slog.Logger) (*File, error) {
	f := &File{path: path, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
	_, err := f.current()
	return f, err
}

// current is the present content of the file.
func (f *File) current() (content, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.currentLocked()
}

// currentLocked reads the file if it has changed since it was last read.
func (f *File) currentLocked() (content, error) {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return content{}, nil
	case err != nil:
		return content{}, fmt.Errorf("read host keys: %w", err)
	case f.read == nil || !os.SameFile(info, f.read) || !info.ModTime().Equal(f.read.ModTime()) || info.Size() != f.read.Size():
		before := f.said
		f.said, f.bad = load(f.path)
		f.read = info
		if system(f.bad) {
			f.read = nil // the next call may succeed
		}
		f.tell(before)
	}
	return f.said, f.bad
}

// tell logs the lines that cannot be read, but for those that could not be read before either.
func (f *File) tell(before content) {
	for _, s := range f.said.skipped {
		if !slices.ContainsFunc(before.skipped, func(b skippedLine) bool { return b.text == s.text }) {
			f.log.Warn("line of the ssh host keys is skipped: it cannot be read; correct or remove it", "file", f.path, "line", s.line, "err", s.err)
		}
	}
}

// Algorithms are the host key algorithms for the sshd of node at addr, best first: those
// of certificates if there is an authority, then those of the pinned keys, so that an sshd
// with several keys uses one of them, and then all others, so that a wrong key is reported
// as such and not as a failed negotiation. It fails if no key is pinned.
func (f *File) Algorithms(node, addr string) ([]string, error) {
	c, err := f.current()
	if err != nil {
		return nil, err
	}
	about := c.about(node)
	if len(about) == 0 {
		return nil, f.unknown(node, addr, "is not dialed")
	}
	certified := false
	rank := func(algorithm string) int {
		if slices.ContainsFunc(about, func(e entry) bool { return e.marker == "" && e.key.Type() == keyType(algorithm) }) {
			return 0
		}
		return 1
	}
	for _, e := range about {
		certified = certified || e.marker != ""
	}
	plain, certificates := algorithms()
	slices.SortStableFunc(plain, func(a, b string) int { return rank(a) - rank(b) })
	if !certified {
		return plain, nil
	}
	return append(certificates, plain...), nil
}

// unknown is the error if no key is pinned for node. does is what its sshd at addr does.
func (f *File) unknown(node, addr, does string) error {
	return fmt.Errorf("no ssh host key is pinned for node %s in %s, and its sshd at %s %s: compare the key and pin it with %s", node, f.path, addr, does, f.pin(node, addr))
}

// pin is the command that pins the key of node, whose sshd is at addr.
func (f *File) pin(node, addr string) string {
	return fmt.Sprintf("hawser ssh pin %s --address %s --ssh-known-hosts %s", node, shellescape.Quote(addr), shellescape.Quote(f.path))
}

// algorithms are those of host keys and of host certificates, in the library's order.
func algorithms() (plain, certificates []string) {
	for _, a := range ssh.SupportedAlgorithms().HostKeys {
		if strings.Contains(a, "-cert-") {
			certificates = append(certificates, a)
		} else {
			plain = append(plain, a)
		}
	}
	return plain, certificates
}

// keyType is the type of the keys that sign by algorithm.
func keyType(algorithm string) string {
	if algorithm == ssh.KeyAlgoRSASHA256 || algorithm == ssh.KeyAlgoRSASHA512 {
		return ssh.KeyAlgoRSA
	}
	return algorithm
}

// Check is nil if key is valid for the sshd of node at addr. The error has fingerprints
// and the remedy.
func (f *File) Check(node, addr string, key ssh.PublicKey) error {
	c, err := f.current()
	if err != nil {
		return err
	}
	if err = c.verify(node, key); err == nil {
		return nil
	}
	var pinned []string
	for _, e := range c.about(node) {
		pinned = append(pinned, strings.TrimSpace(e.marker+" "+Key{e.key}.String()))
	}
	shows := Key{key}.String()
	var revoked *knownhosts.RevokedError
	var other *knownhosts.KeyError
	switch {
	case errors.As(err, &revoked):
		if cert, ok := key.(*ssh.Certificate); ok && sameKey(revoked.Revoked.Key, cert.SignatureKey) {
			shows += ", signed by " + Key{cert.SignatureKey}.String()
		}
		return fmt.Errorf("ssh host key of node %s is revoked: %s shows %s, which %s revokes in line %d; give the node a new host key and pin that with %s", node, addr, shows, f.path, revoked.Revoked.Line, f.pin(node, addr))
	case len(pinned) == 0: // any more
		return f.unknown(node, addr, "shows "+shows)
	case !errors.As(err, &other):
		shows += " (" + err.Error() + ")" // the certificate is not valid
	}
	return fmt.Errorf("ssh host key of node %s has changed: %s shows %s, pinned in %s is %s; if the node was reinstalled, compare the key and pin the new one with %s, else somebody is in between", node, addr, shows, f.path, strings.Join(pinned, ", "), f.pin(node, addr))
}

// Pinned are the keys in the file for node, including those of authorities.
func (f *File) Pinned(node string) ([]Key, error) {
	c, err := f.current()
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, e := range c.about(node) {
		keys = append(keys, Key{e.key})
	}
	return keys, nil
}

// A Pin is an entry of the file.
type Pin struct {
	// Name is the node's name, or a pattern, or hashed, after a marker if there is one.
	Name string
	Key  Key
}

// List returns all entries of the file in their order.
func (f *File) List() ([]Pin, error) {
	c, err := f.current()
	if err != nil {
		return nil, err
	}
	var pins []Pin
	for _, e := range c.entries {
		for _, name := range e.names {
			pins = append(pins, Pin{strings.TrimSpace(e.marker + " " + name), Key{e.key}})
		}
	}
	return pins, nil
}

// Pin makes key the only valid one for node, and writes the file. It is for an
// administrator who has compared fingerprints. If two processes do that at the same time,
// one may overwrite the other's change; the caller must prevent that.
func (f *File) Pin(node string, key Key) error {
	if node == "" || strings.ContainsAny(node, "*?!|,#@:[] \t\r\n\"\v\f") {
		return fmt.Errorf("pin host key: %q is not the name of a node", node)
	}
	return f.change(node, knownhosts.Line([]string{node}, key.PublicKey)+"\n")
}

// Unpin removes node's keys. The node cannot be dialed any more.
func (f *File) Unpin(node string) error { return f.change(node, "") }

// change replaces the entries of node alone by a line. The rest of the file stays.
func (f *File) change(node, line string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.currentLocked()
	if err != nil {
		return err
	}
	text, err := c.without(node)
	if err != nil {
		return fmt.Errorf("host keys %s: %w", f.path, err)
	}
	if line != "" && text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if err := atomicfile.Write(f.path, []byte(text+line), 0o600); err != nil {
		return fmt.Errorf("keep host keys: %w", err)
	}
	f.read = nil // so that the next call reads the new file
	return nil
}
