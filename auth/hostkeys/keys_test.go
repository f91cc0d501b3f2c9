// Helpers of the tests: keys and files.

package hostkeys

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within bounds a wait. It is no measure: what takes this long hangs.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// newKey makes a host key of a type.
func newKey(t testing.TB, kind string) ssh.Signer {
	t.Helper()
	var private any
	var err error
	switch kind {
	case ssh.KeyAlgoED25519:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case ssh.KeyAlgoECDSA256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ssh.KeyAlgoRSA:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ed makes a host key of the usual type.
func ed(t testing.TB) Key { return Key{newKey(t, ssh.KeyAlgoED25519).PublicKey()} }

// text is the key in a line of known_hosts.
func (k Key) text() string { return knownhosts.Line([]string{"x"}, k.PublicKey)[2:] }

// written is a file of text.
func written(t testing.TB, text string) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return opened(t, path)
}

func opened(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// listed are the names in the file.
func listed(t testing.TB, f *File) (names []string) {
	t.Helper()
	pins, err := f.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pins {
		names = append(names, p.Name)
	}
	return names
}
