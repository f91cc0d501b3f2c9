// Key file: it means what it means to OpenSSH, and what is changed in it is not more
// than was asked for.

package overssh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/hawser-project/hawser/tunnel"
)

// writtenKeys are the host keys that a file of text gives.
func writtenKeys(t testing.TB, text string) *HostKeys {
	t.Helper()
	path := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := OpenHostKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// writeRSA writes an RSA key pair as newKey does.
func writeRSA(t testing.TB, path string) HostKey {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return HostKey{key: signer(t, path).PublicKey()}
}

func signer(t testing.TB, path string) ssh.Signer {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.ParsePrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// certify makes a host certificate for key.
func certify(t testing.TB, key HostKey, authority ssh.Signer, until time.Time, names ...string) *ssh.Certificate {
	t.Helper()
	c := &ssh.Certificate{
		Key: key.key, CertType: ssh.HostCert, ValidPrincipals: names,
		ValidAfter: uint64(time.Now().Add(-time.Hour).Unix()), ValidBefore: uint64(until.Unix()),
	}
	if err := c.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	return c
}

// Who may show what, by the file.
func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	key, other := newKey(t, filepath.Join(dir, "a")), newKey(t, filepath.Join(dir, "b"))
	k := key.String()
	hashed := knownhosts.HashHostname("a")
	for _, tc := range []struct {
		name, text string
		nodes      []string // of a, b, a.example: those that may show key
		list       []string
		bad        string
	}{
		{"empty", "\n \n# a comment\n", nil, nil, ""},
		{"one", "a " + k + "\n", []string{"a"}, []string{"a"}, ""},
		{"no newline, a comment of words, CRLF", "a " + k + " root on a, the first\r\n\r\n\tb\t" + k, []string{"a", "b"}, []string{"a", "b"}, ""},
		{"two names", "b,a " + k, []string{"a", "b"}, []string{"a", "b"}, ""},
		{"an address", "[10.0.0.1]:2222 " + k, nil, []string{"[10.0.0.1]:2222"}, ""},
		{"a port", "[a]:2222 " + k, nil, []string{"[a]:2222"}, ""},
		{"twice", "a " + k + "\na " + k, []string{"a"}, []string{"a", "a"}, ""},
		{"pattern", "b " + k + "\n*.example " + k, []string{"b", "a.example"}, []string{"*.example", "b"}, ""},
		{"all but one", "*,!b " + k, []string{"a", "a.example"}, []string{"!b", "*"}, ""},
		{"hashed", hashed + " " + k, []string{"a"}, []string{hashed}, ""},
		{"revoked", "a,b " + k + "\n@revoked a " + k, nil, []string{"@revoked a", "a", "b"}, ""},
		{"authority", "@cert-authority a " + k, nil, []string{"@cert-authority a"}, ""},
		{"authority and host", "a " + k + "\n@cert-authority a " + k, []string{"a"}, []string{"@cert-authority a", "a"}, ""},
		{"another marker", "@trusted a " + k, nil, nil, ": line 1: "},
		{"no key", "a ssh-ed25519", nil, nil, ": line 1: "},
		{"broken key", "\n\na ssh-ed25519 AAAA", nil, nil, ": line 3: "},
		{"broken hash", "|1|c2FsdA== " + k, nil, nil, ": line 1: "},
		{"another type", "a ssh-rsa " + strings.Fields(k)[1], nil, nil, ": line 1: "},
		{"three stars", "a*e*m*e " + k, []string{"a.example"}, []string{"a*e*m*e"}, ""},
		{"four stars", "a " + k + "\n" + "b,*a*b*c* " + k, nil, nil, "line 2: more than 3 * in *a*b*c*"},
		{"too long a line", "a " + k + strings.Repeat(" ", 1<<16), nil, nil, "too long"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "known_hosts")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			h, err := OpenHostKeys(path)
			if tc.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tc.bad) {
					t.Errorf("error %v, want one about %q", err, tc.bad)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, node := range []string{"a", "b", "a.example"} {
				err := h.check(node, "addr", key.key)
				if (err == nil) != slices.Contains(tc.nodes, node) || err != nil && !errors.Is(err, tunnel.Denied) {
					t.Errorf("check of %s: %v", node, err)
				}
				if err := h.check(node, "addr", other.key); !errors.Is(err, tunnel.Denied) {
					t.Errorf("%s may show another key: %v", node, err)
				}
			}
			if got := listed(t, h); !slices.Equal(got, tc.list) {
				t.Errorf("lists %q, want %q", got, tc.list)
			}
		})
	}
}

// Certificates count as with OpenSSH: the authority's word for the node's name, or
// else the plain key.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	key, other := newKey(t, filepath.Join(dir, "key")), newKey(t, filepath.Join(dir, "other"))
	ca, fake := newKey(t, filepath.Join(dir, "ca")), newKey(t, filepath.Join(dir, "fake"))
	by, byFake := signer(t, filepath.Join(dir, "ca")), signer(t, filepath.Join(dir, "fake"))
	later, before := time.Now().Add(time.Hour), time.Now().Add(-time.Minute)
	authority := "@cert-authority node-* " + ca.String() + "\n"
	plain := "node-1 " + key.String() + "\n"
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
		{"good, and another key pinned", authority + "node-1 " + other.String(), good, ""},
		{"for another node", authority, certify(t, key, by, later, "node-2"), "principal"},
		{"expired", authority, certify(t, key, by, before, "node-1"), "expired"},
		{"expired, its key pinned", authority + plain, certify(t, key, by, before, "node-1"), ""},
		{"of nobody, its key pinned", plain, certify(t, key, byFake, later, "node-1"), ""},
		{"of another authority", authority, certify(t, key, byFake, later, "node-1"), "no authorities"},
		{"of another node's authority", "@cert-authority node-2 " + ca.String(), good, "no ssh host key is pinned"},
		{"a user's", authority, user, "type 1"},
		{"its key revoked", authority + plain + "@revoked * " + key.String(), good, "revokes in line 3"},
		{"its authority revoked", authority + plain + "@revoked * " + ca.String(), good, "revokes in line 3"},
		{"a fake authority is pinned as a host", "node-1 " + fake.String(), certify(t, key, byFake, later, "node-1"), "has changed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := writtenKeys(t, tc.text).check("node-1", "addr", tc.shown)
			if tc.bad == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *HostKeyError
			if !errors.As(err, &e) || !errors.Is(err, tunnel.Denied) || !strings.Contains(err.Error(), tc.bad) || !strings.Contains(err.Error(), "hawser ssh pin node-1") || !e.Shown.equal(key) {
				t.Errorf("%v, want one about %q", err, tc.bad)
			}
		})
	}
}

// Pin and Unpin leave to others what is theirs, to the byte.
func TestPinChangesOneNode(t *testing.T) {
	dir := t.TempDir()
	key, now := newKey(t, filepath.Join(dir, "a")), newKey(t, filepath.Join(dir, "b"))
	k, pin := key.String(), "a "+now.String()+"\n"
	for _, tc := range []struct {
		name, before, unpinned string
		bad                    string
	}{
		{"nothing", "", "", ""},
		{"no newline", "# mine\nb " + k, "# mine\nb " + k, ""},
		{"its lines", "# mine\r\na " + k + " x y z\n\nb  " + k + "\na " + now.String() + "\n", "# mine\r\n\nb  " + k + "\n", ""},
		{"a shared line", "c,a,b " + k + " of three\n", "c,b " + k + " of three\n", ""},
		{"hashed", knownhosts.HashHostname("a") + " " + k + "\n", "", ""},
		{"another revoked", "@revoked * " + k + "\n", "@revoked * " + k + "\n", ""},
		{"a pattern", "b " + k + "\n* " + k, "", "line 2 (*)"},
		{"a name and a pattern", "a,a* " + k, "", "line 1 (a,a*)"},
		{"an authority", "@cert-authority a " + k, "", "line 1 (@cert-authority a)"},
		{"a port", "[a]:22 " + k, "", "line 1 ([a]:22)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, keys := range [][]HostKey{nil, {now, now}} {
				h := writtenKeys(t, tc.before)
				err := h.change("a", keys)
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
				if len(keys) > 0 && want != "" && !strings.HasSuffix(want, "\n") {
					want += "\n"
				}
				if len(keys) > 0 {
					want += pin
				}
				if err != nil || string(b) != want {
					t.Errorf("%v, and the file is\n%s\nwant\n%s", err, b, want)
				}
				if (h.check("a", "addr", now.key) == nil) != (len(keys) > 0) || h.check("a", "addr", key.key) == nil {
					t.Errorf("what counts is not what was pinned: %v", keys)
				}
			}
		})
	}
	h := writtenKeys(t, "@revoked * "+k+"\n")
	if err := h.Pin("a", key); err == nil || !strings.Contains(err.Error(), "revokes in line 1") {
		t.Errorf("pinned a revoked key: %v", err)
	}
	long := writtenKeys(t, strings.Repeat("#"+strings.Repeat(" ", 1022)+"\n", maxKeyFile>>10))
	if err := long.Pin("a", key); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("wrote a file that cannot be read: %v", err)
	}
}

// ssh-keygen reads what was pinned, and what it writes is read.
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
	a, b, ca := newKey(t, filepath.Join(dir, "a")), newKey(t, filepath.Join(dir, "b")), newKey(t, filepath.Join(dir, "ca"))
	path := filepath.Join(dir, "known_hosts")
	h, err := OpenHostKeys(path)
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
	if err := errors.Join(h.check("node-1", "addr", a.key), h.check("node-2", "addr", b.key)); err != nil {
		t.Errorf("hashed: %v", err)
	}
	if err := h.Pin("node-1", b); err != nil {
		t.Fatal(err)
	}
	if out := keygen("-l", "-F", "node-1", "-f", path); !strings.Contains(out, b.Fingerprint()) || strings.Contains(out, a.Fingerprint()) {
		t.Errorf("pinned anew, ssh-keygen -F finds %s", out)
	}
	keygen("-R", "node-2", "-f", path)
	if err := h.known("node-2", "addr"); err == nil {
		t.Error("node-2 is still known")
	}
	if err := h.known("node-1", "addr"); err != nil {
		t.Error(err)
	}
	// A certificate as it makes them.
	keygen("-q", "-s", filepath.Join(dir, "ca"), "-I", "id", "-h", "-n", "node-3", "-V", "+1h", filepath.Join(dir, "a.pub"))
	line, err := os.ReadFile(filepath.Join(dir, "a-cert.pub"))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ParseHostKey(string(line))
	if err != nil {
		t.Fatal(err)
	}
	with := writtenKeys(t, "@cert-authority node-* "+ca.String())
	if err := with.check("node-3", "addr", cert.key); err != nil {
		t.Error(err)
	}
	if err := with.check("node-1", "addr", cert.key); !errors.Is(err, tunnel.Denied) {
		t.Errorf("node-1 may show node-3's certificate: %v", err)
	}
}

// The sshd is asked for the certificate that an authority vouches for, and for the
// key of the type that is pinned, whatever it would rather show.
func TestShowsWhatIsKnown(t *testing.T) {
	l := newLab(t)
	ca := newKey(t, l.path("ca"))
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rather, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := ssh.NewCertSigner(certify(t, l.host, signer(t, l.path("ca")), time.Now().Add(time.Hour), "node-1"), signer(t, l.path("host")))
	if err != nil {
		t.Fatal(err)
	}
	l.more = []ssh.Signer{rather, signed}
	l.addr = "127.0.0.1:0"
	startOwn(t, l, nil)
	for name, text := range map[string]string{
		"authority": "@cert-authority node-* " + ca.String(),
		"hashed":    knownhosts.HashHostname("node-1") + " " + l.host.String(),
		"other":     "node-1 " + HostKey{key: rather.PublicKey()}.String(),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := l.config(t)
			cfg.HostKeys = writtenKeys(t, text)
			d, stop := run(t, cfg)
			defer stop()
			if err := d.Check(within(t), ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// FuzzHostKeys: whatever can be read can be changed, and says the same of others.
func FuzzHostKeys(f *testing.F) {
	key, now := newKey(f, filepath.Join(f.TempDir(), "a")), newKey(f, filepath.Join(f.TempDir(), "b"))
	k := key.String()
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
		h, err := OpenHostKeys(path)
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
					said = append(said, k.words())
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
		if pinned, err := h.Pinned("a"); err != nil || len(pinned) != 1 || !pinned[0].equal(now) {
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
