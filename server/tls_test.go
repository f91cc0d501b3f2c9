package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// An authority issues certificates.
type authority struct {
	*pkitest.Authority
	t *testing.T
}

func newAuthority(t *testing.T) *authority { return &authority{pkitest.New(t, "ca"), t} }

func (a *authority) server() *tls.Certificate {
	return a.Issue(a.t, &x509.Certificate{DNSNames: []string{"apiserver"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a *authority) client(cn string, orgs ...string) *tls.Certificate {
	return a.Issue(a.t, &x509.Certificate{Subject: pkix.Name{CommonName: cn, Organization: orgs}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// authorities is the func for auth.ServerTLS.
func (a *authority) authorities() (*x509.CertPool, error) { return a.Pool(), nil }

// certificate returns c for every ClientHello.
func certificate(c *tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, nil }
}

// showing returns c for every certificate request.
func showing(c *tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
}

// realServer is the whole server on one real port: a hub and an API server that answers
// with the client's name.
func realServer(t *testing.T, ca *authority) (*Hub, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, err := NewPort(PortConfig{Listener: ln, Protocols: []string{overyamux.ALPN}})
	if err != nil {
		t.Fatal(err)
	}
	serving := ca.server()
	conf := auth.ServerTLS(certificate(serving), ca.authorities)
	links, err := overyamux.Listen(port.Tunnel(overyamux.ALPN), tunnel.Options{TLS: conf, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	hub, err := New(Config{Listeners: []tunnel.Listener{links}, API: port.API().Inject, DrainTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	api := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%s from %s", r.TLS.PeerCertificates[0].Subject.CommonName, r.RemoteAddr) // the client checks
		}),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{*serving}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()},
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, 0),
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, run := range []func() error{
		func() error { return port.Run(ctx) },
		func() error { return hub.Run(ctx) },
		func() error {
			if err := api.ServeTLS(port.API(), "", ""); !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		},
	} {
		wg.Go(func() {
			if err := run(); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		_ = api.Close()
	})
	return hub, ln.Addr().String()
}

// connectAgent connects an agent that answers as echo does.
func connectAgent(t *testing.T, addr string, cas *x509.CertPool, cert *tls.Certificate, node string) (tunnel.Session, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := overyamux.Dial(ctx, addr, tunnel.Options{TLS: auth.ClientTLS(showing(cert), cas, "")})
	if err != nil {
		return nil, err
	}
	control, _, err := tunnel.Greet(ctx, s, one(node))
	if err != nil {
		_ = s.Close()
		if cause := context.Cause(s.Context()); cause != nil && !errors.Is(err, tunnel.Denied) {
			return nil, errors.Join(err, cause)
		}
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = control.Run(context.WithoutCancel(t.Context()), nil); _ = s.Close() })
	wg.Go(func() { _ = tunneltest.ServeRequests(context.WithoutCancel(t.Context()), s, echo) })
	t.Cleanup(func() { _ = s.Close(); wg.Wait() })
	return s, nil
}

func get(t *testing.T, ca *authority, addr string, dial func(context.Context, string, string) (net.Conn, error), as *tls.Certificate) string {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{
		DialContext:       dial,
		TLSClientConfig:   &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{*as}},
		DisableKeepAlives: true,
		ForceAttemptHTTP2: true,
	}, Timeout: 20 * time.Second}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// One port, everything real: an agent, a user, and the agent's way to the API.
func TestOnePort(t *testing.T) {
	ca := newAuthority(t)
	hub, addr := realServer(t, ca)
	node, admin := ca.client("system:node:node-1", "system:nodes"), ca.client("admin")
	s, err := connectAgent(t, addr, ca.Pool(), node, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err = hub.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	session := hub.Sessions()[0]

	c, err := hub.DialContext(ctx, "tcp", "10.0.0.7%node-1:80")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(tunnel.Stream).CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "10.0.0.7:80\n" {
		t.Errorf("through the hub: %q, %v", got, err)
	}
	_ = c.Close()

	if got := get(t, ca, addr, nil, admin); !strings.HasPrefix(got, "admin from 127.0.0.1:") {
		t.Errorf("straight to the API server: %q", got)
	}
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return tunnel.Connect(ctx, s, network, addr)
	}
	if got := get(t, ca, APIServer, dial, node); got != "system:node:node-1 from "+session.Addr.String() {
		t.Errorf("to the API server over the rope: %q, want the agent's own address %v", got, session.Addr)
	}
}

func TestStrangersOverTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	hub, addr := realServer(t, ca)
	for _, tc := range []struct {
		name string
		cas  *x509.CertPool
		cert *tls.Certificate
		want string
	}{
		{"certificate of another authority", ca.Pool(), other.client("system:node:node-1", "system:nodes"), "remote error: tls: "},
		{"no certificate", ca.Pool(), new(tls.Certificate), "remote error: tls: "},
		{"no node's certificate", ca.Pool(), ca.client("admin", "system:masters"), "not a node's certificate"},
		{"another node's certificate", ca.Pool(), ca.client("system:node:node-2", "system:nodes"), `the certificate is for node "node-2"`},
		{"server of another authority", other.Pool(), ca.client("system:node:node-1", "system:nodes"), "x509: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := connectAgent(t, addr, tc.cas, tc.cert, "node-1")
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want …%s…", err, tc.want)
			}
		})
	}
	if n := len(hub.Sessions()); n != 0 {
		t.Errorf("%d sessions", n)
	}
}
