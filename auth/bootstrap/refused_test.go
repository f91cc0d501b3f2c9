// Tests of nodes whose certificate is refused although it has not expired: the authority that
// signed it had been replaced.

package bootstrap

import (
	"crypto/ecdsa"
	"errors"
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
