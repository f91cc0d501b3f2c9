// Host keys: the file, what is refused in it, and what is asked of an sshd.

package overssh

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

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
		if names := listed(t, h); !slices.Equal(names, []string{"node-1", "node-1", "node-3"}) {
			t.Errorf("names %v", names)
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
	if names := listed(t, other); !slices.Equal(names, []string{"node-1", "node-2"}) {
		t.Errorf("one pin undid another: %v", names)
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
	h, err := OpenHostKeys(filepath.Join(dir, "missing", "host_keys"))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Pin("node-1", key); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pin without a directory: %v", err)
	}
	if err := h.check("node-1", "addr", key.key); err == nil {
		t.Error("a key that is not kept is trusted")
	}
	for _, name := range []string{"", "*", "a,b", "a b", "|1|x", "a\nb", "!a", "#a", "@a", "a:22", "[a]:2222"} {
		if err := noKeys(t).Pin(name, key); err == nil {
			t.Errorf("pinned for %q", name)
		}
	}
	if err := noKeys(t).Pin("node-1"); err == nil {
		t.Error("pinned no key")
	}
	if err := noKeys(t).Pin("node-1", HostKey{}); err == nil {
		t.Error("pinned an empty key")
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
	dir := t.TempDir()
	all := writtenKeys(t, "").algorithms("node-1")
	plain, authority := newKey(t, filepath.Join(dir, "a")), newKey(t, filepath.Join(dir, "b"))
	rsa := writeRSA(t, filepath.Join(dir, "c"))
	for _, tc := range []struct {
		name, text string
		first      []string
		signed     int
	}{
		{"one", "node-1 " + plain.String(), []string{ssh.KeyAlgoED25519}, 0},
		{"two types", "node-1 " + plain.String() + "\nnode-1 " + rsa.String(), []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoED25519}, 0},
		{"hashed", knownhosts.HashHostname("node-1") + " " + plain.String(), []string{ssh.KeyAlgoED25519}, 0},
		{"an authority", "node-1 " + plain.String() + "\n@cert-authority node-* " + authority.String(), []string{ssh.CertAlgoRSASHA256v01}, 6},
		{"another's authority", "node-1 " + plain.String() + "\n@cert-authority node-2 " + authority.String(), []string{ssh.KeyAlgoED25519}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := writtenKeys(t, tc.text).algorithms("node-1")
			if !slices.Equal(got[:len(tc.first)], tc.first) {
				t.Errorf("asked for %v", got)
			}
			signed := 0
			for _, a := range got {
				if strings.Contains(a, "-cert-") {
					signed++
				}
				if a == ssh.KeyAlgoRSA {
					t.Errorf("asked for %s", a)
				}
			}
			if signed < tc.signed || tc.signed == 0 && signed > 0 || len(got)-signed != len(all) {
				t.Errorf("asked for %d certificates and %d in all, of %d", signed, len(got), len(all))
			}
		})
	}
}

// listed are the names in the file.
func listed(t *testing.T, h *HostKeys) []string {
	t.Helper()
	pins, err := h.List()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pins {
		names = append(names, p.Name)
	}
	return names
}
