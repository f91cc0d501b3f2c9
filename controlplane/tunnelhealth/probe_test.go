package tunnelhealth

// What is written of probes that fail again and again.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestChangingFailure: a failure whose text is another each time is not written each time.
func TestChangingFailure(t *testing.T) {
	var r result
	texts, at := 0, time.Now()
	for i := range 41 {
		was := r.err
		if r = r.next(1, fmt.Errorf("it is %d", i), at); r.err != was {
			texts++
		}
		at = at.Add(30 * time.Second)
	}
	if texts != 4 { // at 30 s, and every 5 minutes of 20
		t.Errorf("%d texts in 20 minutes", texts)
	}
	if r = r.next(1, nil, at); r.err != "" {
		t.Errorf("after a success it is %q", r.err)
	}
	r = r.next(1, errors.New("new"), at)
	if r = r.next(1, errors.New("new"), at); r.err != "new" {
		t.Errorf("after a success and two failures it is %q", r.err)
	}
}

// TestExpiredCertificate: the text of an expired certificate does not have the time in it.
func TestExpiredCertificate(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	now := s.Certificate().NotAfter
	c := Controller{cfg: Config{
		ProbeTimeout: 10 * time.Second,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		},
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: "example.com", Time: func() time.Time {
			now = now.Add(time.Hour)
			return now
		}},
	}}
	c.http = newClient(c.cfg)
	first, second := c.ask(t.Context(), "n"), c.ask(t.Context(), "n")
	if first == nil || second == nil || first.Error() != second.Error() || !strings.HasPrefix(first.Error(), "its certificate is valid from 1970-") {
		t.Errorf("first %v, then %v", first, second)
	}
}

// TestProbeFailuresAreToldApart: what is written of a kubelet that is down, of one that keeps
// silent, and of one whose certificate is of another authority, or expired, is not the same.
func TestProbeFailuresAreToldApart(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.StartTLS()
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	answers := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}
	for want, tt := range map[string]struct {
		dial  func(ctx context.Context, network, addr string) (net.Conn, error)
		roots *x509.CertPool
		now   time.Time
	}{
		"connection refused": {dial: func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }},
		"no answer within": {dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		"certificate signed by unknown authority": {dial: answers, roots: x509.NewCertPool(), now: s.Certificate().NotBefore},
		"its certificate is valid from":           {dial: answers, roots: pool, now: s.Certificate().NotAfter.Add(time.Hour)},
		"404 Not Found":                           {dial: answers, roots: pool, now: s.Certificate().NotBefore},
	} {
		c := Controller{cfg: Config{
			ProbeTimeout: 10 * time.Second, Dial: tt.dial,
			TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: tt.roots, ServerName: "example.com", Time: func() time.Time { return tt.now }},
		}}
		if strings.HasPrefix(want, "no answer") {
			c.cfg.ProbeTimeout = time.Millisecond // it is waited out
		}
		c.http = newClient(c.cfg)
		if err := c.ask(t.Context(), "n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		c.http.CloseIdleConnections()
	}
}

func TestTwoFailuresAreBelieved(t *testing.T) {
	at, bad := time.Unix(1000, 0), errors.New("bad")
	var r result
	if r = r.next(1, bad, at); r.certain {
		t.Errorf("after one failure: %+v", r)
	}
	if r = r.next(1, bad, at.Add(time.Second)); !r.certain || r.err != "bad" || r.since != at {
		t.Errorf("after two: %+v", r)
	}
	if r = r.next(2, bad, at); r.certain {
		t.Errorf("another session: %+v", r)
	}
	if r = r.next(2, nil, at); !r.certain || r.err != "" {
		t.Errorf("after a success: %+v", r)
	}
	if r = r.next(2, bad, at); r.err != "" {
		t.Errorf("one failure after a success: %+v", r)
	}
}
