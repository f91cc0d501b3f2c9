package auth

// Tests of followed files, in virtual time.

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func commonName(k *KeyPair) string { return k.Certificate().Leaf.Subject.CommonName }

func TestKeyPairFollowsFiles(t *testing.T) {
	ca := newAuthority(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "both.pem")
	if _, err := new(Files).KeyPair(file, file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("missing file: %v", err)
	}
	cert1, key1 := ca.issue(t, "one")
	cert2, key2 := ca.issue(t, "number two")
	write(t, file, append(cert1, key1...))
	synctest.Test(t, func(t *testing.T) {
		var files Files
		k, err := files.KeyPair(file, file)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := files.KeyPair(file, file); err != nil || again != k {
			t.Errorf("the same files have two readers, %v", err)
		}
		write(t, file, append(cert2, key1...)) // not a pair
		time.Sleep(recheck)                    // the bubble's clock
		if got := commonName(k); got != "one" || k.Err() == nil {
			t.Errorf("with a broken file: %q, %v", got, k.Err())
		}
		write(t, file, append(cert2, key2...))
		if got := commonName(k); got != "one" {
			t.Errorf("looked again at once: %q", got)
		}
		time.Sleep(recheck) // the bubble's clock
		if got := commonName(k); got != "number two" || k.Err() != nil {
			t.Errorf("after replacement: %q, %v", got, k.Err())
		}
	})
}

func TestAuthoritiesFollowFile(t *testing.T) {
	one, two := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if _, err := new(Files).Authorities(file); err == nil {
		t.Error("missing file: no error")
	}
	write(t, file, []byte("nothing"))
	if _, err := new(Files).Authorities(file); err == nil {
		t.Error("no certificate in it: no error")
	}
	write(t, file, one.pem())
	synctest.Test(t, func(t *testing.T) {
		a, err := new(Files).Authorities(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			content []byte
			want    *x509.CertPool
		}{
			{[]byte("half"), one.pool()},
			{append(one.pem(), two.pem()...), func() *x509.CertPool { p := one.pool(); p.AddCert(two.cert); return p }()},
		} {
			write(t, file, step.content)
			time.Sleep(recheck) // the bubble's clock
			if p := a.Pool(); !p.Equal(step.want) {
				t.Errorf("after writing %d bytes: %v", len(step.content), p)
			}
		}
	})
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// take returns the text written since its last call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// An error is logged once, if it persists at the second check, and again if it changes. A
// replacement that is taken into use is logged too.
func TestFollowedFileIsToldOnce(t *testing.T) {
	one, two := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	write(t, file, one.pem())
	synctest.Test(t, func(t *testing.T) {
		var log lines
		files := &Files{Log: slog.New(slog.NewTextHandler(&log, nil))}
		a, err := files.Authorities(file)
		if err != nil {
			t.Fatal(err)
		}
		changes := 0
		a.Changed(func() { changes++ })
		a.Changed(func() { t.Error("who has stopped is told") })()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- files.Run(ctx) }()
		pass := func(looks int) string {
			time.Sleep(time.Duration(looks)*recheck + recheck/2) // the bubble's clock
			synctest.Wait()
			return log.take()
		}
		write(t, file, []byte("half"))
		if got := pass(1); got != "" {
			t.Errorf("a file that may be half-written: %s", got)
		}
		if got := pass(60); strings.Count(got, "\n") != 1 || !strings.Contains(got, "WARN") || !strings.Contains(got, file) {
			t.Errorf("in a minute: %s", got)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if got := pass(60); strings.Count(got, "\n") != 1 || !strings.Contains(got, "no such file") {
			t.Errorf("another fault: %s", got)
		}
		if !a.Pool().Equal(one.pool()) || changes != 0 {
			t.Errorf("what was read before is not in use, %d changes", changes)
		}
		write(t, file, two.pem())
		if got := pass(60); strings.Count(got, "\n") != 1 || !strings.Contains(got, "INFO") || changes != 1 || !a.Pool().Equal(two.pool()) {
			t.Errorf("%d changes: %s", changes, got)
		}
		write(t, file, bytes.Repeat([]byte("x"), maxFollowed+1))
		if got := pass(2); !strings.Contains(got, "at most 1048576") || !a.Pool().Equal(two.pool()) {
			t.Errorf("a huge file: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestFollowsAnyReplacement: a replacement is seen though its size and its time are the same,
// as when a symbolic link is led elsewhere or an archive is unpacked.
func TestFollowsAnyReplacement(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	when := time.Now()
	lead := func(content string) {
		t.Helper()
		to, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(to, "file")
		write(t, file, []byte(content))
		err = errors.Join(os.Chtimes(file, when, when), os.Symlink(to, link+".new"), os.Rename(link+".new", link))
		if err != nil {
			t.Fatal(err)
		}
	}
	lead("one")
	synctest.Test(t, func(t *testing.T) {
		f, err := Follow(new(Files), "file", func(contents [][]byte) (string, error) { return string(contents[0]), nil }, filepath.Join(link, "file"))
		if err != nil {
			t.Fatal(err)
		}
		changes := 0
		f.Changed(func() { changes++ })
		for i, content := range []string{"two", "six"} {
			lead(content)
			for range 2 { // the second look sees the same
				time.Sleep(recheck) // the bubble's clock
				if got := f.Get(); got != content || changes != i+1 {
					t.Errorf("after writing %s: %s, %d changes", content, got, changes)
				}
			}
		}
	})
}

// TestOldSuccessor: the log has a warning when an authority is put first that was made long
// before, since what its predecessor has signed since is refused. There is none at a start.
func TestOldSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "ca.crt")
		one, old, fresh := newAuthority(t), newAuthorityOf(t, time.Now()), newAuthorityOf(t, time.Now().Add(2*time.Hour))
		late := newAuthorityOf(t, time.Now().Add(2*time.Hour-Backdate))
		time.Sleep(2 * time.Hour) // the bubble's clock
		var log bytes.Buffer
		write(t, file, append(old.pem(), one.pem()...))
		a, err := (&Files{Log: slog.New(slog.NewTextHandler(&log, nil))}).Authorities(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, step := range []struct {
			name    string
			content []byte
			warns   bool
		}{
			{"a fresh one", append(fresh.pem(), one.pem()...), false},
			{"an old one", append(old.pem(), one.pem()...), true},
			{"a newer one is to replace it", append(old.pem(), fresh.pem()...), false},
			{"the order is turned", append(fresh.pem(), old.pem()...), false},
			{"it has no predecessor", one.pem(), false},
			{"one as old as certificates are backdated", append(late.pem(), one.pem()...), true},
			{"it is to be replaced", append(one.pem(), late.pem()...), false},
			{"it is replaced by one that was listed", append(late.pem(), one.pem()...), true},
		} {
			log.Reset()
			write(t, file, append(step.content, bytes.Repeat([]byte("\n"), 10*i)...)) // of another size
			time.Sleep(recheck)                                                       // the bubble's clock
			a.Pool()
			if got := strings.Contains(log.String(), "level=WARN"); got != step.warns {
				t.Errorf("%s: %s", step.name, log.String())
			}
		}
	})
}

// A client that follows a file verifies by its content at each handshake: the authority, the
// name, and superseded certificates.
func TestBelieve(t *testing.T) {
	one, two := newAuthority(t), newAuthority(t)
	one.from = time.Now().Add(-time.Minute)
	cert, key := one.issue(t, "server")
	serving, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{serving}}
	for _, tc := range []struct {
		name, says string
		file       []byte
	}{
		{"server", "", one.pem()},
		{"other", "not other", one.pem()},
		{"server", "unknown authority", two.pem()},
		{"server", "", append(one.pem(), two.pem()...)},
		{"server", "superseded", append(two.pem(), one.pem()...)},
		{"127.0.0.1", "called by a name", one.pem()},
	} {
		file := filepath.Join(t.TempDir(), "ca.crt")
		write(t, file, tc.file)
		a, err := new(Files).Authorities(file)
		if err != nil {
			t.Fatal(err)
		}
		c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: tc.name}
		a.Believe(c)
		_, err = handshake(t, server, c)
		if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("as %q with %d bytes of authorities: %v, want %q", tc.name, len(tc.file), err, tc.says)
		}
	}
}
