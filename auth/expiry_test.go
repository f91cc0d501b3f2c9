package auth

// Tests of warnings, in virtual time.

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const day = 24 * time.Hour

func lasting(name string, d time.Duration) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: time.Now(), NotAfter: time.Now().Add(d)}
}

// A certificate is warned of once a day while it has less than 30 % of its life left, also
// after its end, until it is replaced.
func TestExpiryWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		var short atomic.Pointer[x509.Certificate]
		short.Store(lasting("short", 100*day))
		long := lasting("long", 1000*day)
		w := NewExpiryWatch(slog.New(slog.NewTextHandler(&log, nil)),
			Expiring{Name: "a", Now: short.Load},
			Expiring{Name: "b", Now: func() *x509.Certificate { return long }},
			Expiring{Name: "none", Now: func() *x509.Certificate { return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		pass := func(d time.Duration) string {
			time.Sleep(d) // the bubble's clock
			synctest.Wait()
			return log.take()
		}
		if got := pass(70*day - time.Hour); got != "" {
			t.Errorf("before: %s", got)
		}
		got := pass(10 * day)
		if n := strings.Count(got, "\n"); n < 9 || n > 10 || strings.Count(got, "WARN") != n || strings.Count(got, "name=a subject=short") != n {
			t.Errorf("in ten days: %s", got)
		}
		if n := strings.Count(pass(30*day), "\n"); n < 29 || n > 30 {
			t.Errorf("past its end: %d lines in 30 days", n)
		}
		short.Store(lasting("short", 100*day))
		if got := pass(60 * day); got != "" {
			t.Errorf("after renewal: %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The gauge of a certificate is its end. It changes with the next certificate, and is 0 if
// there is none.
func TestEnds(t *testing.T) {
	var now atomic.Pointer[x509.Certificate]
	e := Expiring{Name: "a", Now: now.Load}
	for _, cert := range []*x509.Certificate{nil, lasting("a", day), lasting("a", 3*day), nil} {
		want := 0.0
		if now.Store(cert); cert != nil {
			want = float64(cert.NotAfter.Unix())
		}
		if got := e.Ends(); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}
