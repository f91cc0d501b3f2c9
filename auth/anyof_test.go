// Tests of authorities of several files.

package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnyOf: a server is believed by the authorities of each file. A successor in one of them
// supersedes that file's alone, and a broken file changes nothing for the other.
func TestAnyOf(t *testing.T) {
	own, foreign, next, stranger := newAuthority(t), newAuthority(t), newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "own.crt"), filepath.Join(dir, "foreign.crt")}
	write(t, files[0], own.pem())
	write(t, files[1], foreign.pem())
	serving := map[*authority]tls.Certificate{}
	for _, a := range []*authority{own, foreign, next, stranger} {
		cert, key := a.issue(t, "server")
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		serving[a] = pair
	}
	synctest.Test(t, func(t *testing.T) {
		cas, err := new(Files).AnyOf(files[0], files[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		believes := func(a *authority) error {
			leaf, err := x509.ParseCertificate(serving[a].Certificate[0])
			if err != nil {
				t.Fatal(err)
			}
			var c tls.Config
			cas.Believe(&c)
			err = c.VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, ServerName: "server"})
			chains, verr := leaf.Verify(x509.VerifyOptions{DNSName: "server", Roots: cas.Pool()})
			if verr == nil {
				verr = cas.Check(chains)
			}
			if (err == nil) != (verr == nil) {
				t.Errorf("a client of its own says %v, the library's %v", err, verr)
			}
			return err
		}
		if err := believes(own); err != nil {
			t.Errorf("the first file's: %v", err)
		}
		if err := believes(foreign); err != nil {
			t.Errorf("the second file's: %v", err)
		}
		if believes(stranger) == nil {
			t.Error("an authority of no file is believed")
		}
		pool := cas.Pool()
		if pool != cas.Pool() {
			t.Error("another pool, and nothing has changed")
		}
		if err := os.WriteFile(files[1], []byte("no certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
		write(t, files[0], append(next.pem(), own.pem()...))
		time.Sleep(2 * time.Second) // until the files have been looked at again
		if cas.Pool() == pool {
			t.Error("the same pool, and a file has changed")
		}
		for who, a := range map[string]*authority{"the successor": next, "the file that is broken now": foreign} {
			if err := believes(a); err != nil {
				t.Errorf("%s: %v", who, err)
			}
		}
		if err := cas.Check([][]*x509.Certificate{{{NotBefore: next.cert.NotBefore.Add(time.Second)}, own.cert}}); !errors.Is(err, ErrSuperseded) {
			t.Errorf("what was signed by the first file's predecessor since: %v", err)
		}
		if err := cas.Check([][]*x509.Certificate{{{NotBefore: next.cert.NotBefore.Add(time.Second)}, foreign.cert}}); err != nil {
			t.Errorf("what was signed by the second file's since: %v", err)
		}
	})
}

// TestBundle: no authority of a bundle is the predecessor of another, also where the same file is
// followed as a sequence as well.
func TestBundle(t *testing.T) {
	now := time.Now()
	first, second := newAuthorityOf(t, now.Add(-time.Minute)), newAuthorityOf(t, now.Add(-time.Hour))
	file := filepath.Join(t.TempDir(), "cas")
	write(t, file, append(first.pem(), second.pem()...))
	files := new(Files)
	for name, tc := range map[string]struct {
		follow func(string) (*Authorities, error)
		want   error
	}{"sequence": {files.Authorities, ErrSuperseded}, "bundle": {files.Bundle, nil}} {
		cas, err := tc.follow(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := cas.Check([][]*x509.Certificate{{{NotBefore: now}, second.cert}}); !errors.Is(err, tc.want) {
			t.Errorf("%s: a certificate by the second: %v", name, err)
		}
	}
}
