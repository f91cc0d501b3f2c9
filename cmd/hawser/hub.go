// hawser server --kubeconfig: the hub and its controllers, beside a cluster whose API
// server is another process's.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane"
	"github.com/hawser-project/hawser/server/relay"
)

// A hubBeside is what runs beside another API server.
type hubBeside struct {
	o       *serverOptions
	client  *clientrest.Config
	api     kubernetes.Interface
	keys    *pki.PKI
	files   *auth.Files
	metrics prometheus.Registerer
	log     *slog.Logger

	shown       *auth.KeyPair // the serving certificate
	clients     *clusterClients
	tunnels     *tunnels
	nodes       informers.SharedInformerFactory
	controllers *controlplane.ControlPlane
	serverNames *auth.ServerNames
	trouble     *trouble
	published   *publisher // nil if the certificate is somebody else's
	renewal     *renewal
	ends        *auth.ExpiryWatch
	health      *health
	ready       chan struct{} // closed once all of it serves
	stopping    chan struct{} // closed once it has been told to stop
}

// runBeside serves until ctx is done. Nothing of it is left when it returns.
func runBeside(ctx context.Context, o *serverOptions, metrics prometheus.Registerer, log *slog.Logger) error {
	client, err := o.beside.client()
	if err != nil {
		return err
	}
	o.beside.tellOpen(client, log)
	drain, unlock, err := takeDataDir(ctx, o)
	if err != nil {
		return err
	}
	defer unlock()
	h := &hubBeside{
		o: o, client: client, files: &auth.Files{Log: log}, metrics: metrics, log: log, ready: make(chan struct{}), stopping: make(chan struct{}),
	}
	if h.trouble, err = newTrouble(o, client, log); err != nil {
		return err
	}
	if h.api, err = h.trouble.newClient(client); err != nil {
		return err
	}
	if h.keys, err = pki.Ensure(pki.Config{Dir: filepath.Join(o.dataDir, "pki"), Names: o.servingNames(), IPs: o.servingIPs(), HubOnly: true, Log: log}); err != nil {
		return err
	}
	streams, closeStreams, err := openStreams(&o.streams, log)
	if err != nil {
		return err
	}
	defer closeStreams()
	traces, err := o.tracing.open(ctx)
	if err != nil {
		return err
	}
	t := &tunnels{streams: streams, traces: traces, drain: drain, metrics: metrics, log: log}
	if t.peers, err = newPeering(o, h.keys, h.files, t); err != nil {
		return err
	}
	if err = h.open(ctx, t); err != nil {
		return err
	}
	if err = h.join(ctx); err != nil {
		return errors.Join(err, h.tunnels.close())
	}
	ctx, end := h.delayed(ctx)
	defer end()
	return h.run(ctx)
}

// delayed is done --shutdown-delay-duration after ctx: until then all goes on, but /readyz
// fails, so that load balancers turn to other hubs. The caller calls end.
func (h *hubBeside) delayed(ctx context.Context) (_ context.Context, end func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		close(h.stopping)
		select {
		case <-time.After(h.o.shutdown.delay):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// open opens the ports of the tunnels.
func (h *hubBeside) open(ctx context.Context, t *tunnels) error {
	var err error
	if h.clients, err = newClusterClients(h.api); err != nil {
		return err
	}
	keys, err := h.keyring(t.peers.trust)
	if err != nil {
		return err
	}
	url, _, err := clientrest.DefaultServerUrlFor(h.client)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	port := url.Port()
	if port == "" {
		port = "443"
	}
	if t.relay, err = relay.New(relay.Config{Addr: net.JoinHostPort(url.Hostname(), port), Log: h.log, Metrics: h.metrics}); err != nil {
		return err
	}
	h.tunnels, err = newTunnels(ctx, h.o, keys, t)
	return err
}

// keyring is what the ports show and whom they believe: agents by the cluster's authority,
// or by another that was named, other hubs by theirs, and clients of the front ends by
// the hub's own, or by another as well.
func (h *hubBeside) keyring(hubs *peerTrust) (*keyring, error) {
	toHubs, err := h.files.KeyPair(h.keys.Path(pki.Hub, false), h.keys.Path(pki.Hub, true))
	if err != nil {
		return nil, err
	}
	h.shown = toHubs
	if h.o.beside.cert != "" {
		if h.shown, err = h.files.KeyPair(h.o.beside.cert, h.o.beside.key); err != nil {
			return nil, err
		}
	}
	pool := h.clients.Pool
	for _, file := range []string{h.o.beside.clientCA, h.o.beside.agentCA} {
		if file == "" {
			continue
		}
		list, fault := h.files.Bundle(file)
		if fault != nil {
			return nil, fault
		}
		pool = filePool(list)
	}
	clients, file := h.files.Authorities, h.keys.Path(pki.ClientCA, false)
	if h.o.beside.connectCA != "" {
		clients, file = h.files.Bundle, h.o.beside.connectCA
	}
	fronts, err := clients(file)
	if err != nil {
		return nil, err
	}
	show := h.shown.GetCertificate
	return &keyring{hubs.listener(auth.ServerTLS(show, pool), toHubs), fronts.ServerTLS(show)}, nil
}

// join makes all that has to do with the cluster. It starts nothing.
func (h *hubBeside) join(ctx context.Context) error {
	h.nodes = informers.NewSharedInformerFactoryWithOptions(h.api, 0, informers.WithTransform(routed))
	nodes := h.nodes.Core().V1().Nodes().Informer()
	if err := h.tunnels.follow(ctx, h.api, nodes); err != nil {
		return err
	}
	h.tunnels.page = newPage(h.o, h.tunnels)
	if err := errors.Join(h.tunnels.keep(h.api, nodes, true), h.tunnels.page.Use(nodes)); err != nil {
		return err
	}
	authority, err := h.files.Authorities(h.keys.Path(pki.CA, false))
	if err != nil {
		return err
	}
	if h.o.beside.cert == "" {
		h.published = newPublisher(h.api, authority, h.log)
	}
	if h.controllers, err = h.newControllers(); err != nil {
		return err
	}
	if err = h.watchCertificates(); err != nil {
		return err
	}
	h.health, err = newHealth(ctx, h)
	return err
}

// newControllers makes those that were asked for.
func (h *hubBeside) newControllers() (*controlplane.ControlPlane, error) {
	c, err := h.o.besideConfig(h.client, h.log)
	if err != nil {
		return nil, err
	}
	h.serverNames = c.ServerNames
	c.Files, c.Metrics, c.Log = h.files, h.metrics, h.log
	kubelets, err := h.o.beside.kubelets(h.files)
	if err != nil {
		return nil, err
	}
	c.Tunnel = &controlplane.Tunnel{
		Source: h.tunnels.sessions(), Dial: h.tunnels.own(h.tunnels.hub.DialContext), TLS: kubelets, Started: time.Now(),
		ProbePeriod: h.o.controllers.health.ProbePeriod, Judge: h.o.controllers.judge(), Stranger: h.o.beside.kubeletCert == "", Freezes: h.tunnels.page,
	}
	if c.LoadBalancer = h.tunnels.loadBalancer(h.o); c.LoadBalancer != nil {
		h.tunnels.services = servicesBeside(h.api)
	}
	return controlplane.New(c)
}

// kubeletAuthorities are the files of those that sign kubelets' serving certificates, of which own
// is the cluster's.
func (o *besideOptions) kubeletAuthorities(own string) []string {
	if o.kubeletCA == "" {
		return []string{own}
	}
	return []string{own, o.kubeletCA}
}

// kubelets is how kubelets are asked for their health. The question tells nothing and the
// answer is no secret, so they are verified only if there is an authority to verify them
// by: most kubelets have signed for themselves.
func (o *besideOptions) kubelets(files *auth.Files) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.kubeletCA == ""} //nolint:gosec // see above
	if o.kubeletCA != "" {
		cas, err := files.Bundle(o.kubeletCA)
		if err != nil {
			return nil, fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
		cas.Believe(c)
	}
	if o.kubeletCert != "" {
		pair, err := files.KeyPair(o.kubeletCert, o.kubeletKey)
		if err != nil {
			return nil, fmt.Errorf("--kubelet-client-certificate and --kubelet-client-key: %w", err)
		}
		c.GetClientCertificate = pair.GetClientCertificate
	}
	return c, nil
}

// watchCertificates has the hub's own renewed, and tells when any ends.
func (h *hubBeside) watchCertificates() error {
	var err error
	if h.renewal, err = keepRenewed(h.keys, h.files, []string{pki.CA, pki.ClientCA}, h.log); err != nil {
		return err
	}
	all, err := h.o.beside.certificates(h.files)
	if err != nil {
		return err
	}
	given, err := h.o.beside.given(h.files, h.client)
	if err != nil {
		return err
	}
	all = append(all, given...)
	pairs := map[string][2]string{}
	for _, name := range []string{pki.CA, pki.ClientCA, pki.Hub, pki.ConnectClient} {
		pairs[name] = [2]string{h.keys.Path(name, false), h.keys.Path(name, true)}
	}
	if h.o.beside.cert != "" {
		pairs[pki.Hub] = [2]string{h.o.beside.cert, h.o.beside.key}
	}
	for name, p := range pairs {
		e, err := expiringPair(h.files, name, p[0], p[1])
		if err != nil {
			return err
		}
		all = append(all, e)
	}
	h.ends = watchEnds(all, h.metrics, h.log)
	return nil
}

// run serves until ctx is done.
func (h *hubBeside) run(ctx context.Context) error {
	err := runInOrder(ctx, func(ctx context.Context) error {
		defer h.tunnels.drain.begin(h.tunnels.hub)
		err := h.runUpper(ctx)
		ended := make(chan struct{})
		close(ended)
		h.tunnels.leave(ended)
		return err
	}, func(ctx context.Context) error { return h.tunnels.run(ctx, ctx) }, h.runNames)
	return errors.Join(err, h.tunnels.drain.end(h.log))
}

// runInOrder runs upper until ctx is done or one of the three fails, the tunnels until upper has
// ended, since they outlive what goes through them, and names until the tunnels have.
func runInOrder(ctx context.Context, upper, tunnels, names func(context.Context) error) error {
	above := context.WithoutCancel(ctx)
	middle, stop := context.WithCancel(above)
	defer stop()
	below, forget := context.WithCancel(above)
	defer forget()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		return upper(ctx)
	})
	group.Go(func() error {
		defer forget()
		return tunnels(middle)
	})
	group.Go(func() error { return names(below) })
	return group.Wait()
}

func (h *hubBeside) runUpper(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.ends.Run(ctx) })
	group.Go(func() error { return h.files.Run(ctx) })
	group.Go(func() error { return h.renewal.run(ctx) })
	group.Go(func() error { return h.clients.run(ctx) })
	group.Go(func() error { return h.health.run(ctx) })
	group.Go(func() error { return h.tunnels.page.Run(ctx) })
	group.Go(func() error { return h.tunnels.peers.register(ctx, h.api) })
	if h.published != nil {
		group.Go(func() error { return h.published.run(ctx) })
	}
	group.Go(func() error { return h.trouble.run(ctx, h.serverNames) })
	group.Go(func() error { return h.runControllers(ctx) })
	group.Go(func() error {
		for _, ready := range []<-chan struct{}{h.tunnels.names.keeper.Ready(), h.knowsAgents(), h.controllers.Ready()} {
			select {
			case <-ready:
			case <-ctx.Done():
				return nil
			}
		}
		close(h.ready)
		h.log.Info("ready", "address", h.o.localURL(), "health", h.health.listener.Addr().String(), "cluster", h.client.Host, "version", apiVersion)
		return nil
	})
	return group.Wait()
}

// runControllers runs them once the API server has shown its names and nobody else has
// the identity by which they stand for election.
func (h *hubBeside) runControllers(ctx context.Context) error {
	select {
	case <-h.trouble.known:
	case <-ctx.Done():
		return nil
	}
	if !h.tunnels.peers.isAlone(ctx) {
		return nil
	}
	return h.controllers.Run(ctx)
}

// runNames follows the Nodes, and who has which name.
func (h *hubBeside) runNames(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	h.nodes.Start(ctx.Done())
	defer h.nodes.Shutdown()
	defer cancel()
	return h.tunnels.names.keeper.Run(ctx)
}

// besideConfig is what the controllers are made from, without what they share with the
// rest of the process.
func (o *serverOptions) besideConfig(client *clientrest.Config, log *slog.Logger) (controlplane.Config, error) {
	c, err := o.controllers.config(o.dataDir)
	if err != nil {
		return c, err
	}
	c.Client, c.Signer.CertFile, c.Signer.KeyFile = client, o.beside.signingCert, o.beside.signingKey
	c.Signer.ServingCertFile, c.Signer.ServingKeyFile = o.beside.servingCert, o.beside.servingKey
	if o.beside.signingCert == "" && controlplane.Selected(c.Enabled, signer) {
		c.Enabled = append(c.Enabled[:len(c.Enabled):len(c.Enabled)], "-"+signer)
		log.Info("no certificates are signed here", "reason", "no --cluster-signing-cert-file")
	}
	c.ServerNames, err = o.namesBeside(client)
	return c, err
}
