// Host keys: the file, what is refused in it, and what is asked of an sshd.

package overssh

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

func TestHostKeysFile(t *testing.T) {
	dir := t.TempDir()
	a, b := newKey(t, filepath.Join(dir, "a")), newKey(t, filepath.Join(dir, "b"))
	path := filepath.Join(dir, "host_keys")
	h, err := OpenHostKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(h *HostKeys, node string, key HostKey, want bool) {
		t.Helper()
		got := h.check(node, "addr", key.key)
		if (got == nil) != want || got != nil && !errors.Is(got, tunnel.Denied) {
			t.Errorf("check of %s: %v", node, got)
		}
	}
	check(h, "node-1", a, false)
	for _, err := range []error{h.Pin("node-1", a, b, a), h.Pin("node-2", a), h.Pin("node-3", a), h.Pin("node-3", b), h.Unpin("node-2")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	again, err := OpenHostKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*HostKeys{h, again} {
		check(h, "node-1", a, true)
		check(h, "node-1", b, true)
		check(h, "node-2", a, false)
		check(h, "node-3", a, false)
		check(h, "node-3", b, true)
		if pinned, err := h.Pinned("node-1"); err != nil || len(pinned) != 2 {
			t.Errorf("%d keys are pinned for node-1, %v", len(pinned), err)
		}
		if nodes, err := h.Nodes(); err != nil || !slices.Equal(nodes, []string{"node-1", "node-3"}) {
			t.Errorf("nodes %v, %v", nodes, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".hostkeys-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What another process writes counts at once, and what cannot be read does not.
func TestHostKeysFileChanges(t *testing.T) {
	dir := t.TempDir()
	a, b := newKey(t, filepath.Join(dir, "a")), newKey(t, filepath.Join(dir, "b"))
	path := filepath.Join(dir, "host_keys")
	open := func() *HostKeys {
		t.Helper()
		h, err := OpenHostKeys(path)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	h, other := open(), open()
	if err := h.known("node-1", "addr"); !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), "hawser ssh pin node-1") || !strings.Contains(err.Error(), path) {
		t.Errorf("nothing is pinned: %v", err)
	}
	if err := other.Pin("node-1", a); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.known("node-1", "addr"), h.check("node-1", "addr", a.key)); err != nil {
		t.Errorf("pinned by another: %v", err)
	}
	if err := h.Pin("node-2", b); err != nil {
		t.Fatal(err)
	}
	if nodes, err := other.Nodes(); err != nil || !slices.Equal(nodes, []string{"node-1", "node-2"}) {
		t.Errorf("one pin undid another: %v, %v", nodes, err)
	}
	if err := os.WriteFile(path, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{h.check("node-1", "addr", a.key), h.known("node-1", "addr")} {
		if !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), path+": line 1") {
			t.Errorf("a file of nonsense: %v", err)
		}
	}
	if err := h.Pin("node-1", a); err == nil {
		t.Error("a file that cannot be read was written over")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var key *HostKeyError
	if err := h.check("node-1", "addr", a.key); !errors.As(err, &key) || len(key.Pinned) > 0 {
		t.Errorf("the file is gone: %v", err)
	}
}

// What cannot be kept does not count.
func TestPinFails(t *testing.T) {
	dir := t.TempDir()
	key := newKey(t, filepath.Join(dir, "a"))
	h := &HostKeys{path: filepath.Join(dir, "missing", "host_keys")}
	if err := h.Pin("node-1", key); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pin without a directory: %v", err)
	}
	if err := h.check("node-1", "addr", key.key); err == nil {
		t.Error("a key that is not kept is trusted")
	}
	for _, name := range []string{"", "*", "a,b", "a b", "|1|x", "a\nb", "!a", "#a", "@a"} {
		if err := new(HostKeys).Pin(name, key); err == nil {
			t.Errorf("pinned for %q", name)
		}
	}
	if err := new(HostKeys).Pin("node-1"); err == nil {
		t.Error("pinned no key")
	}
	if err := new(HostKeys).Pin("node-1", HostKey{}); err == nil {
		t.Error("pinned an empty key")
	}
}

func TestParseHostKeys(t *testing.T) {
	key := newKey(t, filepath.Join(t.TempDir(), "a")).String()
	for _, tc := range []struct {
		name, text string
		nodes      []string
		bad        string
	}{
		{"empty", "\n \n# a comment\n", nil, ""},
		{"one", "node-1 " + key + "\n", []string{"node-1"}, ""},
		{"no newline, a comment, CRLF", "a " + key + " root@a\r\nb " + key, []string{"a", "b"}, ""},
		{"two names", "a,b " + key, []string{"a", "b"}, ""},
		{"an address", "[10.0.0.1]:2222 " + key, []string{"[10.0.0.1]:2222"}, ""},
		{"twice", "a " + key + "\na " + key, []string{"a"}, ""},
		{"pattern", "a " + key + "\n*.example " + key, nil, "line 2"},
		{"hashed", "|1|c2FsdA==|aGFzaA== " + key, nil, "line 1"},
		{"revoked", "@revoked a " + key, nil, "@revoked"},
		{"authority", "@cert-authority a " + key, nil, "@cert-authority"},
		{"no key", "a ssh-ed25519", nil, "line 1"},
		{"broken key", "\n\na ssh-ed25519 AAAA", nil, "line 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, err := parseHostKeys([]byte(tc.text))
			if tc.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tc.bad) {
					t.Errorf("error %v, want one about %q", err, tc.bad)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, tc.nodes) {
				t.Errorf("nodes %q, want %q", got, tc.nodes)
			}
			for name, ks := range keys {
				if len(ks) != 1 || ks[0].String() != key {
					t.Errorf("keys of %s: %v", name, ks)
				}
			}
		})
	}
}

func TestParseHostKey(t *testing.T) {
	key := newKey(t, filepath.Join(t.TempDir(), "a"))
	got, err := ParseHostKey(key.String() + " root@node\n")
	if err != nil || !got.equal(key) || got.Fingerprint() != ssh.FingerprintSHA256(key.key) || got.Type() != "ssh-ed25519" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "ssh-ed25519", key.String() + "\n" + key.String()} {
		if _, err := ParseHostKey(bad); err == nil {
			t.Errorf("parsed %q", bad)
		}
	}
}

// The sshd is asked for what is pinned first, and then for anything.
func TestAlgorithms(t *testing.T) {
	h := new(HostKeys)
	all := h.algorithms("node-1")
	if err := h.Pin("node-1", newKey(t, filepath.Join(t.TempDir(), "a"))); err != nil {
		t.Fatal(err)
	}
	got := h.algorithms("node-1")
	if got[0] != ssh.KeyAlgoED25519 || len(got) != len(all) {
		t.Errorf("asked for %v", got)
	}
	for _, a := range all {
		if strings.Contains(a, "cert") || a == ssh.KeyAlgoRSA {
			t.Errorf("asked for %s", a)
		}
	}
}

// FuzzHostKeys: what can be read is written such that it reads the same.
func FuzzHostKeys(f *testing.F) {
	key := newKey(f, filepath.Join(f.TempDir(), "a")).String()
	for _, s := range []string{"", "a " + key, "a,b " + key + " c\n#\n[::1]:22 " + key, "@revoked a " + key, "* " + key, "|1|x|y " + key} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := parseHostKeys(b)
		if err != nil {
			return
		}
		text := formatHostKeys(keys)
		again, err := parseHostKeys(text)
		if err != nil {
			t.Fatalf("%q reads as %q, which does not: %v", b, text, err)
		}
		if got := formatHostKeys(again); !bytes.Equal(got, text) {
			t.Fatalf("%q and then %q", text, got)
		}
	})
}
