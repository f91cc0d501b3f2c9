// Tests of what the hub asks the keeper of names: over real sockets, with real agents.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A realm is what a server has again when it is restarted: its authorities and the
// records of names.
type realm struct {
	t     *testing.T
	keys  *pki.PKI
	api   *fake.Clientset
	asked chan struct{} // holds one once the hub has asked for a node
}

func newRealm(t *testing.T) *realm {
	t.Helper()
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(t.TempDir(), "pki"), Names: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	return &realm{t: t, keys: keys, api: fake.NewClientset(), asked: make(chan struct{}, 1)}
}

// server makes a server at addr, which serves nothing yet.
func (c *realm) server(addr string) *tunnels {
	t := c.t
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	s := &tunnels{log: slog.New(slog.DiscardHandler), names: &identities{}, ssh: &sshNodes{}}
	var err error
	s.listener, err = listen(t.Context(), "test", addr)
	must(err)
	s.port, err = server.NewPort(server.PortConfig{Listener: s.listener, Protocols: []string{qmux.ALPN, overyamux.ALPN, overh2.ALPN}, Older: true})
	must(err)
	pair, err := new(auth.Files).KeyPair(c.keys.Path(pki.APIServer, false), c.keys.Path(pki.APIServer, true))
	must(err)
	cas, err := new(auth.Files).Authorities(c.keys.Path(pki.ClientCA, false))
	must(err)
	links, err := s.listen(t.Context(), tunnel.Options{TLS: cas.ServerTLS(pair.GetCertificate), Link: tunnel.LinkOptions{
		Resume: func(p tunnel.Peer) error { return s.hub.MayResume(p) },
	}})
	must(err)
	s.hub, err = server.New(server.Config{Listeners: links, DrainTimeout: -1, Beyond: s.ssh.beyond, Admit: func(ctx context.Context, node string, p tunnel.Peer) error {
		select {
		case c.asked <- struct{}{}:
		default:
		}
		return s.names.admitSession(ctx, node, p)
	}})
	must(err)
	return s
}

// start runs s. It follows the records once follow is closed. stop has it vanish, over
// UDP without a word.
func (c *realm) start(s *tunnels, follow <-chan struct{}) (stop func()) {
	f := informers.NewSharedInformerFactory(c.api, 0)
	if err := s.keep(c.api, f.Core().V1().Nodes().Informer(), false); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	var (
		wg   sync.WaitGroup
		gone atomic.Bool
	)
	wg.Go(func() {
		select {
		case <-follow:
		case <-ctx.Done():
			return
		}
		f.Start(ctx.Done())
		if err := s.names.keeper.Run(ctx); err != nil {
			c.t.Errorf("keep: %v", err)
		}
	})
	wg.Go(func() {
		if err := s.run(ctx, ctx); err != nil && !gone.Load() {
			c.t.Errorf("run: %v", err)
		}
	})
	return sync.OnceFunc(func() {
		gone.Store(true)
		_ = s.packets.Close()
		cancel()
		wg.Wait()
		f.Shutdown()
	})
}

// node issues the certificate of a node, whose key takes the name.
func (c *realm) node(name string) *tls.Certificate {
	c.t.Helper()
	ca := pkitest.Load(c.t, c.keys.Path(pki.ClientCA, false), c.keys.Path(pki.ClientCA, true))
	cert := ca.Issue(c.t, pkitest.NodeClient(name))
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err == nil {
		err = nodekeys.NewBook(c.api).Claim(c.t.Context(), name, nodekeys.KeyOf(leaf), "")
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return cert
}

// agent runs an agent of node n until the test is over. The channel has what it logs as
// an error.
func (c *realm) agent(addr string, tr tunnel.Transport, cert *tls.Certificate) (*agent.Agent, <-chan string) {
	c.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(c.keys.CACert())
	said := make(chan string, 100)
	a, err := agent.New(agent.Config{
		Servers: []string{addr}, NodeName: "n", Transport: tr, MaxBackoff: time.Second,
		TLS: func(context.Context) (*tls.Config, error) {
			return auth.ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }, pool, "localhost"), nil
		},
		Link: tunnel.LinkOptions{Keepalive: time.Second}, Log: slog.New(slog.NewTextHandler(lines(said), &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Run(ctx); err != nil {
			c.t.Errorf("agent: %v", err)
		}
	})
	c.t.Cleanup(func() { cancel(); wg.Wait() })
	return a, said
}

// lines takes what is written, as long as there is room.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

// A node that is revoked while no server runs is not let in by the next one, not even
// before that follows the records; nor does the session go on that it had. Its agent is
// told why.
func TestRevokedWhileNobodyFollowed(t *testing.T) {
	atOnce := make(chan struct{})
	close(atOnce)
	for _, tr := range []tunnel.Transport{qmux.Transport(), overyamux.Transport(), overh2.Transport(), overquic.Transport()} {
		t.Run(tr.Name, func(t *testing.T) {
			c := newRealm(t)
			cert := c.node("n")
			first := c.server("127.0.0.1:0")
			stop := c.start(first, atOnce)
			t.Cleanup(stop)
			addr := first.listener.Addr().String()
			to, vanish, appear := addr, func() {}, func() {}
			if tr.Name != "quic" { // where the server's socket is gone before it could say that it leaves
				relay := tunneltest.NewRelay(t, addr)
				to = relay.Addr()
				vanish = func() { relay.Stall(true) }
				appear = func() { relay.Cut(); relay.Stall(false) }
			}
			a, said := c.agent(to, tr, cert)
			if err := first.hub.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			vanish()
			stop()
			if _, err := nodekeys.NewBook(c.api).Revoke(t.Context(), "n", "admin", "it was stolen"); err != nil {
				t.Fatal(err)
			}
			for len(c.asked) > 0 {
				<-c.asked
			}
			follow := make(chan struct{})
			second := c.server(addr)
			defer c.start(second, follow)()
			appear()
			<-c.asked
			if s := second.hub.Sessions(); len(s) > 0 {
				t.Errorf("it was let in before anybody could know: %+v", s)
			}
			close(follow)
			for line := range said { // errors before that are of a server that was not there
				if strings.Contains(line, "it was stolen") && strings.Contains(line, "hawser node allow") {
					break
				}
			}
			if st := a.State(); !errors.Is(st.Err, agent.ErrRevoked) || !st.Fenced {
				t.Errorf("the agent was told %v; fenced: %t", st.Err, st.Fenced)
			}
			o, _ := second.hub.Observe("n")
			if len(o.Changes) != 1 || o.Cause != server.Refused || !strings.Contains(o.Err, "it was stolen") {
				t.Errorf("what became of it: %+v", o)
			}
		})
	}
}
