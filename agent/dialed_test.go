// Tests of addresses that take connections and do not answer.

package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A wireNet is a network in memory with one server, which speaks TLS.
type wireNet struct {
	t       *testing.T
	tr      tunnel.Transport
	client  *tls.Config
	server  *memnet.Handoff
	hosts   map[string][]string
	silent  string        // an address that takes connections and does not answer; a proxy answers CONNECT
	proxy   string        // an HTTP proxy; empty means none
	connect time.Duration // how long it takes to connect
	hold    time.Duration // how long what the server writes first is on its way
	group   sync.WaitGroup
}

// newWireNet starts the server. Its goroutines end with the bubble's test.
func newWireNet(t *testing.T, tr tunnel.Transport, server, client *tls.Config) *wireNet {
	t.Helper()
	n := &wireNet{t: t, tr: tr, client: client, server: memnet.NewHandoff(memnet.Addr("hub"), 16)}
	l, err := tr.Listen(n.server, tunnel.Options{TLS: server})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	n.group.Go(func() {
		_ = l.Serve(ctx, func(ctx context.Context, s tunnel.Session) { // ends with the test
			if g, err := tunnel.Await(ctx, s); err == nil {
				c := g.Control(tunnel.Welcome{Session: 1})
				_ = c.Welcome(ctx) // the agent's end is what is tested
				_ = c.Run(ctx, nil)
			}
			_ = s.Close()
		})
	})
	t.Cleanup(func() { cancel(); n.group.Wait() })
	return n
}

func (n *wireNet) dial(_ context.Context, _, addr string) (net.Conn, error) {
	<-time.After(n.connect)
	near, far := memnet.Pipe(memnet.Addr("node"), net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
	n.group.Go(func() {
		in := bufio.NewReader(far)
		if n.proxy != "" {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\n\r\n") // the agent may have hung up
		}
		if addr == n.silent {
			_, _ = io.Copy(io.Discard, in)
			return
		}
		out, inner := memnet.Pipe(memnet.Addr("way"), memnet.Addr("hub"))
		if n.server.Inject(n.t.Context(), inner) != nil {
			return
		}
		n.group.Go(func() {
			<-time.After(n.hold)
			_, _ = io.Copy(far, out)
			_ = far.Close()
		})
		_, _ = io.Copy(out, in)
		_ = out.Close()
	})
	return near, nil
}

// agent is one that uses the network.
func (n *wireNet) agent() *Agent {
	n.t.Helper()
	c := Config{Servers: []string{"hub:443"}, NodeName: "node-1", Transport: n.tr, TLS: func(context.Context) (*tls.Config, error) { return n.client, nil }}
	if n.proxy != "" {
		c.Proxy = func(string) (*url.URL, error) { return &url.URL{Scheme: "http", Host: n.proxy}, nil }
	}
	a, err := New(c)
	if err != nil {
		n.t.Fatal(err)
	}
	a.dialer = (&fakeNet{hosts: n.hosts}).dialer()
	a.dialer.one, a.dialer.small, a.dialer.proxy = n.dial, n.dial, c.Proxy
	return a
}

// wireBubble calls f in a bubble with a network, whose server speaks tr.
func wireBubble(t *testing.T, tr tunnel.Transport, f func(t *testing.T, n *wireNet)) {
	t.Helper()
	server, client := tunneltest.TLS(t), tunneltest.TLS(t)
	client.ServerName = "server"
	synctest.Test(t, func(t *testing.T) { f(t, newWireNet(t, tr, server, client)) })
}

// TestSilentAddress: an address that takes connections and does not answer, or a proxy that does
// not pass on, is named, and left for the next address of its name. Each transport has a process
// of its own: the libraries recycle timers and channels, which belong to one bubble.
func TestSilentAddress(t *testing.T) {
	for _, tr := range []tunnel.Transport{overyamux.Transport(), overh2.Transport(), qmux.Transport()} {
		switch os.Getenv("HAWSER_TEST_ALONE") {
		case "":
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
			child.Env = append(os.Environ(), "HAWSER_TEST_ALONE="+tr.Name)
			if out, err := child.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", tr.Name, err, out)
			}
		case tr.Name:
			wireBubble(t, tr, testSilentAddresses)
		}
	}
}

func testSilentAddresses(t *testing.T, n *wireNet) {
	for _, tt := range []struct {
		name          string // that has two addresses
		silent, proxy string
		want          string // in the error
	}{
		{"hub", "10.0.0.1:443", "", "connect to hub:443: 10.0.0.1:443 accepts connections and does not answer"},
		{"proxy", "10.0.0.1:3128", "proxy:3128", "connect to hub:443: proxy proxy:3128 at 10.0.0.1:3128 accepts CONNECT hub:443, and then there is no answer"},
	} {
		n.hosts, n.silent, n.proxy = map[string][]string{tt.name: {"10.0.0.1", "10.0.0.2"}}, tt.silent, tt.proxy
		a, began := n.agent(), time.Now()
		_, err := a.connect(t.Context(), plan{server: "hub:443", sequence: 1})
		if err == nil || !strings.Contains(err.Error(), tt.want) || tunnel.CodeOf(err) != tunnel.Timeout {
			t.Errorf("got %v, want %q", err, tt.want)
		}
		l, err := a.connect(t.Context(), plan{server: "hub:443", sequence: 2})
		if err != nil {
			t.Error(err)
			continue
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("a session only after %v", took)
		}
		_ = l.session.Close()
	}
}

// TestOnlySilentAddress: the only address of a name has the whole attempt to answer, and is named
// if it does not.
func TestOnlySilentAddress(t *testing.T) {
	wireBubble(t, qmux.Transport(), func(t *testing.T, n *wireNet) {
		n.hosts, n.silent = map[string][]string{"hub": {"10.0.0.1"}}, "10.0.0.1:443"
		a, began := n.agent(), time.Now()
		_, err := a.connect(t.Context(), plan{server: "hub:443", sequence: 1})
		if want := "10.0.0.1:443 accepts connections and does not answer"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if took := time.Since(began); took != connectTimeout {
			t.Errorf("given up after %v", took)
		}
	})
}

// TestSlowAddress: where packets take 1.5 seconds and the first of the handshake is lost once, the
// first attempt succeeds.
func TestSlowAddress(t *testing.T) {
	wireBubble(t, qmux.Transport(), func(t *testing.T, n *wireNet) {
		n.hosts, n.connect, n.hold = map[string][]string{"hub": {"10.0.0.1", "10.0.0.2"}}, 3*time.Second, 12*time.Second
		l, err := n.agent().connect(t.Context(), plan{server: "hub:443", sequence: 1})
		if err != nil {
			t.Fatal(err)
		}
		_ = l.session.Close()
	})
}

// TestCanceledHandshake: an address is not put after the others because a handshake with it was
// canceled.
func TestCanceledHandshake(t *testing.T) {
	wireBubble(t, qmux.Transport(), func(t *testing.T, n *wireNet) {
		n.hosts, n.silent = map[string][]string{"hub": {"10.0.0.1", "10.0.0.2"}}, "10.0.0.1:443"
		a := n.agent()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := a.connect(ctx, plan{server: "hub:443", sequence: 1}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if first := a.dialer.known["hub"][0].String(); first != "10.0.0.1" {
			t.Errorf("%s comes first", first)
		}
	})
}
