package kubelet

// Connections that are kept for the next request.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

// A connection that was verified by an authority that counts no more is not used again,
// however often it was.
func TestKeptConnectionIsVerifiedByOldAuthority(t *testing.T) {
	old, another := pkitest.New(t, "old"), pkitest.New(t, "another")
	made := atomic.Int32{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*old.Issue(t, pkitest.NodeServing("node-1", "node-1"))}}
	srv.Config.ErrorLog = quiet
	srv.StartTLS()
	defer srv.Close()
	var cas atomic.Pointer[x509.CertPool]
	cas.Store(old.Pool())
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		made.Add(1)
		return new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
	}
	verifying := newTransports(Options{
		Dial: dial, DialEarly: dial, DialTimeout: time.Minute,
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: cas.Load(), DNSName: cs.ServerName})
			return err
		}},
		TLSNow: func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cas.Load()} },
	}).kubelet
	client := &http.Client{Transport: verifying}
	defer func() { verifying.transport().CloseIdleConnections() }()
	get := func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://node-1:10250/", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}
	for range 3 {
		if err := get(); err != nil || made.Load() != 1 {
			t.Fatalf("%d connections, want one that is kept: %v", made.Load(), err)
		}
	}
	cas.Store(another.Pool())
	var unknown x509.UnknownAuthorityError
	if err := get(); !errors.As(err, &unknown) {
		t.Errorf("after the authority was taken out: %v", err)
	}
}
