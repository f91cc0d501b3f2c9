// hawser server: the tunnel hub, the API server and the controllers, joined.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/cmd/internal/doorman"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
	"github.com/hawser-project/hawser/controlplane/apiserver/usage"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

func newServer() *cobra.Command {
	var (
		o      serverOptions
		config setup.Config
	)
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the tunnel hub, the API server and the controllers",
		Long: "Runs the tunnel hub, the API server and the controllers. " +
			"On SIGTERM, and by\nhawser server drain, it hands its work over and ends; a second signal ends it at once.\n\n" + aliasHelp(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := setup.NewLogger(o.logFormat, o.verbosity)
			if o.beside.kubeconfig != "" {
				o.beside.told = new(atomic.Bool)
			}
			bridgeKlog(log, o.beside.told)
			back, err := leadStderr(log)
			if err != nil {
				return err
			}
			defer back()
			stop, err := setup.ShowAtConfigz("hawser-server", cmd.Flags())
			if err != nil {
				return err
			}
			defer stop()
			if o.beside.kubeconfig != "" {
				return runBeside(cmd.Context(), &o, metricsRegisterer(), log)
			}
			return runServer(cmd.Context(), &o, log)
		},
	}
	setup.Section(cmd.Flags(), "A configuration file", config.Add)
	o.addFlags(cmd.Flags())
	config.Use(cmd, o.check)
	setup.UseSections(cmd)
	cmd.AddCommand(newServerDrain())
	return cmd
}

// runServer serves until ctx is done. Nothing of it is left when it returns.
func runServer(ctx context.Context, o *serverOptions, log *slog.Logger) error {
	drain, unlock, err := takeDataDir(ctx, o)
	if err != nil {
		return err
	}
	defer unlock()
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(o.dataDir, "pki"), Names: o.servingNames(), IPs: o.servingIPs(), Log: log})
	if err != nil {
		return err
	}
	auditLog, err := o.audit.log.open()
	if err != nil {
		return err
	}
	defer func() { _ = auditLog.Close() }() // what could not be written has been counted
	streams, closeStreams, err := openStreams(&o.streams, log)
	if err != nil {
		return err
	}
	defer closeStreams()
	traces, err := o.tracing.open(ctx)
	if err != nil {
		return err
	}
	files := &auth.Files{Log: log}
	shown, err := ownKeys(keys, files)
	if err != nil {
		return err
	}
	t := &tunnels{streams: streams, traces: traces, drain: drain, metrics: metricsRegisterer(), log: log}
	if t.peers, err = newPeering(o, keys, files, t); err != nil {
		return err
	}
	if t, err = newTunnels(ctx, o, shown, t); err != nil {
		return err
	}
	p, err := newPlane(ctx, o, keys, files, t, auditLog, log)
	if err != nil {
		return errors.Join(err, t.close())
	}
	defer p.authn.close()
	r, err := newRenewal(o, keys, files, log)
	if err != nil {
		return errors.Join(err, t.close())
	}
	return p.serve(ctx, o, t, r, log)
}

// serve serves until ctx is done. The API server takes requests until the controllers,
// which give their lease back last of all, have ended and agents have moved to other
// servers; then the port takes no more connections. The tunnels outlive the API server,
// which first ends the requests that came through them.
func (p *plane) serve(ctx context.Context, o *serverOptions, t *tunnels, r *renewal, log *slog.Logger) error {
	above := context.WithoutCancel(ctx)
	taking, refuse := context.WithCancel(above)
	defer refuse()
	below, stop := context.WithCancel(above)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.run(below, taking) })
	group.Go(func() error {
		defer stop()
		return o.store.explain(p.api.Run(ctx))
	})
	group.Go(func() error {
		<-p.api.Closed()
		t.drain.begin(t.hub)
		refuse()
		return nil
	})
	group.Go(func() error { return p.runObjects(taking) })
	group.Go(func() error { return t.page.Run(ctx) })
	controlling, stopControllers := context.WithCancel(ctx)
	group.Go(func() error {
		defer close(p.controlled)
		defer stopControllers()
		return p.runControllers(controlling, t.peers)
	})
	group.Go(func() error {
		select {
		case <-p.leaving: // also if the API server has failed: it waits for the controllers
			stopControllers()
		case <-controlling.Done():
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-p.api.Ready():
			return t.peers.register(ctx, p.loopback)
		case <-ctx.Done():
			return nil
		}
	})
	group.Go(func() error { return r.run(ctx) })
	group.Go(func() error { return r.ends.Run(ctx) })
	group.Go(func() error {
		if p.wait(ctx) {
			trimMemory()
			log.Info("ready", "address", o.localURL(), "advertise", o.advertise, "version", apiVersion)
			paceMemory(ctx)
		}
		return nil
	})
	return errors.Join(group.Wait(), t.drain.end(log))
}

// A plane is the API server, the controllers, and what they share.
type plane struct {
	api         *apiserver.Server
	controllers *controlplane.ControlPlane
	loopback    kubernetes.Interface
	shared      informers.SharedInformerFactory // of the authorizer
	names       *nodekeys.Keeper
	authn       *authn
	listed      chan struct{} // closed once the authorizer and names have read the cluster
	leaving     chan struct{} // closed when the API server begins to stop
	controlled  chan struct{} // closed once the controllers have ended
}

func newPlane(ctx context.Context, o *serverOptions, keys *pki.PKI, files *auth.Files, t *tunnels, auditLog io.Writer, log *slog.Logger) (*plane, error) {
	objects := kubeauth.NewObjects()
	authn, err := o.accounts.authenticator(keys, files, objects, t.names, log)
	if err != nil {
		return nil, err
	}
	authz, err := o.access.newAccess(objects, files)
	if err != nil {
		return nil, err
	}
	restriction, err := kubeauth.NodeRestriction(kubeauth.RestrictionConfig{Objects: objects, Metrics: metricsRegisterer(), Log: log})
	if err != nil {
		return nil, err
	}
	toKubelets, kubeletAuthorities, err := kubelet.LoadTLS(files, o.beside.kubeletAuthorities(keys.Path(pki.KubeletCA, false)), keys.Path(pki.KubeletClient, false), keys.Path(pki.KubeletClient, true))
	if err != nil {
		return nil, err
	}
	t.page = newPage(o, t)
	p := &plane{authn: authn, listed: make(chan struct{}), leaving: make(chan struct{}), controlled: make(chan struct{})}
	c := o.apiConfig(keys, t, log)
	c.Files, c.Listed = files, p.listed
	c.Authenticator, c.Tokens = authn, authn.own
	c.Authorizer, c.Rules, c.Admission = authz, authz.rules, authz.admission(restriction, kubeauth.NodeNames(o.ownNames()))
	c.Audit = o.audit.config(auditLog)
	c.Audit.Also = t.page.Audit()
	c.Leave = func() {
		close(p.leaving)
		t.leave(p.controlled)
	}
	c.Stored = func(g apiserver.Getters) {
		t.services = &serviceObjects{service: g.Service, slices: g.EndpointSlices}
		objects.Read(kubeauth.Store{Secret: g.Secret, CertificateSigningRequest: g.CertificateSigningRequest})
	}
	c.Connect = func(g apiserver.Getters) map[string]rest.Storage {
		return kubelet.Storages(throughTunnels(t, g, &o.egress, kubelet.Options{TLS: toKubelets, Authorities: kubeletAuthorities, Authorizer: authz}))
	}
	c.Usage = func(g apiserver.Getters) usage.Source {
		return kubelet.Summaries(throughTunnels(t, g, &o.egress, kubelet.Options{TLS: toKubelets, Authorities: kubeletAuthorities}))
	}
	if p.api, err = apiserver.New(c); err != nil {
		return nil, err
	}
	if err = p.use(ctx, objects, authz, t); err != nil {
		return nil, err
	}
	p.controllers, err = newControllers(o, keys, files, t, toKubelets, log)
	return p, err
}

// apiConfig is what the flags and t say of the API server.
func (o *serverOptions) apiConfig(keys *pki.PKI, t *tunnels, log *slog.Logger) apiserver.Config {
	advertise, _ := netip.AddrFromSlice(o.advertise)
	return apiserver.Config{
		Listener:         t.apiListener(),
		ServingCertFile:  keys.Path(pki.APIServer, false),
		ServingKeyFile:   keys.Path(pki.APIServer, true),
		ClientCAFile:     keys.Path(pki.ClientCA, false),
		KubeletCAFile:    keys.Path(pki.KubeletCA, false),
		ClusterFile:      filepath.Join(o.dataDir, "pki", "cluster"),
		AdvertiseAddress: advertise.Unmap(),
		AdvertisePort:    o.securePort,
		ServiceCIDR:      o.services,
		Etcd:             etcd.Config{Dir: filepath.Join(o.dataDir, "etcd"), Log: log},
		EtcdServers:      o.store.external(&o.egress),
		Encryption:       o.encryption,
		FrontProxy:       o.accounts.frontProxy(),
		Proxy: apiserver.Proxy{
			CertFile: keys.Path(pki.FrontProxyClient, false), KeyFile: keys.Path(pki.FrontProxyClient, true),
			CAFile: keys.Path(pki.FrontProxyCA, false), Name: pki.FrontProxyClientUser,
		},
		Wrap:                         func(next http.Handler) http.Handler { return t.door.Handler(kubeauth.EndRequests(t.names, next)) },
		Seen:                         doorman.Seen,
		Status:                       t.page.Handler(apiserver.StatusPath),
		Traces:                       t.traces.ofAPI(),
		ShutdownDelay:                o.shutdown.delay,
		SendRetryAfter:               o.shutdown.retryAfter,
		DrainTimeout:                 o.shutdown.grace,
		Balances:                     len(o.balancers.addrs) > 0,
		Runs:                         func(name string) bool { return controlplane.Selected(o.controllers.Enabled, name) },
		ToServices:                   t.named("system:apiserver", o.egress.cluster(t.hub.DialContext)),
		ToURLs:                       o.egress.dial(egressselector.ControlPlane),
		EnableGarbageCollector:       o.controllers.CollectGarbage,
		DisabledAdmission:            o.access.disabledPlugins,
		FeatureGates:                 o.gates,
		NotReadyTolerationSeconds:    &o.notReadyToleration,
		UnreachableTolerationSeconds: &o.unreachToleration,
		MaxRequestsInFlight:          o.maxInFlight,
		MaxMutatingRequestsInFlight:  o.maxMutating,
		Log:                          log,
	}
}

// use has the authorizer, the hub and the status page follow the API.
func (p *plane) use(ctx context.Context, objects *kubeauth.Objects, authz *access, t *tunnels) (err error) {
	if p.loopback, err = kubernetes.NewForConfig(clientrest.AddUserAgent(p.api.LoopbackConfig(), "hub")); err != nil {
		return err
	}
	p.shared = informers.NewSharedInformerFactoryWithOptions(p.loopback, 0, informers.WithTransform(routed))
	if err = errors.Join(objects.Use(p.loopback, p.shared), authz.use(p.shared)); err != nil {
		return err
	}
	nodes := p.shared.Core().V1().Nodes().Informer()
	if err = t.follow(ctx, p.loopback, nodes); err != nil {
		return err
	}
	if err = t.page.Use(nodes); err != nil {
		return err
	}
	if err = t.keep(p.loopback, nodes, false); err != nil {
		return err
	}
	p.names = t.names.keeper
	return nil
}

// newControllers makes the controllers of the API server of this process.
func newControllers(o *serverOptions, keys *pki.PKI, files *auth.Files, t *tunnels, toKubelets *tls.Config, log *slog.Logger) (*controlplane.ControlPlane, error) {
	c, err := o.controllers.config(o.dataDir)
	if err != nil {
		return nil, err
	}
	c.Client, c.SchedulerClient = o.identity(keys, pki.ControllerManager), o.identity(keys, pki.Scheduler)
	c.Signer.CertFile, c.Signer.KeyFile = keys.Path(pki.ClientCA, false), keys.Path(pki.ClientCA, true)
	c.Signer.ServingCertFile, c.Signer.ServingKeyFile = keys.Path(pki.KubeletCA, false), keys.Path(pki.KubeletCA, true)
	c.Files, c.ServerNames = files, o.ownNames()
	c.Metrics, c.Log = metricsRegisterer(), log
	c.Tunnel = &controlplane.Tunnel{
		Source: t.sessions(), Dial: t.own(t.hub.DialContext), TLS: toKubelets, Started: time.Now(),
		ProbePeriod: o.controllers.health.ProbePeriod, Judge: o.controllers.judge(), Freezes: t.page,
	}
	c.LoadBalancer = t.loadBalancer(o)
	return controlplane.New(c)
}

// throughTunnels is o for what of the API leads to nodes: logs, exec, proxies, statistics.
func throughTunnels(t *tunnels, g apiserver.Getters, egress *egressOptions, o kubelet.Options) kubelet.Options {
	o.Pods, o.Nodes, o.Services, o.EndpointSlices = g.Pod, g.Node, g.Service, g.EndpointSlices
	o.Dial, o.DialEarly = t.forUser(egress.cluster(t.hub.DialContext)), t.forUser(egress.cluster(t.hub.DialEarly))
	o.OneRequest = t.streams != nil
	return o
}

// metricsRegisterer is the registry that /metrics of the API server shows.
func metricsRegisterer() prometheus.Registerer { return legacyregistry.Registerer() }

// identity is how a part of the control plane reaches the API: over TLS, with a
// certificate of its own, like anybody else.
func (o *serverOptions) identity(keys *pki.PKI, name string) *clientrest.Config {
	return &clientrest.Config{
		Host: o.localURL(),
		TLSClientConfig: clientrest.TLSClientConfig{
			CAFile: keys.Path(pki.CA, false), CertFile: keys.Path(name, false), KeyFile: keys.Path(name, true),
		},
		UserAgent: "kube-" + name,
		// To compress each event of a watch costs more than to send it within this machine.
		DisableCompression: true,
	}
}

// runObjects keeps the authorizer's view of the cluster, and who holds which name.
func (p *plane) runObjects(ctx context.Context) error {
	select {
	case <-p.api.Ready():
	case <-ctx.Done():
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer p.shared.Shutdown()
	p.shared.Start(ctx.Done())
	var wg sync.WaitGroup
	wg.Go(func() {
		p.shared.WaitForCacheSync(ctx.Done())
		select {
		case <-p.names.Ready():
		case <-ctx.Done():
		}
		if ctx.Err() == nil {
			close(p.listed)
		}
	})
	defer wg.Wait()
	defer stop()
	return p.names.Run(ctx)
}

// runControllers runs them once nobody else has the identity by which they stand for
// election.
func (p *plane) runControllers(ctx context.Context, others *peering) error {
	select {
	case <-p.api.Ready():
	case <-ctx.Done():
		return nil
	}
	if !others.isAlone(ctx) {
		return nil
	}
	return p.controllers.Run(ctx)
}

// wait returns true once everything serves, and false when ctx is done before.
func (p *plane) wait(ctx context.Context) bool {
	for _, ready := range []<-chan struct{}{p.api.Ready(), p.controllers.Ready(), p.listed} {
		select {
		case <-ready:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// servingNames and servingIPs are what the serving certificate must name.
func (o *serverOptions) servingNames() []string {
	names := []string{"localhost"}
	if o.beside.kubeconfig != "" {
		names = append(names, peerName)
	} else {
		names = append(names, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	}
	if host, err := os.Hostname(); err == nil && host != "" && net.ParseIP(host) == nil {
		names = append(names, host)
	}
	for _, san := range o.tlsSANs {
		if net.ParseIP(san) == nil {
			names = append(names, san)
		}
	}
	return names
}

// ownNames are all of them, which no node may be called.
func (o *serverOptions) ownNames() *auth.ServerNames {
	names := o.servingNames()
	for _, ip := range o.servingIPs() {
		names = append(names, ip.String())
	}
	return auth.NewServerNames(names...)
}

func (o *serverOptions) servingIPs() []net.IP {
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, o.advertise}
	if o.beside.kubeconfig == "" {
		ips = append(ips, o.services.Addr().Next().AsSlice())
	}
	if !o.bind.IsUnspecified() {
		ips = append(ips, o.bind)
	}
	for _, san := range o.tlsSANs {
		if ip := net.ParseIP(san); ip != nil {
			ips = append(ips, ip)
		}
	}
	return ips
}

// listen opens a port and says what to do when it is taken.
func listen(ctx context.Context, flag, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is in use by another process: stop that one first or choose another port", flag, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return l, nil
}
