// Host keys: the file, refused lines, and the algorithms for an sshd.

package hostkeys

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

func TestFile(t *testing.T) {
	dir := t.TempDir()
	a, b := ed(t), ed(t)
	path := filepath.Join(dir, "host_keys")
	h := opened(t, path)
	check := func(h *File, node string, key Key, want bool) {
		t.Helper()
		if got := h.Check(node, "addr", key.PublicKey); (got == nil) != want {
			t.Errorf("check of %s: %v", node, got)
		}
	}
	check(h, "node-1", a, false)
	for _, err := range []error{h.Pin("node-1", a), h.Pin("node-2", a), h.Pin("node-3", a), h.Pin("node-3", b), h.Unpin("node-2")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range []*File{h, opened(t, path)} {
		check(h, "node-1", a, true)
		check(h, "node-1", b, false)
		check(h, "node-2", a, false)
		check(h, "node-3", a, false)
		check(h, "node-3", b, true)
		if pinned, err := h.Pinned("node-1"); err != nil || len(pinned) != 1 {
			t.Errorf("%d keys are pinned for node-1, %v", len(pinned), err)
		}
		if names := listed(t, h); !slices.Equal(names, []string{"node-1", "node-3"}) {
			t.Errorf("names %v", names)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, atomicfile.TempPrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Writes of another process are used at once.
func TestFileChanges(t *testing.T) {
	dir := t.TempDir()
	a, b := ed(t), ed(t)
	path := filepath.Join(dir, "host_keys")
	h, other := opened(t, path), opened(t, path)
	if err := known(h); err == nil || !strings.Contains(err.Error(), "hawser ssh pin node-1 --address ") || !strings.Contains(err.Error(), " --ssh-known-hosts "+path) {
		t.Errorf("nothing is pinned: %v", err)
	}
	if err := other.Pin("node-1", a); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(known(h), h.Check("node-1", "addr", a.PublicKey)); err != nil {
		t.Errorf("pinned by another: %v", err)
	}
	if err := h.Pin("node-2", b); err != nil {
		t.Fatal(err)
	}
	if names := listed(t, other); !slices.Equal(names, []string{"node-1", "node-2"}) {
		t.Errorf("one pin undid another: %v", names)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := h.Check("node-1", "addr", a.PublicKey); err == nil || !strings.Contains(err.Error(), "shows "+a.String()) || !strings.Contains(err.Error(), "no ssh host key is pinned") {
		t.Errorf("the file is gone: %v", err)
	}
}

// A key that cannot be written is not pinned.
func TestPinFails(t *testing.T) {
	dir := t.TempDir()
	key := ed(t)
	h := opened(t, filepath.Join(dir, "missing", "host_keys"))
	if err := h.Pin("node-1", key); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pin without a directory: %v", err)
	}
	if err := h.Check("node-1", "addr", key.PublicKey); err == nil {
		t.Error("a key that is not kept is trusted")
	}
	for _, name := range []string{"", "*", "a,b", "a b", "|1|x", "a\nb", "!a", "#a", "@a", "a:22", "[a]:2222"} {
		if err := written(t, "").Pin(name, key); err == nil {
			t.Errorf("pinned for %q", name)
		}
	}
}

// known returns why the first node is not dialed.
func known(f *File) error {
	_, err := f.Algorithms("node-1", "addr")
	return err
}

// The algorithms of pinned keys come first, and then all others.
func TestAlgorithms(t *testing.T) {
	all, _ := algorithms()
	plain, authority, rsa := ed(t), ed(t), Key{newKey(t, ssh.KeyAlgoRSA).PublicKey()}
	for _, tc := range []struct {
		name, text string
		first      []string
		signed     int
	}{
		{"one", "node-1 " + plain.text(), []string{ssh.KeyAlgoED25519}, 0},
		{"two types", "node-1 " + plain.text() + "\nnode-1 " + rsa.text(), []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoED25519}, 0},
		{"hashed", knownhosts.HashHostname("node-1") + " " + plain.text(), []string{ssh.KeyAlgoED25519}, 0},
		{"an authority", "node-1 " + plain.text() + "\n@cert-authority node-* " + authority.text(), []string{ssh.CertAlgoRSASHA256v01}, 6},
		{"another's authority", "node-1 " + plain.text() + "\n@cert-authority node-2 " + authority.text(), []string{ssh.KeyAlgoED25519}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := written(t, tc.text).Algorithms("node-1", "addr")
			if err != nil {
				t.Fatal(err)
			}
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
