// Content: what a known_hosts file says, by the library that reads it.

package hostkeys

import (
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

// content is what a file says. The zero value is that of an empty one.
type content struct {
	lines   []string            // with their newlines
	entries []entry             // in the order of lines
	ask     ssh.HostKeyCallback // the library's verdict; nil if there is no file
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

// verify is nil if node may show key. Names in the file have no ports, which is what
// port 22 means there.
func (c content) verify(node string, key ssh.PublicKey) error {
	if c.ask == nil {
		return new(knownhosts.KeyError)
	}
	return c.ask(net.JoinHostPort(node, "22"), new(net.TCPAddr), key)
}

// noKey is no sshd's key.
type noKey struct{}

func (noKey) Type() string                        { return "" }
func (noKey) Marshal() []byte                     { return nil }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

// about are the entries by which node may prove itself. The library tells them to who
// shows another key. Of a file that was written between the library's look at it and
// ours they may be others: then the next look sets that right.
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

// without is the file but for what it says of node alone. What it also says of others
// is for a person to change.
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
