// Aggregation: the first server of the chain. It sends each group version where its
// APIService says, which is on along the chain or to an extension server.

package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	apiregistrationinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	availabilitymetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"
	remoteavailability "k8s.io/kube-aggregator/pkg/controllers/status/remote"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"

	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
)

// availabilityWorkers is how many extension servers are asked at a time whether they
// answer.
const availabilityWorkers = 5

// chain are the servers that answer requests, each what the one before it does not know.
type chain struct {
	aggregator *aggregatorserver.APIAggregator
	builtin    *genericapiserver.GenericAPIServer
	extensions *apiextensionsserver.CustomResourceDefinitions
	elsewhere  *elsewhere
}

// parts are what the servers of the chain share.
type parts struct {
	config *genericapiserver.Config
	names  *openapinamer.DefinitionNamer
	back   *backend
	client kubernetes.Interface
	shared informers.SharedInformerFactory
}

// link is a copy of the configuration for a server of the chain. The filters are those of
// the first one, which all requests come in by.
func (p *parts) link() genericapiserver.Config {
	c := *p.config
	c.PostStartHooks = make(map[string]genericapiserver.PostStartHookConfigEntry)
	c.DisabledPostStartHooks = p.config.DisabledPostStartHooks.Clone()
	c.HealthzChecks, c.LivezChecks, c.ReadyzChecks = slices.Clip(c.HealthzChecks), slices.Clip(c.LivezChecks), slices.Clip(c.ReadyzChecks)
	c.BuildHandlerChainFunc = func(h http.Handler, _ *genericapiserver.Config) http.Handler { return h }
	return c
}

// newChain makes the servers, the last one first.
func (s *Server) newChain(p *parts) (*chain, error) {
	ext, err := s.newExtensions(p)
	if err != nil {
		return nil, err
	}
	srv, err := s.newBuiltin(p, ext.GenericAPIServer)
	if err != nil {
		ext.GenericAPIServer.Destroy()
		return nil, err
	}
	agg, err := s.newAggregator(p, srv, ext)
	if err != nil {
		srv.Destroy() // and what is behind it
		return nil, err
	}
	certificate, err := s.proxyCertificate()
	if err != nil {
		agg.GenericAPIServer.Destroy()
		return nil, err
	}
	dial := &transport.DialHolder{Dial: s.dialService}
	services := agg.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister()
	if err := s.watchExtensionServers(agg, p.client, dial, certificate); err != nil {
		agg.GenericAPIServer.Destroy()
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	return &chain{agg, srv, ext, &elsewhere{services: services, dial: dial, certificate: certificate, log: s.cfg.Log, roots: make(map[string]*root)}}, nil
}

// newAggregator makes the first server of the chain, in front of builtin. On an error
// builtin is left to the caller.
func (s *Server) newAggregator(p *parts, builtin *genericapiserver.GenericAPIServer, ext *apiextensionsserver.CustomResourceDefinitions) (*aggregatorserver.APIAggregator, error) {
	c := p.link()
	lists := newForeignLists(c.Serializer, s.cfg.Log)
	c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return p.config.BuildHandlerChainFunc(lists.bound(h), c)
	}
	c.RESTOptionsGetter = foreign{p.back, aggregatorscheme.Codecs.LegacyCodec(apiregistrationv1.SchemeGroupVersion)}
	c.MergedResourceConfig = aggregatorserver.DefaultAPIResourceConfigSource()
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(aggregatoropenapi.GetOpenAPIDefinitions, p.names)
	config := aggregatorserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: p.shared},
		ExtraConfig: aggregatorserver.ExtraConfig{
			ProxyClientCertFile: s.cfg.Proxy.CertFile, ProxyClientKeyFile: s.cfg.Proxy.KeyFile,
			ProxyTransport:            &http.Transport{DialContext: s.dialService},
			ServiceResolver:           serviceNames{s},
			RejectForwardingRedirects: true,
			// Made when there is an extension server, see watchExtensionServers.
			DisableRemoteAvailableConditionController: true,
		},
	}
	agg, err := config.Complete().NewWithDelegate(builtin)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	lists.services = agg.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister()
	if err = boundDiscovery(agg, s.cfg.Log); err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	registry, err := aggregatorclient.NewForConfig(s.loopback)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	if err := s.register(agg, registry.ApiregistrationV1(), ext); err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	return agg, nil
}

// serviceNames resolve a service to its name, which dialService dials, if it has an endpoint.
type serviceNames struct{ s *Server }

// ResolveEndpoint implements aggregatorserver.ServiceResolver.
func (n serviceNames) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if _, err := n.s.ResolveEndpoint(namespace, name, port); err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(name+"."+namespace+".svc", strconv.Itoa(int(port)))}, nil
}

// dialService dials an endpoint of the service NAME.NAMESPACE.svc:PORT, as webhooks are.
func (s *Server) dialService(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	name, ok := kubelet.ParseServiceName(host)
	number, err := strconv.ParseInt(port, 10, 32)
	if !ok || err != nil {
		return nil, fmt.Errorf("%s is not the address of a service", addr)
	}
	endpoint, err := s.ResolveEndpoint(name.Namespace, name.Name, int32(number))
	if err != nil {
		return nil, err
	}
	return s.toService(ctx, network, endpoint.Host)
}

// watchExtensionServers says of each APIService that names a service whether that answers.
// What this takes, which is a copy of all services and their endpoints, is made when the
// first one comes.
func (s *Server) watchExtensionServers(agg *aggregatorserver.APIAggregator, client kubernetes.Interface, dial *transport.DialHolder, certificate func() (cert, key []byte)) error {
	services := agg.APIRegistrationInformers.Apiregistration().V1().APIServices()
	registry, err := aggregatorclient.NewForConfig(s.loopback)
	if err != nil {
		return err
	}
	return agg.GenericAPIServer.AddPostStartHook("hawser-extension-servers", func(c genericapiserver.PostStartHookContext) error {
		begin := sync.OnceValue(func() error {
			f := informers.NewSharedInformerFactory(client, 0)
			remote, err := remoteavailability.New(endingServices{services}, f.Core().V1().Services(), f.Discovery().V1().EndpointSlices(), registry.ApiregistrationV1(),
				dial, certificate, serviceNames{s}, availabilitymetrics.New())
			if err != nil {
				return err
			}
			f.Start(c.Done())
			go remote.Run(availabilityWorkers, c.Done())
			return nil
		})
		notice := func(obj any) {
			if svc, ok := obj.(*apiregistrationv1.APIService); ok && svc.Spec.Service != nil {
				if err := begin(); err != nil {
					s.cfg.Log.Error("cannot tell which extension servers answer", "err", err)
				}
			}
		}
		_, err := services.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: notice, UpdateFunc: func(_, obj any) { notice(obj) }})
		if c.Err() != nil {
			return nil // an error would end the process
		}
		return err
	})
}

// endingServices are APIServices whose informer may have ended. The library takes it for granted that
// its handler is added, and would end the process.
type endingServices struct {
	apiregistrationinformers.APIServiceInformer
}

// Informer implements APIServiceInformer.
func (s endingServices) Informer() cache.SharedIndexInformer {
	return endingInformer{s.APIServiceInformer.Informer()}
}

type endingInformer struct{ cache.SharedIndexInformer }

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. A handler that comes too late
// never has what there is.
func (i endingInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, every time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	r, err := i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(h, every)
	if err != nil {
		return tooLate{}, err
	}
	return r, nil
}

// tooLate is the registration of a handler that was not added.
type tooLate struct {
	cache.ResourceEventHandlerRegistration // nil
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (tooLate) HasSynced() bool { return false }

// proxyCertificate returns what extension servers know this server by, now and later. It
// is none if Config.Proxy is empty.
func (s *Server) proxyCertificate() (func() (cert, key []byte), error) {
	if s.cfg.Proxy.CertFile == "" {
		return func() ([]byte, []byte) { return nil, nil }, nil
	}
	pair, err := s.cfg.Files.KeyPair(s.cfg.Proxy.CertFile, s.cfg.Proxy.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate for extension servers: %w", err)
	}
	return servingPair{pair}.CurrentCertKeyContent, nil
}
