// Client certificates of the front ends that end soon.

package main

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-project/hawser/auth/pki"
)

const (
	// clientEndsSoon is what is left of a client certificate when the hub warns, and clientLongLived
	// the life of one that people renew: others are renewed by programs.
	clientEndsSoon, clientLongLived = 30 * 24 * time.Hour, 90 * 24 * time.Hour
	// clientWarnEvery is how often it warns at most.
	clientWarnEvery = 24 * time.Hour
)

// A clientExpiry warns of connect-client certificates that end soon. A kube-apiserver has a copy of
// one, which nobody renews. It is safe for concurrent use.
type clientExpiry struct {
	log *slog.Logger
	mu  sync.Mutex // guards the following
	at  time.Time  // the latest warning
}

// after is authorize, which may be followed by a warning.
func (e *clientExpiry) after(authorize func(*tls.ConnectionState) error) func(*tls.ConnectionState) error {
	return func(s *tls.ConnectionState) error {
		err := authorize(s)
		if err == nil {
			e.look(s)
		}
		return err
	}
}

// look warns if the certificate of an authorized client ends soon.
func (e *clientExpiry) look(s *tls.ConnectionState) {
	cert, now := s.PeerCertificates[0], time.Now()
	if cert.Subject.CommonName != pki.ConnectClientUser || cert.NotAfter.Sub(now) > clientEndsSoon || cert.NotAfter.Sub(cert.NotBefore) < clientLongLived {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.at.IsZero() && now.Sub(e.at) < clientWarnEvery {
		return
	}
	e.at = now
	e.log.Warn("the certificate of a client of the front ends ends soon: give it another one, such as the present pki/"+pki.ConnectClient+".crt and its key, and restart it (a kube-apiserver reads them once)",
		"client", cert.Subject.CommonName, "until", cert.NotAfter.UTC().Format(time.RFC3339))
}
