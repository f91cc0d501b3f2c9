package kubelet

// The table of subresources and what they need.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// DefaultPort is the kubelet API's port on a node that does not say otherwise.
const DefaultPort = 10250

// DefaultDialTimeout bounds dialing and the TLS handshake with a node.
const DefaultDialTimeout = 10 * time.Second

// A DialFunc opens a connection to addr; see the package comment for the kinds
// of address. Its error text reaches the user.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Options configure the subresources. Pods, Nodes, Dial and TLS are required.
type Options struct {
	// Pods returns a pod of the namespace that ctx carries.
	Pods func(ctx context.Context, name string) (*corev1.Pod, error)
	// Nodes returns a node.
	Nodes func(ctx context.Context, name string) (*corev1.Node, error)
	// Services returns a service of the namespace that ctx carries, and
	// EndpointSlices the slices of a service. Without both there is no
	// services/proxy.
	Services       func(ctx context.Context, name string) (*corev1.Service, error)
	EndpointSlices func(ctx context.Context, service string) ([]*discoveryv1.EndpointSlice, error)

	Dial DialFunc
	// DialEarly is used in place of Dial where TLS goes over the connection to
	// the kubelet API at once: it need not wait to know whether the node has been
	// reached, and an error may come of the connection's first use. Nil means
	// Dial.
	DialEarly DialFunc
	// TLS is how the API server presents itself to kubelets and whom it
	// believes. ServerName stays empty: it is the node's name. LoadTLS makes it.
	TLS *tls.Config
	// Authorities are those whom TLS believes now: no connection that others verified is
	// used again. Nil means that they stay the same.
	Authorities func() *x509.CertPool
	// Authorizer is asked whether who upgrades to a WebSocket by GET may also
	// create. Nil means the check is not made.
	Authorizer authorizer.Authorizer

	// OneRequest has each request dial for itself, on a connection that no other
	// uses: who looks at the context of a dial knows whose it is.
	OneRequest bool

	DialTimeout time.Duration // zero means DefaultDialTimeout
	// MaxBytesPerSecond limits each direction of exec, attach and port-forward;
	// zero means no limit.
	MaxBytesPerSecond int64
	// AllowLocalTargets lets the pod and service proxies reach loopback,
	// link-local and multicast addresses, which are otherwise refused.
	AllowLocalTargets bool
	Log               *slog.Logger // nil means discard
}

// Storages returns the subresources, keyed "pods/log" and so on. They share
// their transports, whose idle connections are bounded in number and time.
// There is no "services/proxy" without Options.Services and EndpointSlices.
func Storages(o Options) map[string]rest.Storage {
	o = o.complete()
	b := &backend{Options: o, transports: newTransports(o)}
	m := map[string]rest.Storage{
		"pods/log":         &logREST{b},
		"pods/exec":        &execREST{b},
		"pods/attach":      &attachREST{b},
		"pods/portforward": &portForwardREST{b},
		"pods/proxy":       &podProxyREST{b},
		"nodes/proxy":      &nodeProxyREST{b},
	}
	if o.Services != nil && o.EndpointSlices != nil {
		m["services/proxy"] = &serviceProxyREST{b}
	}
	return m
}

// complete is o with what it leaves out.
func (o Options) complete() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.DialEarly == nil {
		o.DialEarly = o.Dial
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	return o
}

// LongRunning tells which requests may outlive the API server's request
// timeout: watches, and everything in this package. The generic API server must
// be given it, or it cuts followed logs and terminals after a minute.
func LongRunning() apirequest.LongRunningRequestCheck {
	return genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
}

// backend is what all the subresources share.
type backend struct {
	Options
	transports
}

var proxyMethods = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodHead, http.MethodOptions,
}

var upgradeMethods = []string{http.MethodGet, http.MethodPost}
