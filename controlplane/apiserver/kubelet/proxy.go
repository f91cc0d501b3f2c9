package kubelet

// nodes/proxy, pods/proxy and services/proxy: any HTTP request, passed on.

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"
	translate "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"
)

var (
	_ rest.Connecter = (*podProxyREST)(nil)
	_ rest.Connecter = (*nodeProxyREST)(nil)
	_ rest.Connecter = (*serviceProxyREST)(nil)
)

type podProxyREST struct{ *backend }

func (*podProxyREST) New() runtime.Object { return &corev1.PodProxyOptions{} }

func (*podProxyREST) Destroy() {}

func (*podProxyREST) ConnectMethods() []string { return proxyMethods }

func (*podProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodProxyOptions{}, true, "path"
}

func (r *podProxyREST) Connect(ctx context.Context, id string, options runtime.Object, resp rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.PodProxyOptions)
	if !ok {
		return nil, fmt.Errorf("pods/proxy: unexpected options %T", options)
	}
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	pod, err := r.boundPod(ctx, name)
	if err != nil {
		return nil, err
	}
	if port == "" {
		port = firstPort(pod, scheme)
	}
	if pod.Status.PodIP == "" {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("pod %s has no IP address yet", name))
	}
	host, err := r.target(pod.Status.PodIP, pod.Spec.NodeName, port)
	if err != nil {
		return nil, err
	}
	return r.passPlain(&url.URL{Scheme: scheme, Host: host}, o.Path, resp), nil
}

// firstPort is the port of a pod that a request without one means: the first that
// the pod names, or the scheme's own.
func firstPort(pod *corev1.Pod, scheme string) string {
	for i := range pod.Spec.Containers {
		if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
			return strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	if scheme == "https" {
		return "443"
	}
	return "80"
}

type nodeProxyREST struct{ *backend }

func (*nodeProxyREST) New() runtime.Object { return &corev1.NodeProxyOptions{} }

func (*nodeProxyREST) Destroy() {}

func (*nodeProxyREST) ConnectMethods() []string { return proxyMethods }

func (*nodeProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.NodeProxyOptions{}, true, "path"
}

// Connect passes a request to the node's kubelet API, with our identity, or to
// another port of the node itself, without.
func (r *nodeProxyREST) Connect(ctx context.Context, id string, options runtime.Object, resp rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.NodeProxyOptions)
	if !ok {
		return nil, fmt.Errorf("nodes/proxy: unexpected options %T", options)
	}
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	node, err := r.Nodes(ctx, name)
	if err != nil {
		return nil, err
	}
	api := strconv.Itoa(kubeletPort(node))
	if port == "" || port == api {
		u := &url.URL{Scheme: "https", Host: net.JoinHostPort(node.Name, api)}
		return r.pass(u, o.Path, r.kubelet, r.joined, resp), nil
	}
	if err := checkPort(port); err != nil {
		return nil, err
	}
	return r.passPlain(&url.URL{Scheme: scheme, Host: net.JoinHostPort(node.Name, port)}, o.Path, resp), nil
}

type serviceProxyREST struct{ *backend }

func (*serviceProxyREST) New() runtime.Object { return &corev1.ServiceProxyOptions{} }

func (*serviceProxyREST) Destroy() {}

func (*serviceProxyREST) ConnectMethods() []string { return proxyMethods }

func (*serviceProxyREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.ServiceProxyOptions{}, true, "path"
}

func (r *serviceProxyREST) Connect(ctx context.Context, id string, options runtime.Object, resp rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.ServiceProxyOptions)
	if !ok {
		return nil, fmt.Errorf("services/proxy: unexpected options %T", options)
	}
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	svc, err := r.Services(ctx, name)
	if err != nil {
		return nil, err
	}
	portName, err := servicePort(svc, port)
	if err != nil {
		return nil, err
	}
	slices, err := r.EndpointSlices(ctx, svc.Name)
	if err != nil {
		return nil, err
	}
	e, ok := pick(endpoints(slices, portName))
	if !ok {
		return nil, noEndpoints(id)
	}
	host, err := r.target(e.ip, e.node, strconv.Itoa(int(e.port)))
	if err != nil {
		return nil, err
	}
	return r.passPlain(&url.URL{Scheme: scheme, Host: host}, o.Path, resp), nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// target returns the host:port to dial for an address on a node, or an error if
// nobody may be led there: addresses whose meaning depends on where one stands
// would reach something of the node that was never offered.
func (b *backend) target(ip, node, port string) (string, error) {
	if err := checkPort(port); err != nil {
		return "", err
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return "", apierrors.NewBadRequest(fmt.Sprintf("invalid address %q", ip))
	}
	addr = addr.Unmap()
	if addr.Zone() != "" || addr.IsUnspecified() || IsLocal(addr) && !b.AllowLocalTargets {
		return "", apierrors.NewBadRequest("address not allowed")
	}
	return net.JoinHostPort(scoped(addr.String(), node), port), nil
}

// IsLocal says whether what an address means depends on where one stands.
func IsLocal(addr netip.Addr) bool {
	addr = addr.Unmap()
	return addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified()
}

func checkPort(port string) error {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid port %q", port))
	}
	return nil
}

// passPlain is pass to what is not ours, over TLS or not, as the scheme says.
func (b *backend) passPlain(u *url.URL, path string, resp rest.Responder) http.Handler {
	joined := b.joinedHTTP
	if u.Scheme == "https" {
		joined = b.joinedTLS
	}
	return b.pass(u, path, b.plain, joined, resp)
}

// pass hands the request on to path at u by rt, or by joined if it is to be upgraded. Links
// and redirects in the answer are rewritten to lead through the API server.
func (b *backend) pass(u *url.URL, path string, rt, joined http.RoundTripper, resp rest.Responder) http.Handler {
	u.Path = utilnet.JoinPreservingTrailingSlash(u.Path, path)
	way := &noting{RoundTripper: rt}
	h := proxy.NewUpgradeAwareHandler(u, way, true, false, responder{resp, way})
	h.MaxBytesPerSec = b.MaxBytesPerSecond
	location := *u
	location.Scheme = "http" // TLS is the transport's
	return translate.NewTranslatingHandler(h, b.upgrade(&location, joined, resp), httpstream.IsUpgradeRequest)
}
