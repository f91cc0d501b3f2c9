package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/auth/pki"
)

// TestClientExpiryIsTold: a copied certificate that ends soon is told once a day, and only of clients
// that are let in.
func TestClientExpiryIsTold(t *testing.T) {
	const day = 24 * time.Hour
	for name, tt := range map[string]struct {
		user       string
		life, left time.Duration
		want       int // in three days
	}{
		"soon":        {pki.ConnectClientUser, 365 * day, 29 * day, 3},
		"not soon":    {pki.ConnectClientUser, 365 * day, 40 * day, 0},
		"short-lived": {pki.ConnectClientUser, 30 * day, 10 * day, 0},
		"not let in":  {"somebody", 365 * day, 10 * day, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				authorize := (&clientExpiry{log: slog.New(slog.NewTextHandler(&log, nil))}).after(connectClientsOnly)
				until := time.Now().Add(tt.left)
				state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: tt.user}, NotBefore: until.Add(-tt.life), NotAfter: until}}}
				for range 3 * 24 {
					if err := authorize(state); (err == nil) != (tt.user == pki.ConnectClientUser) {
						t.Fatal(err)
					}
					<-time.After(time.Hour)
				}
				if n := strings.Count(log.String(), "ends soon"); n != tt.want {
					t.Errorf("told %d times, want %d:\n%s", n, tt.want, log.String())
				}
			})
		})
	}
}
