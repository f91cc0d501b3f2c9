// Tests of nodes whose certificate is refused although it has not expired: the authority that
// signed it had been replaced.

package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
)

// The node gets another certificate with the key that holds its name, though the request for the
// one before is still there. Each one that is refused is replaced.
func TestRefusedCertificateIsReplaced(t *testing.T) {
	s := newServer(t, newAuthority(t), nil)
	id, r := joined(t, s.config())
	s.heldBy(id.cert.Load().Leaf)
	for range 3 {
		was := id.cert.Load().Leaf
		r.Refused(time.Now())
		if !r.client.stale(time.Now()) {
			t.Fatal("it goes on with its certificate")
		}
		if err := r.client.replace(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := id.cert.Load().Leaf
		if now.Equal(was) || !was.PublicKey.(*ecdsa.PublicKey).Equal(now.PublicKey) {
			t.Fatalf("the same certificate: %t, or it has another key", now.Equal(was))
		}
		if r.client.stale(time.Now()) {
			t.Error("the new one is not used")
		}
	}
}

// An attempt that began with the former certificate says nothing about the present one, and one
// that is admitted after all is used.
func TestRefusedCertificateIsAdmitted(t *testing.T) {
	began := time.Now()
	holdsOn(t, true, func(r *Rotation) {
		r.Refused(began)
		if err := r.client.replace(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.Refused(began)
	})
	holdsOn(t, true, func(r *Rotation) {
		r.Refused(time.Now())
		r.Admitted()
	})
}

// Where another server signs with the old authority still, certificates are refused one after the
// other, and requests back off. Without a token the remedy is told once, and the node asks by its
// certificate, which may be admitted again.
func TestRefusedCertificateBacksOff(t *testing.T) {
	inRotation(t, 1000*time.Hour, func(w *rotationWorld) {
		w.r.Refused(time.Now())
		advance(time.Hour)
		if n := strings.Count(w.log.String(), "keep its data directory"); n != 1 || !strings.Contains(w.log.String(), "level=ERROR") {
			t.Errorf("told %d times: %s", n, w.log.String())
		}
		w.mu.Lock()
		w.fail = nil
		w.mu.Unlock()
		advance(20 * time.Minute)
		if n := w.renewed.Load(); n != 1 {
			t.Errorf("replaced %d times", n)
		}
		w.log.Reset()
		client := certificates.KubeAPIServerClientKubeletSignerName
		before := len(w.of(client))
		for range 360 {
			w.r.Refused(time.Now())
			advance(10 * time.Second)
		}
		if n := len(w.of(client)) - before; n < 5 || n > 30 {
			t.Errorf("%d requests in an hour", n)
		}
	}, func(w *rotationWorld) { w.fail = errors.New("not admitted") })
}

// TestRefusedForAMoment: a certificate that was refused once and is admitted again is renewed by
// itself, if the token that the agent still has is of no use any more.
func TestRefusedForAMoment(t *testing.T) {
	inRotation(t, 10*time.Hour, func(w *rotationWorld) {
		w.r.Refused(time.Now())
		advance(9*time.Hour + 59*time.Minute)
		if w.renewed.Load() == 0 {
			t.Error("it was not renewed in its life")
		}
	}, func(w *rotationWorld) {
		w.id.cfg.Servers = []string{"https://127.0.0.1:1"} // no token gets anything there
		w.id.cfg.Token = Token{ID: "abcdef", Secret: "0123456789abcdef"}
	})
}

// refusedTwice is a node whose certificate was refused, and the one that it got with its token as well.
func refusedTwice(t *testing.T) (*server, *Identity, *Rotation, *diary) {
	t.Helper()
	s := newServer(t, newAuthority(t), nil)
	id, r := joined(t, s.config())
	log := new(diary)
	r.cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	r.Refused(time.Now())
	if !r.client.due(time.Now()) {
		t.Fatal("it goes on with the first certificate")
	}
	r.client.renew(context.WithoutCancel(t.Context()))
	r.Refused(time.Now())
	return s, id, r, log
}

// TestAuthorityIsNotTaken: a server that takes other certificates than the cluster signs, as with
// --agent-ca, refuses each new one. The node does not get one after the other, and says what to do.
func TestAuthorityIsNotTaken(t *testing.T) {
	const remedy = "if it runs with --agent-ca, give --client-certificate, --client-key and --certificate-authority"
	s, _, r, log := refusedTwice(t)
	for after := 10 * time.Second; after < 3*time.Minute+30*time.Second; after += 10 * time.Second { // renew has its own back-off of some seconds
		if r.client.due(time.Now().Add(after)) {
			t.Fatalf("it asks again %v after another certificate was refused", after)
		}
	}
	if n := len(log.lines(remedy)); n != 1 {
		t.Errorf("told %d times: %s", n, log.lines(""))
	}
	if s.creates != 2 { // and one to join
		t.Errorf("%d requests", s.creates)
	}
	if !r.client.due(time.Now().Add(7 * time.Minute)) { // the signer may have changed later than the server
		t.Error("it does not ask again soon")
	}
	r.client.renew(t.Context())
	r.Refused(time.Now())
	for after := 30 * time.Second; after < 8*time.Minute; after += 10 * time.Second {
		if r.client.due(time.Now().Add(after)) {
			t.Fatalf("it asks again %v after the third", after)
		}
	}
}

// TestAnotherTokenIsTried: another token, or another authority of the cluster, may make a difference.
// An admitted certificate ends the wait, and is renewed in time.
func TestAnotherTokenIsTried(t *testing.T) {
	for name, change := range map[string]func(*Identity, *Rotation){
		"token": func(id *Identity, _ *Rotation) { id.cfg.Token.ID = "fedcba" },
		"authority": func(id *Identity, _ *Rotation) {
			now := id.trust.Load()
			id.trust.Store(newTrust(now.roots, []*x509.Certificate{newAuthority(t).Cert}, nil))
		},
		"refused by another authority": func(id *Identity, r *Rotation) {
			r.Admitted()
			other, _ := joined(t, newServer(t, newAuthority(t), nil).config())
			id.cert.Store(other.cert.Load())
			r.Refused(time.Now())
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, id, r, _ := refusedTwice(t)
			soon := time.Now().Add(time.Minute)
			if r.client.due(soon) {
				t.Fatal("it asks again at once")
			}
			change(id, r)
			if !r.client.due(soon) {
				t.Error("it does not ask again")
			}
		})
	}
	_, _, r, _ := refusedTwice(t)
	r.client.due(time.Now().Add(time.Minute))
	r.Admitted()
	if r.client.due(time.Now().Add(time.Minute)) || !r.client.due(time.Now().Add(59*time.Minute)) {
		t.Error("an admitted certificate is not renewed in its life")
	}
}

// TestFirstRefusalIsNotTheSecond: a certificate that a token got, and that a server then admitted, is
// refused for the first time. The node asks for another one at once.
func TestFirstRefusalIsNotTheSecond(t *testing.T) {
	for name, got := range map[string]func(*testing.T, *server, *Config) *Rotation{
		"the one before was refused": func(t *testing.T, _ *server, c *Config) *Rotation {
			_, r := joined(t, *c)
			r.Refused(time.Now())
			r.client.renew(context.WithoutCancel(t.Context()))
			r.Admitted()
			if r.client.due(time.Now()) {
				t.Fatal("it asks although it is admitted")
			}
			return r
		},
		"the one before had expired": func(t *testing.T, s *server, c *Config) *Rotation {
			s.heldBy(outlived(t, c, s.ca))
			_, r := joined(t, *c)
			r.client.renew(context.WithoutCancel(t.Context()))
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, newAuthority(t), nil)
			c := s.config()
			r := got(t, s, &c)
			r.Refused(time.Now().Add(time.Second))
			if !r.client.due(time.Now().Add(time.Minute)) {
				t.Error("it does not ask after the first refusal")
			}
		})
	}
}
