// Key file: it has the same meaning as for OpenSSH, and changes touch only their own lines.

package hostkeys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/hawser-project/hawser/auth/hostkeys/hostkeystest"
)

// The valid keys of nodes by the file.
func TestContent(t *testing.T) {
	key, other := ed(t), ed(t)
	k := key.text()
	hashed := knownhosts.HashHostname("a")
	for _, tc := range []struct {
		name, text string
		nodes      []string // of a, b, a.example: those that may show key
		list       []string
	}{
		{"empty", "\n \n# a comment\n", nil, nil},
		{"one", "a " + k + "\n", []string{"a"}, []string{"a"}},
		{"no newline, a comment of words, CRLF", "a " + k + " root on a, the first\r\n\r\n\tb\t" + k, []string{"a", "b"}, []string{"a", "b"}},
		{"two names", "b,a " + k, []string{"a", "b"}, []string{"b", "a"}},
		{"an address", "[10.0.0.1]:2222 " + k, nil, []string{"[10.0.0.1]:2222"}},
		{"a port", "[a]:2222 " + k, nil, []string{"[a]:2222"}},
		{"twice", "a " + k + "\na " + k, []string{"a"}, []string{"a", "a"}},
		{"pattern", "b " + k + "\n*.example " + k, []string{"b", "a.example"}, []string{"b", "*.example"}},
		{"all but one", "*,!b " + k, []string{"a", "a.example"}, []string{"*", "!b"}},
		{"hashed", hashed + " " + k, []string{"a"}, []string{hashed}},
		{"revoked", "a,b " + k + "\n@revoked a " + k, nil, []string{"a", "b", "@revoked a"}},
		// The holder of an authority's private key may sign any key, so this is not less
		// strict.
		{"authority", "@cert-authority a " + k, []string{"a"}, []string{"@cert-authority a"}},
		{"authority and host", "a " + k + "\n@cert-authority a " + k, []string{"a"}, []string{"a", "@cert-authority a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := written(t, tc.text)
			for _, node := range []string{"a", "b", "a.example"} {
				err := h.Check(node, "addr", key.PublicKey)
				if (err == nil) != slices.Contains(tc.nodes, node) {
					t.Errorf("check of %s: %v", node, err)
				}
				if err := h.Check(node, "addr", other.PublicKey); err == nil {
					t.Errorf("%s may show another key", node)
				}
			}
			if got := listed(t, h); !slices.Equal(got, tc.list) {
				t.Errorf("lists %q, want %q", got, tc.list)
			}
		})
	}
}

// A certificate is valid by its authority for the node's name.
func TestCertificates(t *testing.T) {
	key, other := ed(t), ed(t)
	by, byFake := newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoED25519)
	ca, fake := Key{by.PublicKey()}, Key{byFake.PublicKey()}
	later, before := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	authority := "@cert-authority node-* " + ca.text() + "\n"
	plain := "node-1 " + key.text() + "\n"
	good := certify(t, key, by, later, "node-1")
	user := certify(t, key, by, later, "node-1")
	user.CertType = ssh.UserCert
	for _, tc := range []struct {
		name, text string
		shown      *ssh.Certificate
		bad        string
	}{
		{"good", authority, good, ""},
		{"for every host", authority, certify(t, key, by, later), ""},
		{"good, and another key pinned", authority + "node-1 " + other.text(), good, ""},
		{"for another node", authority, certify(t, key, by, later, "node-2"), "principal"},
		{"expired", authority, certify(t, key, by, before, "node-1"), "expired"},
		{"expired, its key pinned", authority + plain, certify(t, key, by, before, "node-1"), "expired"},
		{"of nobody, its key pinned", plain, certify(t, key, byFake, later, "node-1"), "no authorities"},
		{"of another authority", authority, certify(t, key, byFake, later, "node-1"), "no authorities"},
		{"of another node's authority", "@cert-authority node-2 " + ca.text(), good, "no ssh host key is pinned"},
		{"a user's", authority, user, "type 1"},
		{"its key revoked", authority + plain + "@revoked * " + key.text(), good, "revoked"},
		{"itself revoked", authority + plain + "@revoked * " + Key{good}.text(), good, "revoked"},
		{"its authority revoked", authority + plain + "@revoked * " + ca.text(), good, "revoked"},
		{"a fake authority is pinned as a host", "node-1 " + fake.text(), certify(t, key, byFake, later, "node-1"), "has changed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := written(t, tc.text).Check("node-1", "addr", tc.shown)
			if tc.bad == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.bad) || !strings.Contains(err.Error(), "hawser ssh pin node-1") || !strings.Contains(err.Error(), ssh.FingerprintSHA256(tc.shown)) {
				t.Errorf("%v, want one about %q", err, tc.bad)
			}
			if strings.Contains(tc.text, "@revoked") && (strings.Contains(err.Error(), "has changed") || !strings.Contains(err.Error(), fmt.Sprintf("line %d", strings.Count(tc.text, "\n")+1))) {
				t.Errorf("%v, want one about the last line, and no advice to pin the new key", err)
			}
		})
	}
}

// Pin and Unpin do not change the other lines, to the byte.
func TestPinChangesOneNode(t *testing.T) {
	key, now := ed(t), ed(t)
	k, pin := key.text(), "a "+now.text()+"\n"
	for _, tc := range []struct {
		name, before, unpinned string
		bad                    string
	}{
		{"nothing", "", "", ""},
		{"no newline", "# mine\nb " + k, "# mine\nb " + k, ""},
		{"its lines", "# mine\r\na " + k + " x y z\n\nb  " + k + "\na " + now.text() + "\n", "# mine\r\n\nb  " + k + "\n", ""},
		{"a shared line", "c,a,b " + k + " of three\n", "", "line 1 (c,a,b)"},
		{"hashed", knownhosts.HashHostname("a") + " " + k + "\n", "", ""},
		{"another revoked", "@revoked * " + k + "\n", "@revoked * " + k + "\n", ""},
		{"a pattern", "b " + k + "\n* " + k, "", "line 2 (*)"},
		{"a name and a pattern", "a,a* " + k, "", "line 1 (a,a*)"},
		{"an authority", "@cert-authority a " + k, "", "line 1 (@cert-authority a)"},
		{"a port", "[a]:22 " + k, "", "line 1 ([a]:22)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, pins := range []bool{false, true} {
				h := written(t, tc.before)
				change := func() error { return h.Unpin("a") }
				if pins {
					change = func() error { return h.Pin("a", now) }
				}
				err := change()
				b, rerr := os.ReadFile(h.path)
				if rerr != nil {
					t.Fatal(rerr)
				}
				if tc.bad != "" {
					if err == nil || !strings.Contains(err.Error(), tc.bad) || string(b) != tc.before {
						t.Errorf("%v, and the file is %q", err, b)
					}
					continue
				}
				want := tc.unpinned
				if pins && want != "" && !strings.HasSuffix(want, "\n") {
					want += "\n"
				}
				if pins {
					want += pin
				}
				if err != nil || string(b) != want {
					t.Errorf("%v, and the file is\n%s\nwant\n%s", err, b, want)
				}
				if (h.Check("a", "addr", now.PublicKey) == nil) != pins || h.Check("a", "addr", key.PublicKey) == nil {
					t.Errorf("what counts is not what was pinned: %v", pins)
				}
			}
		})
	}
}

// ssh-keygen reads a pinned file, and its files are read.
func TestKeygen(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip("there is no ssh-keygen here: install openssh-client")
	}
	dir := t.TempDir()
	keygen := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(within(t), "ssh-keygen", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ssh-keygen %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	a, b, ca := Key{hostkeystest.WriteKey(t, filepath.Join(dir, "a")).PublicKey()}, Key{hostkeystest.WriteKey(t, filepath.Join(dir, "b")).PublicKey()}, Key{hostkeystest.WriteKey(t, filepath.Join(dir, "ca")).PublicKey()}
	path := filepath.Join(dir, "known_hosts")
	h, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.Pin("node-1", a), h.Pin("node-2", b)); err != nil {
		t.Fatal(err)
	}
	if out := keygen("-l", "-F", "node-1", "-f", path); !strings.Contains(out, a.Fingerprint()) || strings.Contains(out, b.Fingerprint()) {
		t.Errorf("ssh-keygen -F finds %s", out)
	}
	keygen("-H", "-f", path)
	if names := listed(t, h); len(names) != 2 || names[0][0] != '|' || names[1][0] != '|' {
		t.Errorf("hashed names %q", names)
	}
	if err := errors.Join(h.Check("node-1", "addr", a.PublicKey), h.Check("node-2", "addr", b.PublicKey)); err != nil {
		t.Errorf("hashed: %v", err)
	}
	if err := h.Pin("node-1", b); err != nil {
		t.Fatal(err)
	}
	if out := keygen("-l", "-F", "node-1", "-f", path); !strings.Contains(out, b.Fingerprint()) || strings.Contains(out, a.Fingerprint()) {
		t.Errorf("pinned anew, ssh-keygen -F finds %s", out)
	}
	keygen("-R", "node-2", "-f", path)
	if _, err := h.Algorithms("node-2", "addr"); err == nil {
		t.Error("node-2 is still known")
	}
	if _, err := h.Algorithms("node-1", "addr"); err != nil {
		t.Error(err)
	}
	// A certificate as it makes them.
	keygen("-q", "-s", filepath.Join(dir, "ca"), "-I", "id", "-h", "-n", "node-3", "-V", "+1h", filepath.Join(dir, "a.pub"))
	line, err := os.ReadFile(filepath.Join(dir, "a-cert.pub"))
	if err != nil {
		t.Fatal(err)
	}
	cert, _, _, _, err := ssh.ParseAuthorizedKey(line)
	if err != nil {
		t.Fatal(err)
	}
	with := written(t, "@cert-authority node-* "+ca.text())
	if err := with.Check("node-3", "addr", cert); err != nil {
		t.Error(err)
	}
	if err := with.Check("node-1", "addr", cert); err == nil {
		t.Error("node-1 may show node-3's certificate")
	}
}

// FuzzFile: every readable file can be changed, and the other lines keep their meaning.
func FuzzFile(f *testing.F) {
	key, now := ed(f), ed(f)
	k := key.text()
	for _, s := range []string{
		"", "a " + k, "a,b " + k + " c\n#\n[::1]:22 " + k, "@revoked a " + k, "* " + k, "|1|x|y " + k,
		"b,,a, " + k, "@cert-authority * " + k, knownhosts.HashHostname("a") + " " + k, "!a,* " + k,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "known_hosts")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := Open(path, nil)
		if err != nil {
			return
		}
		others := func() (said []string) {
			for _, node := range []string{"b", "c", "::1"} {
				pinned, err := h.Pinned(node)
				if err != nil {
					t.Fatal(err)
				}
				said = append(said, node)
				for _, k := range pinned {
					said = append(said, k.String())
				}
			}
			return said
		}
		before := others()
		if _, err := h.List(); err != nil {
			t.Fatalf("%q cannot be listed: %v", b, err)
		}
		if err := h.Pin("a", now); err != nil {
			return
		}
		if pinned, err := h.Pinned("a"); err != nil || len(pinned) != 1 || pinned[0].String() != now.String() {
			t.Fatalf("%q: pinned %v, %v", b, pinned, err)
		}
		if err := h.Unpin("a"); err != nil {
			t.Fatal(err)
		}
		if after := others(); !slices.Equal(before, after) {
			t.Fatalf("%q: others have %q, had %q", b, after, before)
		}
	})
}
