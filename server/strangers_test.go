package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/overyamux"
)

// A crowdedPort is a port on a network in memory, with the tunnel behind it.
type crowdedPort struct {
	*Port
	t     *testing.T
	ca    *authority
	links tunnel.Listener
	conns chan net.Conn
	over  chan struct{}
	close func() // once

	mu  sync.Mutex // guards log
	log bytes.Buffer
}

func (p *crowdedPort) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *crowdedPort) lines() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *crowdedPort) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}
func (p *crowdedPort) Close() error   { p.close(); return nil }
func (p *crowdedPort) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 99), Port: 6443} }

// from is a connection from 10.0.0.b.
func (p *crowdedPort) from(b byte) net.Conn {
	far, near := memnet.Pipe(&net.TCPAddr{IP: net.IPv4(10, 0, 0, b), Port: 1}, p.Addr())
	select {
	case p.conns <- near:
	case <-p.over:
	}
	p.t.Cleanup(func() { _ = far.Close() })
	return far
}

// crowd serves until the test is over.
func crowd(t *testing.T) *crowdedPort {
	t.Helper()
	p := &crowdedPort{t: t, ca: newAuthority(t), conns: make(chan net.Conn), over: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.over) })
	log := slog.New(slog.NewTextHandler(p, nil))
	var err error
	if p.Port, err = NewPort(PortConfig{Listener: p, Protocols: []string{overyamux.ALPN}, Log: log}); err != nil {
		t.Fatal(err)
	}
	conf := auth.ServerTLS(certificate(p.ca.server()), p.ca.authorities)
	links, err := overyamux.Listen(p.Tunnel(overyamux.ALPN), tunnel.Options{TLS: conf, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	hub, err := New(Config{Listeners: []tunnel.Listener{links}, DrainTimeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	p.links = links
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{p.Run, hub.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return p
}

// client is the TLS configuration of an agent with that certificate.
func (p *crowdedPort) client(cert *tls.Certificate) *tls.Config {
	conf := auth.ClientTLS(showing(cert), p.ca.Pool(), "apiserver")
	conf.NextProtos = []string{overyamux.ALPN}
	return conf
}

// Ten thousand silent connections from one address, or connections that stop after their
// ClientHello to the tunnel, replace each other: agents are still admitted.
func TestTenThousandSlowHandshakes(t *testing.T) {
	const slow = 10_000
	began := time.Now()
	p := crowd(t)
	before, first := runtime.NumGoroutine(), hello(t, overyamux.ALPN)
	agent := p.ca.client("system:node:node-1", "system:nodes")
	for i := range slow {
		c := p.from(1)
		if i%20 == 0 { // the server answers, which takes a while
			_, _ = c.Write(first)
		}
		if i%2500 == 2499 {
			near := tls.Client(p.from(2), p.client(agent))
			_ = near.SetDeadline(time.Now().Add(time.Minute))
			if err := near.HandshakeContext(t.Context()); err != nil {
				t.Errorf("after %d slow ones an agent gets %v", i+1, err)
			}
			_ = near.Close()
		}
	}
	const limit = defaultMaxPeeking
	closed := p.closed.WithLabelValues("crowded")
	for int(testutil.ToFloat64(closed)) < slow-slow/20-limit-4 {
		if t.Context().Err() != nil || time.Since(began) > 5*time.Minute {
			t.Fatalf("%v are closed", testutil.ToFloat64(closed))
		}
		runtime.Gosched()
	}
	if inside := p.pending.Count(); inside > limit {
		t.Errorf("%d peek", inside)
	}
	if n := p.links.Handshakes().Underway; n > 1024 {
		t.Errorf("%d handshakes are under way", n)
	}
	// One for each peeked connection, two for each handshake.
	if n := runtime.NumGoroutine() - before; n > limit+2*slow/20+100 {
		t.Errorf("%d goroutines", n)
	}
	// A few lines about each address, for as many minutes as this takes.
	if n, most := strings.Count(p.lines(), "addr=10.0.0.1:"), 2*(1+int(time.Since(began)/time.Minute)); n > most {
		t.Errorf("%d lines:\n%s", n, p.lines())
	}
}

// A connection with an absurd certificate is closed and counted, and the next client is
// served.
func TestAbsurdCertificates(t *testing.T) {
	p := crowd(t)
	good := p.ca.client("system:node:node-1", "system:nodes")
	many := *good
	for len(many.Certificate) < 10<<20/len(good.Certificate[0]) {
		many.Certificate = append(many.Certificate, good.Certificate[0])
	}
	broken := *good
	broken.Certificate = [][]byte{append([]byte{0x30, 0x84, 0xff, 0xff, 0xff, 0xff}, good.Certificate[0]...)}
	names := &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:node-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for i := range 5000 {
		names.DNSNames = append(names.DNSNames, fmt.Sprintf("node-%d.example.com", i))
	}
	for name, cert := range map[string]*tls.Certificate{
		"a chain of 10 MiB": &many, "broken DER": &broken, "thousands of names": newAuthority(t).Issue(t, names), "for servers": p.ca.server(),
	} {
		t.Run(name, func(t *testing.T) {
			before := p.links.Handshakes()
			raw := p.from(1)
			_ = raw.SetDeadline(time.Now().Add(time.Minute))
			c := tls.Client(raw, p.client(cert))
			_ = c.HandshakeContext(t.Context()) // with TLS 1.3 it may be over before the server has looked
			_, err := io.Copy(io.Discard, c)
			if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // of package net itself
				t.Errorf("the connection is open: %v", err)
			}
			over := func(h tunnel.Handshakes) uint64 { return h.Failed + h.Done }
			for over(p.links.Handshakes()) == over(before) {
				if t.Context().Err() != nil {
					t.Fatal("not counted")
				}
				runtime.Gosched()
			}
			if n := p.links.Handshakes().Failed - before.Failed; n != 1 {
				t.Errorf("%d counted", n)
			}
		})
	}
	c := tls.Client(p.from(1), p.client(good))
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Errorf("an honest agent: %v", err)
	}
	if n := strings.Count(p.lines(), "handshake failed"); n != 1 {
		t.Errorf("%d lines:\n%s", n, p.lines())
	}
}
