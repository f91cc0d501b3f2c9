// The server's side of the tunnel: one port shared with the API server, the hub
// behind it, the front ends, and routes by the nodes' addresses.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/cmd/internal/doorman"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/statuspage"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/balance"
	"github.com/hawser-project/hawser/server/relay"
	"github.com/hawser-project/hawser/server/streamlog"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// tunnels are all that has to do with connections to nodes.
type tunnels struct {
	port     *server.Port
	door     *doorman.Doorman // of the API server, unless that is another process's
	hub      *server.Hub
	peers    *peering       // nil if there are no other servers
	listener net.Listener   // of the port
	packets  net.PacketConn // of the same number, for QUIC
	fronts   []front
	balancer *balance.Balancer // nil if the server listens for no Services
	ssh      *sshNodes         // which keep no tunnel
	names    *identities
	routes   *routePolicy
	through  *throughNodes
	services *serviceObjects // nil if their names mean nothing; set before run
	relay    *relay.Relay    // to the API server, if that is another process's
	drain    *drain
	page     *statuspage.Page
	streams  *streamlog.Log // nil if nobody wants to know
	traces   *traces        // nil if nobody wants to know
	metrics  prometheus.Registerer
	log      *slog.Logger
}

// A keyring is what the ports show, and whom they believe.
type keyring struct {
	agents  *tls.Config // of the tunnel: believes the authorities of nodes
	clients *tls.Config // of the front ends: believes those of their clients
}

// ownKeys are those of a server that has an API server.
func ownKeys(keys *pki.PKI, files *auth.Files) (*keyring, error) {
	pair, err := files.KeyPair(keys.Path(pki.APIServer, false), keys.Path(pki.APIServer, true))
	if err != nil {
		return nil, err
	}
	cas, err := files.Authorities(keys.Path(pki.ClientCA, false))
	if err != nil {
		return nil, err
	}
	return &keyring{cas.ServerTLS(pair.GetCertificate), cas.ServerTLS(pair.GetCertificate)}, nil
}

// newTunnels opens the ports. t has what the tunnels are made from: log, metrics, streams
// and traces, peers, and relay if that is to be where connections go that are not the
// tunnel's.
// It serves nothing before run; close gives back what was opened if it never comes to
// that.
func newTunnels(ctx context.Context, o *serverOptions, keys *keyring, t *tunnels) (_ *tunnels, err error) {
	t.names = &identities{}
	if t.ssh, err = newSSHNodes(&o.ssh, t.names.admitName, t.metrics, t.log); err != nil {
		return nil, err
	}
	if t.routes, err = newRoutePolicy(o, t.metrics, t.log); err != nil {
		return nil, err
	}
	t.through = newThroughNodes(&o.through)
	if t.listener, err = listen(ctx, "--secure-port", o.listenAddress(o.securePort)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if err = t.openPort(); err != nil {
		return nil, err
	}
	options := tunnel.Options{TLS: keys.agents, Link: o.link, Log: t.log}
	options.Link.Resume = func(p tunnel.Peer) error { return t.peers.mayResume(t.hub, p) }
	options.Link.Server = t.peers.name()
	links, err := t.listen(ctx, options)
	if err != nil {
		return nil, err
	}
	if t.hub, err = server.New(server.Config{
		Listeners:  links,
		Admit:      t.names.admitSession,
		Elsewhere:  t.peers.elsewhere(),
		Through:    t.through.to,
		Beyond:     t.ssh.beyond,
		BeyondName: setup.SSH,
		Ended:      t.ended(),
		Dialed:     t.traces.dialed(),
		API:        t.toAPI(),
		TakeBack:   o.takeBack,
		Version:    setup.Version(),

		DrainTimeout: o.shutdown.grace,
		Log:          t.log,
		Metrics:      t.metrics,
	}); err != nil {
		return nil, err
	}
	if err = t.openBalancer(o); err != nil {
		return nil, err
	}
	return t, t.openFronts(ctx, o, keys)
}

// openPort tells the tunnel on the listener from all else.
func (t *tunnels) openPort() (err error) {
	if t.port, err = server.NewPort(server.PortConfig{
		Listener: t.listener, Protocols: []string{qmux.ALPN, overyamux.ALPN, overh2.ALPN}, Older: true, Log: t.log,
		Metrics: t.metrics,
	}); err != nil || t.relay != nil {
		return err
	}
	t.door, err = doorman.New(doorman.Config{Server: "api", Log: t.log, Metrics: t.metrics})
	return err
}

// toAPI is where streams go that agents open to the API server.
func (t *tunnels) toAPI() func(context.Context, net.Conn) error {
	if t.relay != nil {
		return t.relay.Inject
	}
	return t.port.API().Inject
}

// listen makes the hub's listeners, one for each transport: qmux, yamux and HTTP/2
// on the port, which tells them apart by ALPN, and QUIC on the UDP port of the same
// number.
func (t *tunnels) listen(ctx context.Context, o tunnel.Options) ([]tunnel.Listener, error) {
	engine, err := qmux.Listen(t.port.Tunnel(qmux.ALPN), o)
	if err != nil {
		return nil, err
	}
	yamux, err := overyamux.Listen(t.port.Tunnel(overyamux.ALPN), o)
	if err != nil {
		return nil, err
	}
	h2, err := overh2.Listen(t.port.Tunnel(overh2.ALPN), o)
	if err != nil {
		return nil, err
	}
	addr := t.listener.Addr().String()
	t.packets, err = new(net.ListenConfig).ListenPacket(ctx, "udp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("--secure-port: UDP %s is in use by another process: stop that one first or choose another port", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("--secure-port: UDP: %w", err)
	}
	quic, err := overquic.ListenPacket(t.packets, o)
	if err != nil {
		return nil, err
	}
	older, err := server.NewOlder(t.port.Older(), apiVersion+", build "+setup.Version(), o)
	if err != nil {
		return nil, err
	}
	return []tunnel.Listener{t.peers.listener(engine), yamux, h2, quic, older}, nil
}

// close gives back the ports.
func (t *tunnels) close() error {
	var errs []error
	for _, f := range t.fronts {
		errs = append(errs, f.listener.Close())
	}
	if t.packets != nil {
		errs = append(errs, t.packets.Close())
	}
	return errors.Join(append(errs, t.listener.Close())...)
}

// apiListener yields the connections that are for the API server.
func (t *tunnels) apiListener() net.Listener { return t.door.Listener(t.port.API()) }

// run serves until ctx is done, and takes connections until taking is.
func (t *tunnels) run(ctx, taking context.Context) error {
	defer t.record(ctx)()
	group, ctx := errgroup.WithContext(ctx)
	beyond, stop := context.WithCancel(context.WithoutCancel(ctx)) // outlives the hub, which drains
	group.Go(func() error { return t.ssh.run(beyond) })
	if t.relay != nil {
		group.Go(func() error { return t.relay.Run(beyond, t.port.API()) })
	}
	group.Go(func() error { return t.peers.run(beyond) })
	group.Go(func() error { return t.port.Run(ctx) })
	group.Go(func() error {
		defer stop()
		return t.runUsers(ctx, taking)
	})
	return group.Wait()
}

// runUsers runs the hub, and what takes connections for it.
func (t *tunnels) runUsers(ctx, taking context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	taking, refuse := context.WithCancel(taking)
	defer refuse()
	defer context.AfterFunc(ctx, refuse)()
	defer context.AfterFunc(taking, t.port.Refuse)()
	group.Go(func() error { return t.hub.Run(ctx) })
	for _, f := range t.fronts {
		group.Go(func() error { return f.server.Serve(taking, f.listener) })
	}
	if t.balancer != nil {
		group.Go(func() error { return t.balancer.Run(taking) })
	}
	return group.Wait()
}

// follow keeps the hub's routes those of the Node objects: a dial to an address
// that one node has goes to that node. What makes no route is told by events until ctx is done.
func (t *tunnels) follow(ctx context.Context, client kubernetes.Interface, nodes cache.SharedIndexInformer) error {
	t.routes.record(ctx, client)
	set := func(o any) {
		if n, ok := o.(*corev1.Node); ok {
			t.hub.SetRoutes(n.Name, t.routes.of(n)...)
			t.through.set(n)
			t.ssh.set(n)
		}
	}
	_, err := nodes.AddEventHandler(loop.Guard(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, o any) { set(o) },
		DeleteFunc: func(o any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				t.hub.SetRoutes(name)
				t.through.remove(name)
				t.routes.forget(name)
				t.ssh.remove(name)
				t.hub.Forget(name)
			}
		},
	}))
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	return nil
}

// routed is a transform for the informers whose nodes follow, keep and the status page are
// given: it drops what these do not look at, which is most of a Node.
func routed(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		s := &n.Status
		n.Status = corev1.NodeStatus{Addresses: s.Addresses, Conditions: s.Conditions, DaemonEndpoints: s.DaemonEndpoints}
	}
	return loop.WithoutManagers(o)
}
