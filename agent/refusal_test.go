// Tests of the classification of failures, with real TLS on loopback.

package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/tunnel"
)

// An authority issues certificates.
type authority struct{ *pkitest.Authority }

func newAuthority(t *testing.T) *authority { return &authority{pkitest.New(t, "ca")} }

var nodeSubject = pkix.Name{CommonName: auth.NodeUserPrefix + "node-1", Organization: []string{auth.NodesGroup}}

// leaf issues the certificate of node-1, valid until then.
func (a *authority) leaf(t *testing.T, until time.Time) *tls.Certificate {
	t.Helper()
	return a.issued(t, until, x509.ExtKeyUsageClientAuth, nodeSubject)
}

// serving issues the certificate of the server "hub", valid until then.
func (a *authority) serving(t *testing.T, until time.Time) *tls.Certificate {
	t.Helper()
	return a.issued(t, until, x509.ExtKeyUsageServerAuth, pkix.Name{CommonName: "hub"}, "hub")
}

func (a *authority) issued(t *testing.T, until time.Time, usage x509.ExtKeyUsage, subject pkix.Name, names ...string) *tls.Certificate {
	t.Helper()
	return a.Issue(t, &x509.Certificate{
		Subject: subject, DNSNames: names,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	})
}

// handshake is a transport that does the handshake and reads the first byte, where a
// refusal may arrive.
func handshake(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	conf := o.TLS.Clone()
	conf.NextProtos = []string{"hawser/2"}
	d := tls.Dialer{Config: conf}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	return nil, fmt.Errorf("read: %w", err)
}

func TestRefusals(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	type side struct {
		ca   *authority
		cert *tls.Certificate
	}
	good, server := side{ours, ours.leaf(t, later)}, side{ours, ours.serving(t, later)}
	for _, tc := range []struct {
		name       string
		agent, hub side
		host       string
		protocol   string
		plain      string // what is said without TLS; empty means TLS
		want       error
		says       string
	}{
		{name: "nothing wrong", agent: good, hub: server},
		{name: "certificate of another authority", agent: side{ours, theirs.leaf(t, later)}, hub: server, want: ErrCertificateRejected, says: "the key that holds the node's name; a server with --agent-ca takes no token: give --client-certificate"},
		{name: "certificate that has expired", agent: side{ours, ours.leaf(t, past)}, hub: server, want: ErrCertificateRejected, says: "hawser token create --print-join-command"},
		{name: "no certificate", agent: side{ours, new(tls.Certificate)}, hub: server, want: ErrCertificateRejected, says: "new token"},
		{name: "server of another authority", agent: good, hub: side{ours, theirs.serving(t, later)}, want: ErrServerUntrusted, says: "intercepts TLS; if the cluster's authority was replaced, remove pki/ca.crt alone from the agent's data directory"},
		{name: "server's certificate has expired", agent: good, hub: side{ours, ours.serving(t, past)}, want: ErrServerUntrusted, says: "clock"},
		{name: "server that is a node", agent: good, hub: side{ours, ours.issued(t, later, x509.ExtKeyUsageServerAuth, nodeSubject, "hub")}, want: ErrServerUntrusted, says: "system:node:node-1"},
		{name: "server of another name", agent: good, hub: server, host: "bub", want: ErrServerUntrusted, says: "--tls-san"},
		{name: "server that is none", agent: good, hub: server, protocol: "h2", want: ErrNotServer, says: "of another version, or an API server answers there: check the address; a hub beside a cluster is on port 8132 by default"},
		{name: "no TLS", agent: good, plain: "220 ready\r\n", want: ErrNotServer, says: "check the port"},
		{name: "router of other names", agent: good, plain: "\x15\x03\x03\x00\x02\x02\x70", want: ErrNotServer, says: "connect by a name that it routes"},
		{name: "HTTP", agent: good, plain: "HTTP/1.1 302 Found\r\n\r\n", want: ErrNotServer, says: "captive portal"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			serve := func(c net.Conn) {
				_, _ = io.WriteString(c, tc.plain)
				_, _ = io.Copy(io.Discard, c)
			}
			if tc.plain == "" {
				conf := auth.ServerTLS(
					func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return tc.hub.cert, nil },
					func() (*x509.CertPool, error) { return tc.hub.ca.Pool(), nil })
				protocol := tc.protocol
				if protocol == "" {
					protocol = "hawser/2"
				}
				withALPN := conf.GetConfigForClient
				conf.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
					c, err := withALPN(h)
					if err == nil {
						c.NextProtos = []string{protocol}
					}
					return c, err
				}
				serve = func(c net.Conn) { _ = tls.Server(c, conf).HandshakeContext(t.Context()) }
			}
			addr := listen(t, serve)
			host := tc.host
			if host == "" {
				host = "hub"
			}
			a, err := New(Config{
				Servers: []string{addr}, NodeName: "node-1",
				Transport: tunnel.Transport{Name: "handshake", Dial: handshake},
				TLS: func(context.Context) (*tls.Config, error) {
					return auth.ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
						return tc.agent.cert, nil
					}, tc.agent.ca.Pool(), host), nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = a.connect(t.Context(), plan{server: addr, sequence: 1})
			var r *Refusal
			switch {
			case tc.want == nil:
				if errors.As(err, &r) {
					t.Errorf("refused: %v", err)
				}
			case !errors.As(err, &r) || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says):
				t.Errorf("got %v, want %v with %q", err, tc.want, tc.says)
			case strings.Contains(err.Error(), "\n"):
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

// listen serves on loopback until the test ends.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// TestRemedyOfFile: the remedies for a node whose certificate is in files name these, and no token, which
// its agent does not take.
func TestRemedyOfFile(t *testing.T) {
	const file = "/etc/kubernetes/kubelet.conf"
	bubble(t, func(t *testing.T, h *servers) {
		h.opinion = func(string) error { return &tunnel.Goodbye{Code: tunnel.Revoked, Text: "revoked"} }
		h.open("a:1")
		a := h.start(Config{Servers: []string{"a:1"}, CertificateFile: file})
		for _, err := range []error{
			&net.OpError{Op: "remote error", Err: tls.AlertError(42)},
			&net.OpError{Op: "remote error", Err: tls.AlertError(45)},
			x509.UnknownAuthorityError{},
			&tunnel.Goodbye{Code: tunnel.Replaced},
			&tunnel.Goodbye{Code: tunnel.Revoked},
		} {
			text := a.diagnose("a:1", err).Error()
			if !strings.Contains(text, file) || strings.Contains(text, "token") || strings.Contains(text, "data directory") {
				t.Errorf("%v: %s", err, text)
			}
		}
		pass(10 * time.Minute)
		if text := a.State().Err.Error(); !strings.Contains(text, file) {
			t.Errorf("an attempt failed with %s", text)
		}
	})
}

// TestCauseOf: if the greeting fails because the session ended by an alert or a goodbye, that is
// reported.
func TestCauseOf(t *testing.T) {
	alert := &net.OpError{Op: "remote error", Err: tls.AlertError(42)}
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &endedSession{ctx: ctx}
	cancel(fmt.Errorf("%w: %w", tunnel.Lost, alert))
	if err := Diagnose("hub:1", causeOf(t.Context(), s, tunnel.Lost)); !errors.Is(err, ErrCertificateRejected) {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	s = &endedSession{ctx: ctx}
	cancel(tunnel.ErrSessionClosed)
	if err := causeOf(t.Context(), s, tunnel.Dead); !errors.Is(err, tunnel.Dead) {
		t.Errorf("got %v, want what the greeting said", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	s = &endedSession{ctx: ctx}
	bye := &tunnel.Goodbye{Code: tunnel.Lost, Text: "both connections must reach the same server"}
	cancel(bye)
	if err := causeOf(t.Context(), s, fmt.Errorf("greet server: %w", syscall.ECONNRESET)); !errors.Is(err, bye) {
		t.Errorf("got %v, want why the server has ended the session", err)
	}
}

type endedSession struct {
	tunnel.Session
	ctx context.Context
}

func (s *endedSession) Context() context.Context { return s.ctx }
