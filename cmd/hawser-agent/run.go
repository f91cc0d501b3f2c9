// The parts of the agent, made and joined: identity, tunnel, runtime, node,
// kubelet API.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/cmd/internal/doorman"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/fence"
	"github.com/hawser-project/hawser/node/kubeletapi"
	"github.com/hawser-project/hawser/node/pods"
	"github.com/hawser-project/hawser/node/reviews"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/process"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

const (
	// gcPercent keeps a small program small: its heap is a few MiB.
	gcPercent = 50
	// kubeletBacklog is how many connections may wait for the kubelet API.
	kubeletBacklog = 64
	// kubeletStrangers is how many connections to it may be there that have shown no
	// certificate yet. The API server's show theirs at once.
	kubeletStrangers = 256
	// underWay is how long the node's API goes on once the servers are told that the agent
	// leaves: dials that they had begun by then still reach it.
	underWay = 500 * time.Millisecond
	// apiTarget is the API server as seen through the tunnel.
	apiTarget = "apiserver:443"
)

// parts are what the agent consists of. Each has a Run that ends with its ctx.
type parts struct {
	link     *agent.Group // nil without a tunnel
	rotation *bootstrap.Rotation
	expiry   *auth.ExpiryWatch
	users    []func(ctx context.Context) error // what else uses the link

	// Those of the built-in kubelet; nil if the kubelet is another's.
	runtime *process.Runtime
	node    *node.Node
	kubelet *kubeletapi.Server
	streams net.Listener // of the kubelet API

	api   *apiclient.API
	conns *node.Connections // of api
	// suspect has the next connections to the API server made through another server.
	suspect func()
	fence   *fence.Fence // up while the server prefers another agent of this identity
}

// run is the node's life until ctx is done. Pods go on after it.
func run(ctx context.Context, o *options, log *slog.Logger) error {
	debug.SetGCPercent(gcPercent)
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // what libraries narrate is told by our own lines
	cfg, err := joinConfig(o, log)
	if err != nil {
		return err
	}
	unlock, err := setup.TakeDataDir(o.dataDir, "agent.lock")
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	defer unlock()
	if o.standalone {
		return runStandalone(ctx, o, &cfg, log)
	}
	id, err := joinMeanwhile(ctx, o, cfg, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	p, err := assemble(ctx, o, id, log)
	if err != nil {
		return err
	}
	return p.run(ctx)
}

// run runs everything until ctx is done or a part fails. Servers are told of that first, so
// that they have new dials wait for the agent's next process. The node and its API, which use
// the runtime and the link, end before those do.
func (p *parts) run(ctx context.Context) error {
	below, stopBelow := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBelow()
	group, ctx := errgroup.WithContext(ctx)
	told := ctx
	if p.link != nil {
		group.Go(func() error { return p.linkUp(ctx) })
		told = later(ctx, underWay)
	}
	if p.runtime != nil {
		group.Go(func() error { return p.runtime.Run(below) })
	}
	group.Go(func() error {
		defer stopBelow()
		upper, upperCtx := errgroup.WithContext(told)
		for _, part := range append(p.users, p.rotation.Run, p.expiry.Run) {
			upper.Go(func() error { return part(upperCtx) })
		}
		err := upper.Wait()
		p.conns.Close() // the link is drained once nothing is open on it
		return err
	})
	return group.Wait()
}

// linkUp runs the link until ctx is done, once the pods of the agent's process before this one
// are known: dials into them may have waited for this one.
func (p *parts) linkUp(ctx context.Context) error {
	if p.node != nil {
		select {
		case <-p.node.Pods().Recalled():
		case <-ctx.Done():
			return nil
		}
	}
	return p.link.Run(ctx)
}

// later is done when ctx has been done for so long.
func later(ctx context.Context, d time.Duration) context.Context {
	after, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return after
}

// assemble makes the parts and tells each what it needs of the others. It starts
// nothing.
func assemble(ctx context.Context, o *options, id *bootstrap.Identity, log *slog.Logger) (*parts, error) {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewBuildInfoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p := &parts{fence: &fence.Fence{}}
	dial, err := p.connect(o, id, metrics, log)
	if err != nil {
		return nil, err
	}
	api := o.apiConfig(func() *tls.Config { return id.ClientTLS(id.APIServerName()) }, dial)
	if p.link != nil {
		api.Answered, api.Failed = p.link.Answered, p.link.Failed
	}
	if p.api, p.conns, err = node.NewAPI(api); err != nil {
		return nil, err
	}
	if o.builtin() {
		if err = p.makeNode(o, metrics, log); err != nil {
			return nil, err
		}
	}
	var addresses func() []netip.Addr
	if o.servingAddresses {
		addresses = p.node.Addresses
	}
	if p.rotation, err = bootstrap.NewRotation(bootstrap.RotationConfig{
		Identity: id, Requests: p.api.CSRs, NotServing: !o.builtin(), Addresses: addresses, FollowTunnel: p.link != nil,
		ConfigMaps: p.api.ConfigMaps(metav1.NamespaceSystem), TrustChanged: p.conns.Renew, Renewed: p.renewed, Follow: o.trustRefresh, Log: log,
	}); err != nil {
		return nil, err
	}
	registerLives(metrics, p.rotation)
	p.expiry = auth.NewExpiryWatch(log, append(authorities(p.rotation),
		auth.Expiring{Name: "client", Now: p.rotation.Client}, auth.Expiring{Name: "serving", Now: p.rotation.Serving})...)
	if o.kubeletAddr.IsValid() {
		w := &kubeletWatch{addr: o.kubeletAddr.String(), dial: new(net.Dialer).DialContext, authorities: p.rotation.KubeletCAs, log: log}
		p.users = append(p.users, w.run)
	}
	// Last: from here on there is something to close.
	if o.builtin() {
		if err = p.openKubelet(ctx, o, id, metrics, log); err != nil {
			return nil, err
		}
	}
	return p, p.openAPI(ctx, o, log)
}

// makeNode makes the node and its runtime.
func (p *parts) makeNode(o *options, metrics prometheus.Registerer, log *slog.Logger) (err error) {
	hide := slices.Concat(setup.Around(o.dataDir), o.hidePaths, o.hidden(), o.hiddenSecrets())
	if p.runtime, err = process.New(process.Config{
		DataDir:     filepath.Join(o.dataDir, "runtime"),
		Version:     kubeletVersion,
		Hide:        hide,
		Reserved:    o.reservedForOthers(),
		LogMaxBytes: o.containerLogSize,
		LogMaxFiles: o.containerLogs,
		Log:         log,
	}); err != nil {
		return err
	}
	if o.gatedOff {
		log.Warn("a shutdown of the machine does not wait for pods: --" + featureGates + " turns that off")
	}
	p.node, err = node.New(node.Config{
		Name: o.nodeName, API: p.api, Runtime: p.runtime, DataDir: o.dataDir, Version: kubeletVersion,
		CloseConnections: p.unanswered, Fence: p.fence,
		NoRegister: !o.register, Labels: o.nodeLabels, Taints: o.nodeTaints,
		Unschedulable: !o.schedulable, ExternalCloud: o.cloud == externalCloud, ProviderID: o.providerID,
		Annotations: o.annotations(), KubeletPort: int32(o.kubeletPort),
		IPs: o.ips, MaxPods: o.maxPods, MaxImages: &o.maxImages, Reserved: o.reserved, Thresholds: o.thresholds,
		StatusUpdate: o.statusUpdate, StatusReport: o.statusReport, LeaseDuration: time.Duration(o.leaseSeconds) * time.Second,
		Pods: pods.Config{
			APIServer: o.apiServer(), VolumeRefresh: o.volumeRefresh, Patience: max(o.offlinePatience, 1), PodMaxPIDs: max(o.podMaxPIDs, 0), SeccompDefault: o.seccompDefault,
			Retention: &o.retention, Hide: hide, Answers: p.runtime.Answers,
		},
		ManifestPath: o.manifests, ManifestPeriod: o.manifestsPeriod,
		Shutdown:   o.phases,
		Registerer: metrics, Log: log,
	})
	return err
}

// openKubelet makes the kubelet API, for the connections of p.streams or, without a
// tunnel, of a port of its own.
func (p *parts) openKubelet(ctx context.Context, o *options, id *bootstrap.Identity, metrics *prometheus.Registry, log *slog.Logger) error {
	door, err := doorman.New(doorman.Config{Server: "kubelet", Limit: kubeletStrangers, Log: log, Metrics: metrics})
	if err != nil {
		return err
	}
	if p.kubelet, err = kubeletapi.New(kubeletapi.Config{
		NodeName: o.nodeName, Pods: p.node.Pods(), Runtime: p.runtime, TLS: p.rotation.ServerTLS(), ClientCAs: id.ClientCAs,
		Wrap: door.Handler, Seen: doorman.Seen,
		Authorize: reviews.New(reviews.Config{
			NodeName: o.nodeName, Tokens: p.api.TokenReviews, Access: p.api.AccessReviews,
		}).Authorize,
		Gatherer: metrics, DataDir: o.dataDir, Log: log,
	}); err != nil {
		return err
	}
	if p.streams == nil {
		if p.streams, err = listenAt(ctx, "--kubelet-port", hostPort("127.0.0.1", o.kubeletPort)); err != nil {
			return err
		}
	}
	p.streams = door.Listener(p.streams)
	p.users = append(p.users, p.node.Run, func(ctx context.Context) error { return p.kubelet.Serve(ctx, p.streams) })
	return nil
}

// openAPI opens the port that leads to the API server, if there is to be one.
func (p *parts) openAPI(ctx context.Context, o *options, log *slog.Logger) error {
	if o.apiListen == "" {
		return nil
	}
	l, err := listenAt(ctx, "--apiserver-listen", o.apiListen)
	if err != nil {
		return err
	}
	port := func(l net.Listener) *apiPort {
		return &apiPort{listener: l, dial: p.link.DialContext, suspect: p.link.Suspect, log: log}
	}
	p.users = append(p.users, port(l).run)
	if o.apiNets != "" {
		pods := &podNets{dir: o.apiNets, addr: o.apiListen, log: log, port: func(l net.Listener) *apiPort {
			of := port(l)
			of.pod, of.dial = true, p.link.DialSpare
			return of
		}}
		p.users = append(p.users, pods.run)
	}
	return nil
}

// apiServer is the address of the API server for programs in pods; empty if there is none.
func (o *options) apiServer() string {
	if o.standalone {
		return ""
	}
	return o.addrs[0]
}

// apiConfig is the client of the API server. Its errors name the first server as it was given,
// whatever the name in the certificate is that conf looks for.
func (o *options) apiConfig(conf func() *tls.Config, dial func(ctx context.Context, network, addr string) (net.Conn, error)) node.APIConfig {
	return node.APIConfig{Host: o.apiServer(), TLS: conf, Dial: dial, UserAgent: "kubelet/" + kubeletVersion}
}

// reservedForOthers is what the runtime keeps from containers.
func (o *options) reservedForOthers() runtime.Resources {
	pids := o.reserved["pid"]
	return runtime.Resources{
		MemoryBytes: o.reserved.Memory().Value(), CPUMilli: o.reserved.Cpu().MilliValue(), PIDs: pids.Value(),
	}
}

// connect makes the tunnel, if there is to be one, and what connects to the API server.
func (p *parts) connect(o *options, id *bootstrap.Identity, metrics prometheus.Registerer, log *slog.Logger) (func(ctx context.Context, network, addr string) (net.Conn, error), error) {
	if s := proxied(o.addrs); s != "" {
		log.Info("going through a proxy", "servers", s)
	}
	if o.transport == setup.SSH {
		d := &directDialer{servers: o.addrs, dial: agent.NewDial(proxyFor, false)}
		p.suspect = d.Suspect
		return d.DialContext, nil
	}
	c := agent.Config{
		Servers:         o.addrs,
		NodeName:        o.nodeName,
		Transport:       transports()[o.transport],
		Link:            o.link,
		TLS:             func(ctx context.Context) (*tls.Config, error) { return p.tunnelTLS(ctx, id, log), nil },
		Roots:           id.TunnelRoots,
		CertificateFile: o.certificateFile(),
		Proxy:           proxyFor,
		Allow:           o.targets,
		Moved:           p.moved,
		Fenced:          p.fenced,
		Revoked:         func(began time.Time) { p.rotation.Reject(began) },
		Rejected:        func(began time.Time) { p.rotation.Refused(began) },
		Version:         kubeletVersion,
		Log:             log,
		Metrics:         metrics,
	}
	if o.builtin() {
		streams := memnet.NewHandoff(nodeAddr(o.nodeName), kubeletBacklog)
		p.streams = streams
		c.Kubelet, c.Addresses, c.Declared, c.DialDeclared = streams, p.addresses, p.declared, p.dialDeclared
	} else {
		c.KubeletAddr, c.Addresses = o.kubeletAddr, func() []netip.Addr { return machineAddresses(o.ips) }
	}
	var err error
	if p.link, err = agent.NewGroup(c, o.serverCount); err != nil {
		return nil, err
	}
	p.suspect = p.link.Suspect
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return p.link.DialContext(ctx, "tcp", apiTarget)
	}, nil
}

// fenced fences the node, and ends that. Then a session has begun with its certificate.
func (p *parts) fenced(up bool) {
	p.fence.Set(up)
	if !up {
		p.rotation.Admitted()
	}
}

// registerLives shows how long the certificates of the node are still good for, by
// the names of Kubernetes.
func registerLives(to prometheus.Registerer, r *bootstrap.Rotation) {
	left := func(cert *x509.Certificate) float64 {
		if cert == nil {
			return math.Inf(1) // as the kubelet says that it has none
		}
		return time.Until(cert.NotAfter).Seconds()
	}
	to.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_client_ttl_seconds", Help: "Seconds until the node's client certificate expires, negative once it has.",
	}, func() float64 { return left(r.Client()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_server_ttl_seconds", Help: "Seconds until the serving certificate of the kubelet API expires, +Inf if there is none.",
	}, func() float64 { return left(r.Serving()) }))
	for _, a := range authorities(r) {
		to.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: auth.ExpirationMetric, Help: auth.ExpirationHelp, ConstLabels: prometheus.Labels{"name": a.Name},
		}, a.Ends))
	}
}

// authorities are those that the node goes by.
func authorities(r *bootstrap.Rotation) []auth.Expiring {
	return []auth.Expiring{{Name: "ca", Now: r.ServerCA}, {Name: "client-ca", Now: r.ClientCA}}
}

// unanswered reacts to requests that fail repeatedly: later ones use new connections, through
// another server if there is one.
func (p *parts) unanswered() {
	if p.suspect != nil { // a machine that has not joined has no server
		p.suspect()
	}
	p.conns.Close()
}

// moved reacts to the link's move to another session. Connections that are stuck
// on the older one are given up, so that heartbeats go on at once; any others end
// when the requests on them have.
func (p *parts) moved(stuck bool) {
	if stuck {
		p.conns.Close()
	} else {
		p.conns.Renew()
	}
}

// renewed reacts to another client certificate: later requests are made with it.
func (p *parts) renewed() {
	if p.link != nil {
		p.link.Renewed()
	}
	p.conns.Close()
}

// addresses are the node's own, at which its kubelet API is found as well.
func (p *parts) addresses() []netip.Addr {
	var all []netip.Addr
	for _, text := range p.node.IPs() {
		if ip, err := netip.ParseAddr(text); err == nil {
			all = append(all, ip)
		}
	}
	return all
}

// declared tells whether a running pod declares a port at its address. Pods of the
// process runtime have the node's own addresses.
func (p *parts) declared(addr netip.AddrPort) bool { return p.node.Pods().Declares(addr) }

// dialDeclared connects to such a port, if its pod listens there.
func (p *parts) dialDeclared(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	c, err := p.node.Pods().DialDeclared(ctx, addr)
	if errors.Is(err, runtime.ErrForeignPort) {
		return nil, &tunnel.DialError{Addr: addr.String(), Code: tunnel.Denied, Text: err.Error()}
	}
	return c, err
}

// nodeAddr is what the kubelet API's listener is called: it has no port.
type nodeAddr string

func (nodeAddr) Network() string  { return "tunnel" }
func (a nodeAddr) String() string { return hostPort(string(a), node.KubeletPort) }

// hostPort is net.JoinHostPort for a number.
func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
