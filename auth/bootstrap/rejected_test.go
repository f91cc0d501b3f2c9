// Tests of nodes that are not admitted any more, although their certificates are valid.

package bootstrap

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rejected joins, rejects the certificate, and runs a rotation until after has returned. It
// can join again only with a token.
func rejected(t *testing.T, withToken bool, after func(id *Identity, renewed <-chan struct{}, log *diary)) {
	t.Helper()
	rejectedWith(t, func(c *Config) {
		if !withToken {
			c.Token = Token{}
		}
	}, after)
}

// rejectedWith does that with a configuration that is changed after joining.
func rejectedWith(t *testing.T, change func(*Config), after func(id *Identity, renewed <-chan struct{}, log *diary)) {
	t.Helper()
	c := newServer(t, newAuthority(t), nil).config()
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	change(&id.cfg)
	renewed, log := make(chan struct{}, 1), &diary{}
	r, err := NewRotation(RotationConfig{
		Identity: id, Requests: &memoryRequests{t: t, fail: errors.New("nobody is let in")},
		Renewed: func() { renewed <- struct{}{} }, Poll: 10 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Reject(time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	after(id, renewed, log)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// joined is a node that has joined, or has an identity already, and what replaces its certificates.
func joined(t *testing.T, c Config) (*Identity, *Rotation) {
	t.Helper()
	id, err := Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRotation(RotationConfig{Identity: id, Requests: &memoryRequests{t: t}})
	if err != nil {
		t.Fatal(err)
	}
	return id, r
}

// holdsOn checks whether a joined node goes on with its certificate after what happens.
func holdsOn(t *testing.T, want bool, happens func(r *Rotation)) {
	t.Helper()
	_, r := joined(t, newServer(t, newAuthority(t), nil).config())
	happens(r)
	if got := !r.client.stale(time.Now()); got != want {
		t.Errorf("it goes on with its certificate: %t, want %t", got, want)
	}
}

// A node that is admitted after it was refused needs no other certificate.
func TestRejectedNodeIsAdmitted(t *testing.T) {
	holdsOn(t, true, func(r *Rotation) {
		r.Reject(time.Now())
		r.Admitted()
	})
	holdsOn(t, false, func(r *Rotation) {
		r.Admitted()
		r.Reject(time.Now())
	})
}

// An attempt that began with the former certificate says nothing about the present one.
func TestFormerCertificateIsRefused(t *testing.T) {
	began := time.Now()
	joinAgain := func(r *Rotation) {
		r.Reject(began)
		if err := r.client.replace(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	holdsOn(t, true, func(r *Rotation) {
		joinAgain(r)
		r.Reject(began)
	})
	holdsOn(t, false, func(r *Rotation) {
		joinAgain(r)
		r.Reject(time.Now())
	})
}

// It gets a certificate for another key, once.
func TestRejectedNodeJoinsAnew(t *testing.T) {
	rejected(t, true, func(id *Identity, renewed <-chan struct{}, log *diary) {
		select {
		case <-renewed:
		case <-time.After(time.Minute):
			t.Fatal("no new certificate in a minute")
		}
		kept, err := readPair(id.cfg.path(clientFile))
		if err != nil || kept.Leaf != nil && !kept.Leaf.Equal(id.cert.Load().Leaf) {
			t.Errorf("the file has another certificate: %v", err)
		}
		if n := len(log.lines("does not admit")); n != 0 {
			t.Errorf("%d complaints", n)
		}
	})
}

// A token that is written to its file while the node runs is used.
func TestRejectedNodeGetsATokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	rejectedWith(t, func(c *Config) { c.Token, c.TokenFile = Token{}, file }, func(id *Identity, renewed <-chan struct{}, log *diary) {
		for deadline := time.After(time.Minute); len(log.lines("level=ERROR")) == 0; {
			select {
			case <-renewed:
				t.Fatal("it got another certificate")
			case <-deadline:
				t.Fatal("it does not say what it lacks")
			case <-time.After(time.Millisecond):
			}
		}
		if lines := log.lines("level=ERROR"); !strings.Contains(lines[0], file) || !strings.Contains(lines[0], "token-file") {
			t.Errorf("it says %s", lines[0])
		}
		if err := os.WriteFile(file, []byte("abcdef.0123456789abcdef\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		select {
		case <-renewed:
		case <-time.After(time.Minute):
			t.Fatal("no new certificate in a minute")
		}
	})
}

// Without a token it logs the remedy once.
func TestRejectedNodeWithoutToken(t *testing.T) {
	rejected(t, false, func(id *Identity, renewed <-chan struct{}, log *diary) {
		deadline := time.After(time.Minute)
		for len(log.lines("level=ERROR")) == 0 {
			select {
			case <-renewed:
				t.Fatal("it got another certificate")
			case <-deadline:
				t.Fatal("nothing is said")
			case <-time.After(10 * time.Millisecond):
			}
		}
		if line := log.lines("level=ERROR")[0]; !strings.Contains(line, "hawser token create --print-join-command") {
			t.Errorf("it says %q", line)
		}
		if id.cert.Load() == nil {
			t.Error("the certificate is gone")
		}
	})
}
