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
	"golang.org/x/sys/unix"
)

// content is the content of a file. The zero value is that of an empty one.
type content struct {
	lines   []string            // with their newlines
	entries []entry             // in the order of lines
	skipped []skippedLine       // in the order of lines
	ask     ssh.HostKeyCallback // the library's callback; nil if there is no file
}

// An entry is a line that has a key.
type entry struct {
	line   int // from 1
	marker string
	names  []string
	key    ssh.PublicKey
}

// A skippedLine is a line that cannot be read.
type skippedLine struct {
	line int    // from 1
	text string // without white space at its ends
	err  error
}

// load reads the file at path. It skips lines that cannot be read. It fails if one of them may
// revoke a key: which one is unknown.
func load(path string) (content, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return content{}, fmt.Errorf("read host keys: %w", err)
	}
	c := content{lines: strings.SplitAfter(string(b), "\n")}
	readable := slices.Clone(c.lines)
	var (
		whole error
		e     entry
	)
	if c.ask, whole = library(string(b)); system(whole) {
		return content{}, fmt.Errorf("read host keys %s: %w", path, whole)
	}
	for i, line := range c.lines {
		e, err = parse(line, whole == nil)
		switch {
		case errors.Is(err, io.EOF): // blank, or a comment
		case err == nil:
			e.line = i + 1
			c.entries = append(c.entries, e)
		case system(err):
			return content{}, fmt.Errorf("read host keys %s: %w", path, err)
		case mayRevoke(line):
			return content{}, fmt.Errorf("host keys %s: line %d cannot be read and may revoke any key, so no key is valid: correct or remove the line: %w", path, i+1, err)
		default:
			c.skipped = append(c.skipped, skippedLine{i + 1, strings.TrimSpace(line), err})
			readable[i] = "\n"
		}
	}
	if len(c.skipped) > 0 {
		if c.ask, err = library(strings.Join(readable, "")); err != nil {
			return content{}, fmt.Errorf("read host keys %s: %w", path, err)
		}
	}
	return c, nil
}

// parse reads one line. The error is io.EOF if the line has no key. read says that the library has
// read it already.
func parse(line string, read bool) (entry, error) {
	if !read {
		if _, err := library(line); err != nil {
			return entry{}, err
		}
	}
	marker, names, key, _, _, err := ssh.ParseKnownHosts([]byte(line))
	if marker != "" {
		marker = "@" + marker
	}
	return entry{marker: marker, names: names, key: key}, err
}

// library is the library's callback for a file of text. It reads files only: it is given one in
// memory.
func library(text string) (ssh.HostKeyCallback, error) {
	fd, err := unix.MemfdCreate("known_hosts", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "known_hosts")
	defer f.Close()
	if _, err = f.WriteString(text); err != nil {
		return nil, err
	}
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	callback, err := knownhosts.New(path)
	if err != nil && !system(err) {
		text := strings.TrimPrefix(err.Error(), "knownhosts: "+path+":1: ")
		return nil, errors.New(strings.TrimPrefix(text, "knownhosts: "))
	}
	return callback, err
}

// system reports whether err is the system's: it tells nothing about a line.
func system(err error) bool {
	_, ok := errors.AsType[unix.Errno](err)
	return ok
}

// mayRevoke reports whether one of the words before a key is, or is spelled like, the marker of
// revoked keys.
func mayRevoke(line string) bool {
	words := strings.Fields(strings.ToLower(line))
	return strings.Contains(strings.Join(words[:min(2, len(words))], " "), "@revoked")
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

// about are the entries for node. The library returns them for a wrong key.
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
