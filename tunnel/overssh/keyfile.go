// Key file: what a known_hosts file says, by the library that reads it.

package overssh

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

const (
	// authorityMarker stands before the names of a certificate authority.
	authorityMarker = "@cert-authority"
	// maxStars bounds a pattern: with each more of them the library may take some ten
	// times as long to see that a name does not match. With eight it takes seconds.
	maxStars = 3
)

// A keyFile is a known_hosts file. The zero value is an empty one.
type keyFile struct {
	lines  []string            // with their newlines
	verify ssh.HostKeyCallback // nil if there is no file
}

// readKeyFile reads a file of size.
func readKeyFile(path string, size int64) (keyFile, error) {
	if size > maxKeyFile {
		return keyFile{}, fmt.Errorf("host keys %s: longer than %d bytes", path, maxKeyFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return keyFile{}, fmt.Errorf("read host keys: %w", err)
	}
	verify, err := knownhosts.New(path)
	if err != nil {
		if text, ok := strings.CutPrefix(err.Error(), "knownhosts: "+path+":"); ok {
			err = errors.New("line " + text)
		}
		return keyFile{}, fmt.Errorf("host keys %s: %w", path, err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	for i, line := range lines {
		_, names, _ := splitLine(line)
		for name := range strings.SplitSeq(names, ",") {
			if strings.Count(name, "*") > maxStars {
				return keyFile{}, fmt.Errorf("host keys %s: line %d: more than %d * in %s", path, i+1, maxStars, name)
			}
		}
	}
	return keyFile{lines, verify}, nil
}

// ask is the library's verdict on a key of node's. Names in the file have no ports,
// which is what port 22 means there.
func (f keyFile) ask(node string, key ssh.PublicKey) error {
	if f.verify == nil {
		return new(knownhosts.KeyError)
	}
	return f.verify(net.JoinHostPort(node, "22"), new(net.TCPAddr), key)
}

// noKey is no sshd's key.
type noKey struct{}

func (noKey) Type() string                        { return "" }
func (noKey) Marshal() []byte                     { return nil }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }

// wanted are the entries that are about node. The library tells them to who shows
// another key.
func (f keyFile) wanted(node string) []knownhosts.KnownKey {
	var other *knownhosts.KeyError
	if errors.As(f.ask(node, noKey{}), &other) {
		return other.Want
	}
	return nil
}

// line is the one that an entry comes from. It is empty if the file was written
// between the library's look at it and ours: then the next look sets that right.
func (f keyFile) line(w knownhosts.KnownKey) string {
	if w.Line > len(f.lines) {
		return ""
	}
	return f.lines[w.Line-1]
}

// pinned are the keys of the entries that are about node.
func (f keyFile) pinned(node string) []HostKey {
	var keys []HostKey
	for _, w := range f.wanted(node) {
		marker, _, _ := splitLine(f.line(w))
		if k := (HostKey{w.Key, marker == authorityMarker}); !slices.ContainsFunc(keys, k.equal) {
			keys = append(keys, k)
		}
	}
	return keys
}

// revoked is a *knownhosts.RevokedError if key is.
func (f keyFile) revoked(key ssh.PublicKey) error {
	var revoked *knownhosts.RevokedError
	if errors.As(f.ask("any", key), &revoked) {
		return revoked
	}
	return nil
}

// check is nil if node may show key. As with OpenSSH, a certificate that does not
// count is taken for the key that it is for, unless it was revoked, and an authority's
// own key is no host key.
func (f keyFile) check(node string, key ssh.PublicKey) error {
	err := f.ask(node, key)
	if cert, ok := key.(*ssh.Certificate); ok {
		switch revoked := cmp.Or(f.revoked(cert.Key), f.revoked(cert.SignatureKey)); {
		case err == nil:
			return nil
		case revoked != nil:
			return revoked
		case f.check(node, cert.Key) == nil:
			return nil
		}
		return err
	}
	if err == nil && !slices.ContainsFunc(f.pinned(node), HostKey{key: key}.equal) {
		return &knownhosts.KeyError{Want: f.wanted(node)}
	}
	return err
}

// without is the file but for what it says of node alone. What it also says of others
// is for a person to change.
func (f keyFile) without(node string) (string, error) {
	lines := slices.Clone(f.lines)
	for _, w := range f.wanted(node) {
		marker, names, key := splitLine(f.line(w))
		left := slices.DeleteFunc(strings.Split(names, ","), func(n string) bool {
			return n == node || n == "" || n[0] == '|' // a hashed name stands alone
		})
		others := strings.Join(left, ",")
		switch {
		case marker != "" || others == names || strings.ContainsAny(others, "*?!"):
			return "", fmt.Errorf("line %d (%s) is about %s too: edit it by hand", w.Line, strings.TrimSpace(marker+" "+names), node)
		case others == "":
			lines[w.Line-1] = ""
		default:
			lines[w.Line-1] = others + " " + key + "\n"
		}
	}
	return strings.Join(lines, ""), nil
}

// splitLine takes a line apart: its marker, the names, and the key with its comment.
// Of a blank line or a comment all are empty.
func splitLine(line string) (marker, names, key string) {
	line = strings.Trim(line, " \t\r\n")
	if strings.HasPrefix(line, "@") {
		marker, line = cutWord(line)
	} else if strings.HasPrefix(line, "#") {
		return "", "", ""
	}
	names, key = cutWord(line)
	return marker, names, key
}

func cutWord(s string) (word, rest string) {
	word = s[:strings.IndexAny(s+" ", " \t")]
	return word, strings.TrimLeft(s[len(word):], " \t")
}
