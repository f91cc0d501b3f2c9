// Tests with TLS, a multiplexer and loopback.

package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// dock accepts sessions on loopback and passes them on. It welcomes all of them and answers
// every dial with api.
func dock(t *testing.T, ca *authority, api func(net.Conn)) (addr string, sessions <-chan tunnel.Session) {
	t.Helper()
	return dockNamed(t, ca, "", api)
}

// dockNamed is dock of a server with a name.
func dockNamed(t *testing.T, ca *authority, name string, api func(net.Conn)) (addr string, sessions <-chan tunnel.Session) {
	t.Helper()
	cert := ca.serving(t, time.Now().Add(time.Hour))
	raw, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := qmux.Listen(raw, tunnel.Options{Link: tunnel.LinkOptions{Server: name}, TLS: auth.ServerTLS(
		func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
		func() (*x509.CertPool, error) { return ca.Pool(), nil })})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan tunnel.Session, 1)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		err := ln.Serve(ctx, func(ctx context.Context, s tunnel.Session) {
			g, err := tunnel.Await(ctx, s)
			if err != nil {
				t.Error(err)
				return
			}
			c := g.Control(tunnel.Welcome{Session: 1, Meta: tunnel.Meta{serverKey: name}})
			if err := c.Welcome(ctx); err != nil {
				if ctx.Err() == nil { // else the test is over
					t.Error(err)
				}
				return
			}
			var serving sync.WaitGroup
			defer serving.Wait()
			serving.Go(func() {
				_ = tunneltest.ServeRequests(ctx, s, func(_ context.Context, r *tunnel.Request) { // ends with the session
					if st, err := r.Accept(); err == nil {
						api(st)
					}
				})
			})
			serving.Go(func() {
				select {
				case <-c.Draining():
					_ = c.HangUp(&tunnel.Goodbye{Code: tunnel.Draining, Text: "the agent has left"}) // the agent's end is what is tested
				case <-s.Context().Done():
				}
			})
			out <- s
			_ = c.Run(ctx, nil) // the agent's end is what is tested
			_ = s.Close()
		})
		if err != nil {
			t.Error(err)
		}
	})
	return raw.Addr().String(), out
}

func wireConfig(addr string, ca *authority, cert *tls.Certificate) Config {
	return Config{
		Servers: []string{addr}, NodeName: "node-1", Transport: qmux.Transport(),
		TLS: func(context.Context) (*tls.Config, error) {
			return auth.ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }, ca.Pool(), "hub"), nil
		},
	}
}

// running is an agent that runs until the test ends.
func running(t *testing.T, conf Config) *Agent {
	t.Helper()
	a, err := New(conf)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestOverTheWire(t *testing.T) {
	ca := newAuthority(t)
	addr, sessions := dock(t, ca, echo)
	kubelet := memnet.NewHandoff(tunnel.Addr("node-1:10250"), 4)
	api := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
	}
	conf := wireConfig(addr, ca, ca.leaf(t, time.Now().Add(time.Hour)))
	conf.Kubelet = kubelet
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() { _ = api.Serve(kubelet) }) // always fails, once it is closed
	t.Cleanup(func() { _ = api.Close() })
	a := running(t, conf)

	session := <-sessions
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return tunnel.Connect(ctx, session, network, addr)
		},
	}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://node-1:10250/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "ok" {
		t.Errorf("kubelet API says %q, %v", body, err)
	}

	c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
	if err != nil {
		t.Fatal(err)
	}
	exchangeText(t, c)
	if err := a.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRejectedOverTheWire: the server's alert arrives after the agent's part of the
// handshake, through the multiplexer, and is still reported as such. The reset that follows
// may overtake it, so that a single attempt may get only a broken pipe; several in a row
// may not.
func TestRejectedOverTheWire(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	addr, _ := dock(t, ca, echo)
	for name, cert := range map[string]*tls.Certificate{
		"of another authority": other.leaf(t, time.Now().Add(time.Hour)),
		"expired":              ca.leaf(t, time.Now().Add(-time.Hour)),
		"none":                 new(tls.Certificate),
	} {
		t.Run(name, func(t *testing.T) {
			a, err := New(wireConfig(addr, ca, cert))
			if err != nil {
				t.Fatal(err)
			}
			for n := uint64(1); ; n++ {
				_, err = a.connect(t.Context(), plan{server: addr, sequence: n})
				if errors.Is(err, ErrCertificateRejected) {
					return
				}
				if !errors.Is(err, tunnel.Lost) || n == 20 {
					t.Fatalf("attempt %d: %v, want %v", n, err, ErrCertificateRejected)
				}
			}
		})
	}
}

// A balancer has several servers behind one address.
type balancer struct {
	mu    sync.Mutex // guards the following
	to    string     // the server that connections reach
	conns map[string][]net.Conn
}

func (b *balancer) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, err := new(net.Dialer).DialContext(ctx, network, b.to)
	if err == nil {
		b.conns[b.to] = append(b.conns[b.to], c)
	}
	return c, err
}

// lead has connections reach a server from now on.
func (b *balancer) lead(to string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = to
}

// cut closes the connections with a server.
func (b *balancer) cut(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns[server] {
		_ = c.Close() // it is lost
	}
	b.conns[server] = nil
}

// A load balancer leads an agent that has lost its connection to another server: the agent has a
// session with that one soon, and the streams of the old session go on once a connection reaches
// the old server.
func TestBehindABalancer(t *testing.T) {
	ca := newAuthority(t)
	one, atOne := dockNamed(t, ca, "one", echo)
	two, atTwo := dockNamed(t, ca, "two", echo)
	b := &balancer{to: one, conns: map[string][]net.Conn{}}
	conf := wireConfig("hub:6443", ca, ca.leaf(t, time.Now().Add(time.Hour)))
	conf.Dial = b.dial
	a := running(t, conf)
	first := <-atOne
	c, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
	if err != nil {
		t.Fatal(err)
	}
	say(t, c, "before")
	b.lead(two)
	b.cut(one)
	began := time.Now()
	<-atTwo
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a session with the other server came after %v", took)
	}
	d, err := a.DialContext(t.Context(), "tcp", "apiserver:443")
	if err != nil {
		t.Fatal(err)
	}
	say(t, d, "through the other")
	b.lead(one)
	say(t, c, "after")
	if l := first.Link(); l.Resumes != 1 {
		t.Errorf("%+v", l)
	}
	select {
	case <-atOne:
		t.Error("there is one more session")
	case <-atTwo:
		t.Error("there is one more session")
	case <-time.After(2 * checkEvery):
	}
	say(t, d, "still through the other")
}
