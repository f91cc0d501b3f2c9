// Content: a known_hosts file, as read by the library.

package hostkeys

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// content is the content of a file. The zero value is that of an empty one.
type content struct {
	lines   []string            // with their newlines
	entries []entry             // in the order of lines
	ask     ssh.HostKeyCallback // the library's callback; nil if there is no file
}

// An entry is a line that has a key.
type entry struct {
	line   int // from 1
	marker string
	names  []string
	key    ssh.PublicKey
}

// load reads the file at path.
func load(path string) (content, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return content{}, fmt.Errorf("read host keys: %w", err)
	}
	ask, err := knownhosts.New(path)
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "knownhosts: "+path+":")
		return content{}, fmt.Errorf("host keys %s: line %s", path, text)
	}
	c := content{lines: strings.SplitAfter(string(b), "\n"), ask: ask}
	for i, line := range c.lines {
		marker, names, key, _, _, err := ssh.ParseKnownHosts([]byte(line))
		switch {
		case errors.Is(err, io.EOF): // blank, or a comment
			continue
		case err != nil:
			return content{}, fmt.Errorf("host keys %s: line %d: %w", path, i+1, err)
		case marker != "":
			marker = "@" + marker
		}
		c.entries = append(c.entries, entry{i + 1, marker, names, key})
	}
	return c, nil
}

// verify is nil if key is valid for node. Names in the file have no ports, as for port 22.
func (c content) verify(node string, key ssh.PublicKey) error {
	if c.ask == nil {
		return new(knownhosts.KeyError)
	}
	err := c.ask(net.JoinHostPort(node, "22"), new(net.TCPAddr), key)
	if cert, ok := key.(*ssh.Certificate); ok && err != nil {
		// The library returns a RevokedError for plain keys only.
		for _, e := range c.entries {
			if e.marker == "@revoked" && (sameKey(e.key, cert.Key) || sameKey(e.key, cert.SignatureKey)) {
				return &knownhosts.RevokedError{Revoked: knownhosts.KnownKey{Key: e.key, Line: e.line}}
			}
		}
	}
	return err
}

// sameKey reports whether an entry's key is key. An entry with a certificate is about the
// certificate's key.
func sameKey(entry, key ssh.PublicKey) bool {
	if cert, ok := entry.(*ssh.Certificate); ok {
		entry = cert.Key
	}
	return bytes.Equal(entry.Marshal(), key.Marshal())
}

// noKey is a key that no sshd has.
type noKey struct{}

func (noKey) Type() string                        { return "" }
func (noKey) Marshal() []byte                     { return nil }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

// about are the entries for node. The library returns them for a wrong key. If the file
// was written between the library's read and ours, they may differ; the next read
// corrects that.
func (c content) about(node string) (entries []entry) {
	var other *knownhosts.KeyError
	if errors.As(c.verify(node, noKey{}), &other) {
		for _, e := range c.entries {
			if slices.ContainsFunc(other.Want, func(w knownhosts.KnownKey) bool { return w.Line == e.line }) {
				entries = append(entries, e)
			}
		}
	}
	return entries
}

// without is the file without the entries of node alone. It is an error if an entry is
// also for other nodes: an administrator must change that.
func (c content) without(node string) (string, error) {
	lines := slices.Clone(c.lines)
	for _, e := range c.about(node) {
		name := strings.Join(e.names, ",")
		if e.marker != "" || name != node && name[0] != '|' { // a hashed name stands alone
			return "", fmt.Errorf("line %d (%s) is about %s too: edit it by hand", e.line, strings.TrimSpace(e.marker+" "+name), node)
		}
		lines[e.line-1] = ""
	}
	return strings.Join(lines, ""), nil
}
