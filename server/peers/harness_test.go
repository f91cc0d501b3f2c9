// The harness: servers on loopback with TLS, and minimal agents.

package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/qmux"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fleet is the servers of one cluster.
type fleet struct {
	tb             testing.TB
	under          network
	clients, names *pkitest.Authority // of client and of serving certificates
	servers        map[string]*testServer
}

// A network is what connects servers and agents: loopback, or one in memory.
type network struct {
	listen func(id string) (net.Listener, error)
	agents func(ctx context.Context, network, addr string) (net.Conn, error)
	peers  func(ctx context.Context, network, addr string) (net.Conn, error)
}

func loopback() network {
	dial := new(net.Dialer).DialContext
	return network{func(string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }, dial, dial}
}

// A testServer is one of them.
type testServer struct {
	fleet    *fleet
	id, addr string
	hub      *server.Hub
	peers    *Peers
	registry *prometheus.Registry
	says     atomic.Pointer[Evictions] // nil if it does not decide about evictions
	stop     func()                    // drains; once
	wire     *wire
}

// A wire has the connections of a server, to cut them.
type wire struct {
	net.Listener
	under network
	mu    sync.Mutex // guards the following
	cut   bool
	conns []net.Conn
}

func (w *wire) add(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	w.conns = append(w.conns, c)
	return c, nil
}

func (w *wire) Accept() (net.Conn, error) { return w.add(w.Listener.Accept()) }

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return w.add(w.under.peers(ctx, network, addr))
}

// kill closes the connections as the kernel does for a killed process.
func (s *testServer) kill() {
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	s.wire.cut = true
	_ = s.wire.Close()
	for _, c := range s.wire.conns {
		_ = tunnel.Abort(c)
	}
}

// newFleet starts servers, and returns once each has a session with each other.
func newFleet(tb testing.TB, ids ...string) *fleet {
	tb.Helper()
	return newFleetOn(tb, loopback(), ids...)
}

func newFleetOn(tb testing.TB, under network, ids ...string) *fleet {
	tb.Helper()
	f := &fleet{tb: tb, under: under, clients: pkitest.New(tb, "clients"), names: pkitest.New(tb, "servers"), servers: make(map[string]*testServer)}
	var all []Peer
	for _, id := range ids {
		s := f.start(id)
		all = append(all, Peer{ID: id, Addr: s.addr})
	}
	for _, s := range f.servers {
		s.peers.Set(all)
	}
	for _, s := range f.servers {
		s.await(func() bool { return len(s.peers.Connected()) == len(ids)-1 })
	}
	return f
}

func (f *fleet) server(names ...string) *tls.Certificate {
	return f.names.Issue(f.tb, &x509.Certificate{DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (f *fleet) client(cn string, orgs ...string) *tls.Certificate {
	return f.clients.Issue(f.tb, &x509.Certificate{Subject: pkix.Name{CommonName: cn, Organization: orgs}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// ends are the options of a session that ends with its connection.
var ends = tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: -1}}

// dial makes a session with the server at addr by cert.
func (f *fleet) dial(ctx context.Context, addr string, cert *tls.Certificate, dial func(context.Context, string, string) (net.Conn, error), o tunnel.Options) (tunnel.Session, error) {
	show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	o.TLS, o.Dial = auth.ClientTLS(show, f.names.Pool(), "kubernetes"), dial
	return qmux.Dial(ctx, addr, o)
}

func (f *fleet) start(id string) *testServer {
	f.tb.Helper()
	ln, err := f.under.listen(id)
	if err != nil {
		f.tb.Fatal(err)
	}
	s := &testServer{fleet: f, id: id, addr: ln.Addr().String(), wire: &wire{Listener: ln, under: f.under}, registry: prometheus.NewRegistry()}
	f.servers[id] = s
	log := slog.New(slog.NewTextHandler(f.tb.Output(), nil)).With("at", id)
	own := f.client(auth.ServerUserPrefix+id, auth.ServersGroup)
	s.peers, err = New(Config{
		ID: id, Hub: func() *server.Hub { return s.hub }, Log: log, Metrics: s.registry,
		Evictions: func() Evictions {
			if e := s.says.Load(); e != nil {
				return *e
			}
			return Evictions{}
		},
		Dial: func(ctx context.Context, p Peer, resumes bool) (tunnel.Session, error) {
			o := tunnel.Options{MaxStreams: MaxStreams}
			if !resumes {
				o.Link.DetachWindow = -1
			}
			return f.dial(ctx, p.Addr, own, s.wire.dial, o)
		},
	})
	if err != nil {
		f.tb.Fatal(err)
	}
	serving := f.server("kubernetes")
	links, err := qmux.Listen(s.wire, tunnel.Options{TLS: auth.ServerTLS(
		func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return serving, nil },
		func() (*x509.CertPool, error) { return f.clients.Pool(), nil },
	), Link: tunnel.LinkOptions{Resume: s.peers.MayResume}})
	if err != nil {
		f.tb.Fatal(err)
	}
	if s.hub, err = server.New(server.Config{
		Listeners: []tunnel.Listener{s.peers.Listener(links)}, Elsewhere: s.peers.Dial,
		Metrics: s.registry, Log: log, ParkedPatience: -1,
	}); err != nil {
		f.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.tb.Context()))
	pctx, pcancel := context.WithCancel(context.WithoutCancel(f.tb.Context()))
	var hub, group sync.WaitGroup
	hub.Go(func() { _ = s.hub.Run(ctx) }) // fails when it is killed
	group.Go(func() { _ = s.peers.Run(pctx) })
	s.stop = sync.OnceFunc(func() { cancel(); hub.Wait(); pcancel(); group.Wait() })
	f.tb.Cleanup(s.stop)
	return s
}

// await waits until ok, which is about this server's state.
func (s *testServer) await(ok func() bool) {
	s.fleet.tb.Helper()
	limit := time.After(time.Minute)
	for {
		here, there := s.hub.Changed(), s.peers.Changed()
		if ok() {
			return
		}
		select {
		case <-here:
		case <-there:
		case <-limit:
			s.fleet.tb.Fatalf("server %s waits in vain: it has sessions with %v", s.id, s.peers.Connected())
		}
	}
}

// knows waits until the server knows n others with a session of the node.
func (s *testServer) knows(node string, n int) {
	s.fleet.tb.Helper()
	s.await(func() bool { return len(s.peers.owners(node)) == n })
}

// join connects an agent whose streams are served by serve.
func (s *testServer) join(node string, serve func(context.Context, *tunnel.Request)) {
	s.fleet.tb.Helper()
	if _, err := s.joinAs(node, 1, serve); err != nil {
		s.fleet.tb.Fatal(err)
	}
	s.await(func() bool { _, ok := s.hub.Session(node); return ok })
}

// joinAs connects an agent with an instance of its own, and returns a channel for the reason
// of its session's end.
func (s *testServer) joinAs(node string, instance uint64, serve func(context.Context, *tunnel.Request)) (<-chan error, error) {
	s.fleet.tb.Helper()
	_, ended, err := s.greetAs(node, instance, serve)
	return ended, err
}

// greetAs is joinAs that returns the agent's control, too.
func (s *testServer) greetAs(node string, instance uint64, serve func(context.Context, *tunnel.Request)) (*tunnel.Control, <-chan error, error) {
	s.fleet.tb.Helper()
	f := s.fleet
	session, err := f.dial(f.tb.Context(), s.addr, f.client(auth.NodeUserPrefix+node, auth.NodesGroup), f.under.agents, ends)
	if err != nil {
		f.tb.Fatal(err)
	}
	control, _, err := tunnel.Greet(f.tb.Context(), session, tunnel.Hello{Node: node, Instance: instance, Sequence: 1})
	if err != nil {
		_ = session.Close()
		return nil, nil, err
	}
	ended := make(chan error, 1)
	life := context.WithoutCancel(f.tb.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		ended <- control.Run(life, nil)
		_ = session.Close()
	})
	wg.Go(func() { _ = tunneltest.ServeRequests(life, session, serve) })
	f.tb.Cleanup(func() { _ = session.Close(); wg.Wait() })
	return control, ended, nil
}

// echo accepts every stream, sends its address, and then sends back what it reads.
func echo(_ context.Context, r *tunnel.Request) {
	st, err := r.Accept()
	if err != nil {
		return
	}
	_, _ = io.WriteString(st, r.Addr+"\n") // the dialer gets it
	if _, err := io.Copy(st, st); err != nil {
		_ = tunnel.Abort(st)
		return
	}
	_ = st.Close()
}

// open dials with a timeout.
func (s *testServer) open(addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.fleet.tb.Context(), 10*time.Second)
	defer cancel()
	return s.hub.DialContext(ctx, "tcp", addr)
}

// ask dials, sends ahoy and returns the answer.
func (s *testServer) ask(addr string) (string, error) {
	c, err := s.open(addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err = io.WriteString(c, "ahoy"); err == nil {
		err = tunnel.CloseWrite(c)
	}
	if err != nil {
		return "", err
	}
	got, err := io.ReadAll(c)
	return string(got), err
}

// metric is the sum of a metric's values.
func (s *testServer) metric(name string) float64 {
	s.fleet.tb.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.fleet.tb.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// newImpostor is the address of a server with a node's certificate.
func newImpostor(t *testing.T, f *fleet) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	shown := f.names.Issue(t, &x509.Certificate{ // even if the servers' authority had signed it
		Subject: pkix.Name{CommonName: auth.NodeUserPrefix + "n", Organization: []string{auth.NodesGroup}}, DNSNames: []string{"kubernetes"},
	})
	l, err := qmux.Listen(ln, tunnel.Options{TLS: auth.ServerTLS(
		func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown, nil },
		func() (*x509.CertPool, error) { return f.clients.Pool(), nil },
	)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Serve(ctx, func(_ context.Context, s tunnel.Session) { _ = s.Close() }) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return ln.Addr().String()
}
