package kubelet

// Connections that are kept for the next request.

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

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
		Authorities: cas.Load,
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

// dialError is an error of a tunnel.
type dialError struct{}

func (dialError) Error() string    { return "dial node-1:22: not one of its ports" }
func (dialError) DialCode() string { return "denied by policy" }

// failing is a transport whose dials fail, and the responder that is told.
type failing struct{ err, told error }

func (f *failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }
func (f *failing) Object(int, runtime.Object)                      {}
func (f *failing) Error(err error)                                 { f.told = err }

// TestStatusNamesTheCode: who reads the Status of a failed dial need not parse its text.
func TestStatusNamesTheCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code string
	}{{fmt.Errorf("pass: %w", dialError{}), "denied by policy"}, {errors.New("EOF"), ""}} {
		proxied := &failing{err: tt.err}
		h := (&backend{}).pass(&url.URL{Scheme: "http", Host: "node-1:22"}, "/", proxied, nil, proxied)
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		for want, err := range map[int32]error{http.StatusInternalServerError: statusError(tt.err), http.StatusServiceUnavailable: proxied.told} {
			var s *apierrors.StatusError
			if !errors.As(err, &s) || s.ErrStatus.Code != want || !strings.HasSuffix(s.ErrStatus.Message, tt.err.Error()) {
				t.Fatalf("%v: %v", tt.err, err)
			}
			code := ""
			if d := s.ErrStatus.Details; d != nil && len(d.Causes) == 1 && d.Causes[0].Type == DialFailed {
				code = d.Causes[0].Message
			}
			if code != tt.code {
				t.Errorf("%v: %+v", tt.err, s.ErrStatus)
			}
		}
	}
}

// TestKeptConnectionEndsSoon: a server that leaves waits for the connections that lead
// through it, which are streams of its own, and by default no longer than for a terminal.
func TestKeptConnectionEndsSoon(t *testing.T) {
	keys := newPKI(t)
	serving := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{keys.issue("system:node:node-1", "node-1")}}
	valid := time.Now() // the bubble's clock is not
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Time, 1)
		dial := func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				c := tls.Server(far, serving)
				in := bufio.NewReader(c)
				for {
					if _, err := http.ReadRequest(in); err != nil {
						break
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") // the client says what is missing
				}
				_ = far.Close() // both ends are closed
				ended <- time.Now()
			}()
			return near, nil
		}
		ways := newTransports(Options{
			Dial: dial, DialEarly: dial, DialTimeout: time.Minute,
			TLS: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: keys.Pool(), Time: func() time.Time { return valid }},
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://node-1:10250/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ways.kubelet.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close() // it is empty
		began := time.Now()
		if kept := (<-ended).Sub(began); kept == 0 || kept > 5*time.Second {
			t.Errorf("kept for %v", kept)
		}
	})
}
