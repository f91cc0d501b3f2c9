// What a server can be told.

package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/tracing"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
	"github.com/hawser-project/hawser/controlplane/apiserver/usage"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

// Version is what /version and kubectl version say of this server: the
// Kubernetes release its API is that of, and our name.
const Version = "v1.37.2+hawser"

// DefaultServiceCIDR is where services get their addresses from, as in kubeadm.
const DefaultServiceCIDR = "10.96.0.0/12"

// Config configures a Server.
type Config struct {
	// Listener takes the connections, required. They are plain: the server does
	// TLS itself. Run closes it.
	Listener net.Listener

	// ServingCertFile and ServingKeyFile are the server's certificate, and
	// ClientCAFile the authorities that client certificates are asked for from,
	// all PEM, required. They are followed.
	ServingCertFile, ServingKeyFile, ClientCAFile string
	// KubeletCAFile is the authority of kubelets' serving certificates: nodes are told,
	// so that they ask for others when it is another. Empty means that they are not.
	KubeletCAFile string
	// ClusterFile is kept beside them and says which cluster on EtcdServers they are of. Another
	// one that has none of ClientCAFile and KubeletCAFile is not served: Run returns a ForeignError.
	// Empty means that they are not compared.
	ClusterFile string
	// Files reads them, that of FrontProxy and that of Audit. Nil means one of its own.
	Files *auth.Files

	// FrontProxy is what the Authenticator believes of front proxies, so that they are
	// asked for certificates, and others can be told. Nil means there are none.
	FrontProxy *kubeauth.FrontProxy

	// Proxy is how extension servers know this server. Zero means that it shows them no
	// certificate, so that they take it for nobody.
	Proxy Proxy

	// ExternalAddress is the host, or host and port, in URLs told to clients.
	// Empty means AdvertiseAddress.
	ExternalAddress string

	// AdvertiseAddress and AdvertisePort are where the service
	// default/kubernetes leads. Zero means the listener's own; if that is the
	// unspecified address, the first global unicast one of this machine.
	AdvertiseAddress netip.Addr
	AdvertisePort    int

	// ServiceCIDR is where services get their addresses from. Zero means
	// DefaultServiceCIDR. Its first address is default/kubernetes'.
	ServiceCIDR netip.Prefix

	// Etcd is the embedded store, used if EtcdServers names none.
	Etcd        etcd.Config
	EtcdServers etcd.External

	// Authenticator and Authorizer are required. They are not asked about
	// /healthz, /livez, /readyz and /version, which everybody may read, nor
	// about the server's own loopback client.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Listed is closed once what the Authenticator and the Authorizer read of this server,
	// from when it is ready, has been listed. /readyz fails until then, and for ReadyBound
	// at most. Nil means that they read nothing.
	Listed <-chan struct{}
	// Rules lists what a user may do, for kubectl auth can-i --list. nil means
	// that the list is called incomplete.
	Rules authorizer.RuleResolver

	// Tokens makes the tokens of service accounts, which Authenticator is to believe.
	// Its audiences are those of this server. Nil means that there are no tokens: pods
	// are given none, and nobody can ask for one.
	Tokens *accounttoken.Issuer

	// Wrap is put around all that serves requests. nil means nothing is.
	Wrap func(http.Handler) http.Handler

	// Stored is called before the server answers, for authenticators and authorizers that
	// read objects for each request. Nil means that there are none.
	Stored func(Getters)

	// Connect returns subresources that lead into nodes, keyed by path, such as
	// "pods/log". nil means there are none.
	Connect func(Getters) map[string]rest.Storage

	// Status answers below StatusPath whoever may get that path and is no node. Its
	// requests may take as long as watches. Nil means that nothing is there.
	Status http.Handler

	// Usage returns how nodes are asked for their statistics, of which metrics.k8s.io
	// is made. nil means that there is no such group.
	Usage func(Getters) usage.Source

	// Admission plugins run after the built-in ones. Those that ask for a client,
	// informers or the authorizer (k8s.io/apiserver/pkg/admission/initializer) get
	// them.
	Admission []admission.Interface

	// FeatureGates say which features that not everybody has are on. Nil means FeatureGates().
	FeatureGates featuregate.FeatureGate

	// DisabledAdmission names built-in plugins to leave out, of AdmissionPlugins.
	DisabledAdmission []string

	// ToServices reaches an endpoint of a service, IP%NODE:PORT or IP:PORT, for webhooks
	// that are named by their service. Nil means that they cannot be called.
	ToServices func(ctx context.Context, network, addr string) (net.Conn, error)

	// ToURLs reaches webhooks that are named by a URL. Nil means that they are dialed.
	ToURLs func(ctx context.Context, network, addr string) (net.Conn, error)

	// NotReadyTolerationSeconds and UnreachableTolerationSeconds are how long
	// pods that do not say so stay on a node that is not ready or unreachable.
	// nil means 300.
	NotReadyTolerationSeconds, UnreachableTolerationSeconds *int64

	// EventTTL is how long events are kept, in whole seconds. 0 means 1 h.
	EventTTL time.Duration

	// EnableGarbageCollector says that a garbage collector watches this server, as
	// kube-apiserver's flag of that name does. A delete that asks for foreground
	// or orphan propagation then leaves the object to it, behind a finalizer.
	// Without a collector nobody would ever take that away, so the object goes at
	// once and its dependents are left alone.
	EnableGarbageCollector bool

	// MaxRequestsInFlight and MaxMutatingRequestsInFlight add up to how many
	// requests are answered at a time, watches and streams aside; priority levels
	// share them (fairness.go). Zero means DefaultMaxRequestsInFlight and
	// DefaultMaxMutatingRequestsInFlight.
	MaxRequestsInFlight, MaxMutatingRequestsInFlight int

	// ShutdownDelay and SendRetryAfter are kube-apiserver's --shutdown-delay-duration and
	// --shutdown-send-retry-after: how long requests are answered as ever once Run's
	// context is done, and whether those that come after that are told to try again, until
	// the last one before them has its answer.
	ShutdownDelay  time.Duration
	SendRetryAfter bool
	// Leave, if not nil, is called when Run's context is done. Requests are answered at
	// least until it has returned.
	Leave func()
	// DrainTimeout is how long requests that have no end of their own, such as exec, may
	// go on once no others are taken. 0 means 5 s.
	DrainTimeout time.Duration

	// Balances says that this server listens for Services of type LoadBalancer, so that
	// nobody need be warned who makes one.
	Balances bool
	// Runs says whether the controller of a name runs beside this server: whoever makes what it
	// would act on is warned if it does not. Nil means that all do.
	Runs func(controller string) bool

	// Audit says which requests are recorded, and where. Zero means none.
	Audit Audit

	// Encryption says which kinds are encrypted in the store. Zero means none.
	Encryption Encryption

	// Traces takes the spans of requests, by the library's own rules. Run ends it. Nil
	// means that there are none.
	Traces tracing.TracerProvider

	// Seen is told, with the context of each request, whether its user is known:
	// true once it is, false if the request is about to be refused for want of one.
	// Of requests by nobody in particular that everybody may make it is told nothing.
	// Nil means that nobody wants to know.
	Seen func(ctx context.Context, known bool)

	// ReadyBound is how long Ready waits for kinds that cannot be listed, because
	// an object cannot be read; what needs them refuses until then, all else is
	// served. It is also how long /readyz waits for Listed after that. 0 means 30 s. It
	// should be less than a minute.
	ReadyBound time.Duration

	// BuiltinPeriod is how often the built-in objects are looked after, such as
	// the service default/kubernetes, and how long policies may not find the kind of
	// their parameters after it was defined. 0 means 10 s.
	BuiltinPeriod time.Duration

	// Log is nil to discard.
	Log *slog.Logger
}

// Proxy names the files of a client certificate, PEM, and of the authority that signed it and
// nobody else's, by which extension servers know who passes users' requests on. They are
// followed.
type Proxy struct {
	CertFile, KeyFile, CAFile string
	// Name is the certificate's common name.
	Name string
}

// check refuses what no server can have.
func (c *Config) check() error {
	switch {
	case c.Listener == nil:
		return errors.New("apiserver: no listener")
	case c.ServingCertFile == "" || c.ServingKeyFile == "":
		return errors.New("apiserver: no serving certificate")
	case c.ClientCAFile == "":
		return errors.New("apiserver: no client CA")
	case c.Authenticator == nil || c.Authorizer == nil:
		return errors.New("apiserver: authenticator and authorizer are required")
	case slices.ContainsFunc(c.DisabledAdmission, func(name string) bool { return !slices.Contains(AdmissionPlugins(), name) }):
		return fmt.Errorf("apiserver: not all admission plugins to disable exist: %q", c.DisabledAdmission)
	case c.EventTTL < 0 || c.EventTTL > 0 && c.EventTTL < time.Second:
		return fmt.Errorf("apiserver: event TTL %v is less than a second", c.EventTTL)
	case c.MaxRequestsInFlight < 0 || c.MaxMutatingRequestsInFlight < 0:
		return fmt.Errorf("apiserver: %d and %d requests in flight: want none of them negative", c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight)
	}
	return nil
}

// complete checks c and fills in what it leaves out.
func (c *Config) complete() error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Files == nil {
		c.Files = &auth.Files{Log: c.Log}
	}
	c.EventTTL = cmp.Or(c.EventTTL, time.Hour)
	c.MaxRequestsInFlight = cmp.Or(c.MaxRequestsInFlight, DefaultMaxRequestsInFlight)
	c.MaxMutatingRequestsInFlight = cmp.Or(c.MaxMutatingRequestsInFlight, DefaultMaxMutatingRequestsInFlight)
	c.ReadyBound = cmp.Or(max(c.ReadyBound, 0), 30*time.Second)
	c.DrainTimeout = cmp.Or(max(c.DrainTimeout, 0), 5*time.Second)
	c.BuiltinPeriod = cmp.Or(max(c.BuiltinPeriod, 0), 10*time.Second)
	if c.Seen == nil {
		c.Seen = func(context.Context, bool) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.FeatureGates == nil {
		c.FeatureGates = FeatureGates()
	}
	if !c.ServiceCIDR.IsValid() {
		c.ServiceCIDR = netip.MustParsePrefix(DefaultServiceCIDR)
	}
	c.ServiceCIDR = c.ServiceCIDR.Masked()
	if _, ok := hostAddr(c.ServiceCIDR, 2); !ok {
		return fmt.Errorf("apiserver: service range %s has no room for services", c.ServiceCIDR)
	}
	for _, seconds := range []**int64{&c.NotReadyTolerationSeconds, &c.UnreachableTolerationSeconds} {
		if *seconds == nil {
			*seconds = new(int64)
			**seconds = 300
		}
	}
	if err := c.advertise(); err != nil {
		return fmt.Errorf("apiserver: %w", err)
	}
	if len(c.EtcdServers.Servers) == 0 {
		if c.Etcd.Log == nil {
			c.Etcd.Log = c.Log
		}
	}
	return nil
}

// advertise fills in the addresses told to others.
func (c *Config) advertise() error {
	host, port, err := net.SplitHostPort(c.Listener.Addr().String())
	if err != nil {
		return fmt.Errorf("address of the listener: %w", err)
	}
	if c.AdvertisePort == 0 {
		if c.AdvertisePort, err = strconv.Atoi(port); err != nil {
			return fmt.Errorf("port of the listener: %w", err)
		}
	}
	if !c.AdvertiseAddress.IsValid() {
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return fmt.Errorf("address of the listener: %w", err)
		}
		if ip.IsUnspecified() {
			ip = globalAddress(ip)
		}
		c.AdvertiseAddress = ip.Unmap()
	}
	if c.AdvertiseAddress.IsLinkLocalUnicast() {
		c.Log.Warn("the service default/kubernetes has no endpoints: the API takes no link-local address; advertise another one", "address", c.AdvertiseAddress)
	}
	if c.ExternalAddress == "" {
		c.ExternalAddress = net.JoinHostPort(c.AdvertiseAddress.String(), strconv.Itoa(c.AdvertisePort))
	}
	return nil
}

// globalAddress is an address of this machine that others may reach, or loopback
// if it has none.
func globalAddress(unspecified netip.Addr) netip.Addr {
	addrs, err := net.InterfaceAddrs()
	if err == nil {
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && p.Addr().IsGlobalUnicast() && p.Addr().Is4() {
				return p.Addr()
			}
		}
	}
	if unspecified.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}
