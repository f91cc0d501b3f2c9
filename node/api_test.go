// Tests of the connections to the API server.

package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestConnections: after Renew new requests use a new connection and those under
// way go on; after Close they do not.
func TestConnections(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/watch" {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "done")
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	var dials atomic.Int32
	_, conns, err := NewAPI(APIConfig{
		Host: srv.Listener.Addr().String(),
		TLS:  func() *tls.Config { return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} },
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, srv.Listener.Addr().String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	get := func(path string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := conns.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	finish := func(path string, least, most int32) {
		t.Helper()
		resp := get(path)
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "done" || resp.ProtoMajor != 2 {
			t.Errorf("%s: %q, %v over %s", path, b, err, resp.Proto)
		}
		if n := dials.Load(); n < least || n > most {
			t.Errorf("%d dials, want %d to %d", n, least, most)
		}
	}
	first, second := get("/watch"), get("/watch")
	defer first.Body.Close()
	defer second.Body.Close()
	finish("/", 1, 1)
	conns.Renew()
	finish("/", 2, 2)
	release <- struct{}{}
	release <- struct{}{}
	for _, resp := range []*http.Response{first, second} {
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "done" {
			t.Errorf("a request that was under way: %q, %v", b, err)
		}
	}
	third := get("/watch")
	defer third.Body.Close()
	conns.Close()
	if b, err := io.ReadAll(third.Body); err == nil {
		t.Errorf("a request on a closed connection ends with %q", b)
	}
	// While its pool has yet to hear of the end of the old connection, net/http may
	// give the request to that, and dial for each time it has to try again.
	finish("/", 3, 5)
}

// TestFailedRequestsAreTold: why a request has no answer is told as it is, such as that the server's
// certificate is not believed.
func TestFailedRequestsAreTold(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	var failed []error
	api, conns, err := NewAPI(APIConfig{
		Host:   srv.Listener.Addr().String(),
		TLS:    func() *tls.Config { return &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12} },
		Dial:   new(net.Dialer).DialContext,
		Failed: func(err error) { failed = append(failed, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conns.Close()
	if _, err := api.Nodes.Get(t.Context(), "n", metav1.GetOptions{}); err == nil {
		t.Error("a server is believed that nobody vouches for")
	}
	if len(failed) == 0 || !errors.As(failed[0], new(x509.UnknownAuthorityError)) {
		t.Errorf("told of %v", failed)
	}
}
