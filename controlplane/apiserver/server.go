// The server itself: what it is made of, and in which order that starts and
// stops.

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	basecompat "k8s.io/component-base/compatibility"
	"k8s.io/component-base/configz"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
	"github.com/hawser-project/hawser/controlplane/apiserver/openapi"
	"github.com/hawser-project/hawser/controlplane/etcd"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// shutdownWatches bounds how long a stop waits for watches to end.
const shutdownWatches = 2 * time.Second

// storeCheckTimeout is how long the store may take to answer a health check.
const storeCheckTimeout = 2 * time.Second

// A Server is an API server and, unless it uses another's, the etcd below it.
type Server struct {
	cfg      Config
	authn    authenticator.Request // Config.Authenticator and what is open to all
	authz    authorizer.Authorizer
	listener *listener
	serving  *genericapiserver.SecureServingInfo
	loopback *rest.Config
	auditor  auditor
	files    followed
	underway underway
	ready    chan struct{}
	readyAt  time.Time        // set before ready is closed
	external *clientv3.Client // the store, if other servers may have it too; set by Run

	// node reads a node from the watch cache; set before anything is served.
	node func(ctx context.Context, name string) (*corev1.Node, error)
	// namespace reads one from the store itself; set likewise.
	namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	// limits are a namespace's limit ranges, from the watch cache; set likewise.
	limits func(ctx context.Context, namespace string) ([]corev1.LimitRange, error)
	// hasQuota asks the store whether a namespace has a resource quota; set likewise.
	hasQuota func(ctx context.Context, namespace string) (bool, error)
	// objects are what a service leads to; set likewise.
	objects Getters
	// kinds are those that parameters of policies can have; set likewise.
	kinds *restmapper.DeferredDiscoveryRESTMapper
}

// New checks cfg, and the files that it names. It starts nothing.
func New(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if err := setGates(); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	s := &Server{cfg: cfg, ready: make(chan struct{}), listener: newListener(cfg.Listener)}
	s.authn, s.authz = openToAll(&s.cfg)
	var err error
	if s.files, err = newFollowed(&s.cfg); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	if s.auditor, err = s.cfg.Audit.auditor(s.cfg.Files); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	if err = s.cfg.Encryption.Check(); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	if s.serving, s.loopback, err = serving(s.listener); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	return s, nil
}

// Ready is closed once the server answers and the objects that every cluster has exist, or
// have not been made for some seconds because a webhook or the store refuses them.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Closed is closed once the server takes no more connections.
func (s *Server) Closed() <-chan struct{} { return s.listener.closed }

// LoopbackConfig is how this process talks to its own server: as
// system:apiserver of group system:masters, with no rate limit. It may be taken
// before Run, and works once Run serves.
func (s *Server) LoopbackConfig() *rest.Config { return rest.CopyConfig(s.loopback) }

// Run runs the store and the server until ctx is done. Then /readyz fails, and once
// Config.ShutdownDelay is over and Config.Leave has returned no more requests are taken;
// those under way end, within Config.DrainTimeout if they have no end of their own, both
// stop, and Run returns nil. It returns an error if either fails. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	defer func() { _ = s.listener.Close() }()
	if len(s.cfg.EtcdServers.Servers) > 0 {
		client, err := etcd.Dial(ctx, s.cfg.EtcdServers, s.cfg.Log)
		if err != nil {
			return fmt.Errorf("apiserver: %w", err)
		}
		defer func() { _ = client.Close() }() // nothing is left to lose
		client.Watcher = steadyWatcher{client.Watcher}
		s.external = client
		return s.serve(ctx, client)
	}
	store, err := etcd.New(s.cfg.Etcd)
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	// The store outlives the server: it stops when storeCtx ends, which is after
	// serve has returned.
	storeCtx, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	defer stopStore()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return store.Run(storeCtx) })
	group.Go(func() error {
		defer stopStore()
		select {
		case <-store.Ready():
			return s.serve(ctx, store.Client())
		case <-ctx.Done():
			return nil
		}
	})
	return group.Wait()
}

// serve runs the server on the store that client leads to.
func (s *Server) serve(ctx context.Context, client *clientv3.Client) error {
	scheme, err := newScheme()
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	loopback, err := kubernetes.NewForConfig(s.loopback)
	if err != nil {
		return fmt.Errorf("apiserver: loopback client: %w", err)
	}
	shared := informers.NewSharedInformerFactoryWithOptions(loopback, 0, informers.WithTransform(loop.WithoutManagers))
	served, watching, end := s.lives(ctx, client)
	defer end()
	plugins, err := s.admission(watching, loopback, shared, served.Done())
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	names, err := definitionNames()
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	config := s.genericConfig(codecs, names, client)
	s.share(config, loopback, shared)
	ciphers, closeCiphers, err := s.cfg.Encryption.open(config)
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	defer closeCiphers()
	back := newBackend(ctx, scheme, codecs, client, config.StorageObjectCountTracker, ciphers, &s.cfg)
	defer back.close()
	config.AdmissionControl = plugins
	links, err := s.newChain(&parts{config, names, back, loopback, shared})
	if err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	// The first server owns the others and the stores, and destroys them when it stops.
	first := links.aggregator.GenericAPIServer
	s.shutdown(first)
	prepared := first.PrepareRun()
	links.serveDocuments(config, s.cfg.Log)
	if err := serveOpenID(first.Handler.NonGoRestfulMux, s.cfg.Tokens, s.cfg.ExternalAddress); err != nil {
		first.Destroy()
		return fmt.Errorf("apiserver: %w", err)
	}
	configz.InstallHandler(first.Handler.NonGoRestfulMux) // what the program has registered
	if s.cfg.Status != nil {
		ServeStatus(first.Handler.NonGoRestfulMux, s.cfg.Status)
	}
	s.files.serve(s.serving)
	return s.run(ctx, watching, prepared.RunWithContext, loopback, shared)
}

// newBuiltin makes the server of the kinds, in front of next.
func (s *Server) newBuiltin(p *parts, next genericapiserver.DelegationTarget) (*genericapiserver.GenericAPIServer, error) {
	config, back := p.link(), p.back
	config.RESTOptionsGetter = back
	srv, err := config.Complete(p.shared).New("hawser", next)
	if err != nil {
		return nil, err
	}
	all, err := s.storages(back)
	if err != nil {
		return nil, err
	}
	s.node, s.hasQuota = kinds.RememberedNode(all.Store(corev1.SchemeGroupVersion, "nodes")), storedQuotas(back.client)
	s.objects, s.limits = getters(all), limitRanges(all.Store(corev1.SchemeGroupVersion, "limitranges"))
	if s.cfg.Stored != nil {
		s.cfg.Stored(s.objects)
	}
	s.namespace = kinds.Getter[corev1.Namespace](all.Store(corev1.SchemeGroupVersion, "namespaces"))
	if err := install(all, srv, back.scheme, back.codecs); err != nil {
		all.Destroy()
		return nil, err
	}
	// What server-side apply goes by is made of these; the documents that are
	// served make them again.
	config.OpenAPIV3Config.Definitions = nil
	return srv, nil
}

// run runs the server and what starts with it. The loops that keep the built-in
// objects end first, so that they do not complain about a server that is gone; shared is
// followed until watching is done.
func (s *Server) run(ctx, watching context.Context, serve func(context.Context) error, loopback kubernetes.Interface, shared informers.SharedInformerFactory) error {
	serveCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.cfg.Files.Run(ctx) })
	group.Go(func() error {
		wait.UntilWithContext(ctx, s.kinds.ResetWithContext, s.cfg.BuiltinPeriod)
		return nil
	})
	group.Go(func() error {
		defer shared.Shutdown()
		if err := serve(serveCtx); err != nil {
			return fmt.Errorf("apiserver: %w", err)
		}
		s.underway.drain(s.listener.since().Add(s.cfg.DrainTimeout))
		s.listener.abandon()
		return s.listener.failure()
	})
	group.Go(func() error {
		defer stop()
		if err := s.bootstrap(ctx, watching, loopback, shared); err != nil && ctx.Err() == nil {
			return fmt.Errorf("apiserver: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.listener.failed:
			return s.listener.failure()
		}
	})
	return group.Wait()
}

// genericConfig is the configuration of the generic server, without its store.
func (s *Server) genericConfig(codecs serializer.CodecFactory, names *openapinamer.DefinitionNamer, store *clientv3.Client) *genericapiserver.Config {
	c := genericapiserver.NewConfig(codecs)
	c.SecureServing = s.serving
	c.LoopbackClientConfig = rest.CopyConfig(s.loopback)
	c.EffectiveVersion = newVersion()
	c.ExternalAddress = s.cfg.ExternalAddress
	c.PublicAddress = s.cfg.AdvertiseAddress.AsSlice()
	c.Authentication.Authenticator = s.authn
	c.Authentication.APIAudiences = s.audiences()
	c.Authentication.RequestHeaderConfig = s.cfg.proxyHeaders()
	c.Authorization.Authorizer = throttling(s.authz)
	c.BuildHandlerChainFunc = throttled
	c.LongRunningFunc = longRunning()
	c.AuditPolicyRuleEvaluator, c.AuditBackend = s.auditor.rules, s.auditor.backend
	build, wrap := c.BuildHandlerChainFunc, s.cfg.Wrap
	if wrap == nil {
		wrap = func(h http.Handler) http.Handler { return h }
	}
	c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return s.underway.count(sendAway(wrap(build(h, c)), c.ShutdownInitiatedNotify()))
	}
	c.ShutdownDelayDuration, c.ShutdownSendRetryAfter = s.cfg.ShutdownDelay, s.cfg.SendRetryAfter
	if s.cfg.Traces != nil {
		c.TracerProvider = s.cfg.Traces
	}
	c.ShutdownWatchTerminationGracePeriod = shutdownWatches
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, names)
	c.OpenAPIConfig.Info.Title = "Kubernetes"
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, names)
	c.OpenAPIV3Config.Info.Title = "Kubernetes"
	c.SkipOpenAPIInstallation = true // see serveDocuments
	c.AddHealthChecks(healthz.NamedCheck("etcd", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), storeCheckTimeout)
		defer cancel()
		_, err := store.Get(ctx, keyPrefix+"/health")
		return err
	}))
	c.ReadyzChecks = append(c.ReadyzChecks, healthz.NamedCheck(builtinCheck, s.builtinMade), healthz.NamedCheck(listedCheck, s.listed))
	return c
}

// audiences are those that a token must be for; none means that tokens have none.
func (s *Server) audiences() authenticator.Audiences {
	if s.cfg.Tokens == nil {
		return nil
	}
	return s.cfg.Tokens.Audiences()
}

// effectiveVersion says our version where the library would say the one its
// build was stamped with.
type effectiveVersion struct {
	basecompat.EffectiveVersion
}

func newVersion() effectiveVersion {
	return effectiveVersion{basecompat.NewEffectiveVersionFromString(Version, "", "")}
}

func (v effectiveVersion) Info() *version.Info {
	info := v.EffectiveVersion.Info()
	info.GitVersion = Version
	info.GitCommit, info.GitTreeState, info.BuildDate = "", "", ""
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				info.GitCommit = s.Value
			case "vcs.time":
				info.BuildDate = s.Value
			case "vcs.modified":
				info.GitTreeState = map[string]string{"true": "dirty", "false": "clean"}[s.Value]
			}
		}
	}
	return info
}
