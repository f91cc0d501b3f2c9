package kubelet

// pods/exec, pods/attach and pods/portforward: upgraded connections.
//
// A client that speaks SPDY, or one of the older WebSocket protocols, is joined
// to the kubelet end to end. A client that speaks WebSocket with the CLOSE
// signal (v5.channel.k8s.io), or tunnels SPDY in WebSocket frames, is translated
// here, because kubelets speak neither.

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	translate "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/hawser-project/hawser/auth/spdyframes"
)

var (
	_ rest.Connecter = (*execREST)(nil)
	_ rest.Connecter = (*attachREST)(nil)
	_ rest.Connecter = (*portForwardREST)(nil)
)

type execREST struct{ *backend }

func (*execREST) New() runtime.Object { return &corev1.PodExecOptions{} }

func (*execREST) Destroy() {}

func (*execREST) ConnectMethods() []string { return upgradeMethods }

func (*execREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodExecOptions{}, false, ""
}

func (r *execREST) Connect(ctx context.Context, name string, options runtime.Object, resp rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.PodExecOptions)
	if !ok {
		return nil, fmt.Errorf("pods/exec: unexpected options %T", options)
	}
	if len(o.Command) == 0 {
		return nil, apierrors.NewBadRequest("you must specify at least one command for the container")
	}
	s := streams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
	return r.terminal(ctx, "exec", name, o.Container, s, o.Command, resp)
}

type attachREST struct{ *backend }

func (*attachREST) New() runtime.Object { return &corev1.PodAttachOptions{} }

func (*attachREST) Destroy() {}

func (*attachREST) ConnectMethods() []string { return upgradeMethods }

func (*attachREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodAttachOptions{}, false, ""
}

func (r *attachREST) Connect(ctx context.Context, name string, options runtime.Object, resp rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.PodAttachOptions)
	if !ok {
		return nil, fmt.Errorf("pods/attach: unexpected options %T", options)
	}
	s := streams{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, TTY: o.TTY}
	return r.terminal(ctx, "attach", name, o.Container, s, nil, resp)
}

// streams says which of a command's streams the client wants.
type streams struct{ Stdin, Stdout, Stderr, TTY bool }

// check refuses what no kubelet could serve.
func (s streams) check() error {
	if !s.Stdin && !s.Stdout && !s.Stderr {
		return apierrors.NewBadRequest("you must specify at least one of stdin, stdout, stderr")
	}
	return nil
}

// count is how many streams the client opens: that of the status, those of the command, and with a
// terminal that of its sizes.
func (s streams) count() int {
	n := 1
	for _, on := range []bool{s.Stdin, s.Stdout, s.Stderr, s.TTY} {
		if on {
			n++
		}
	}
	return n
}

func (s streams) query(command []string) url.Values {
	q := url.Values{}
	// The kubelet's names of the parameters differ from the API server's.
	for key, on := range map[string]bool{"input": s.Stdin, "output": s.Stdout, "error": s.Stderr, "tty": s.TTY} {
		if on {
			q.Set(key, "1")
		}
	}
	for _, arg := range command {
		q.Add("command", arg)
	}
	return q
}

// terminal serves exec and attach, which differ only in the command.
func (b *backend) terminal(ctx context.Context, verb, name, containerName string, s streams, command []string, resp rest.Responder) (http.Handler, error) {
	if err := b.mayUpgrade(ctx); err != nil {
		return nil, err
	}
	s.Stderr = s.Stderr && !s.TTY // a terminal has no stderr of its own, and a kubelet leaves it out
	if err := s.check(); err != nil {
		return nil, err
	}
	pod, err := b.boundPod(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := container(pod, containerName)
	if err != nil {
		return nil, err
	}
	location, err := b.kubeletURL(ctx, pod.Spec.NodeName,
		[]string{verb, pod.Namespace, pod.Name, c}, s.query(command))
	if err != nil {
		return nil, err
	}
	location.Scheme = "http" // TLS is the transport's
	translator := translate.NewStreamTranslatorHandler(location, b.witnessed, b.MaxBytesPerSecond, translate.Options{
		Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY,
	})
	guarded := lingers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		translator.ServeHTTP(spdyframes.GuardWebSocket(w, true, cancel), r.WithContext(ctx))
	}))
	h := translate.NewTranslatingHandler(b.upgrade(location, b.witnessed, resp), guarded,
		wsstream.IsWebSocketRequestWithStreamCloseProtocol)
	return withStreams(h, s.count()), nil
}

type portForwardREST struct{ *backend }

func (*portForwardREST) New() runtime.Object { return &corev1.PodPortForwardOptions{} }

func (*portForwardREST) Destroy() {}

func (*portForwardREST) ConnectMethods() []string { return upgradeMethods }

func (*portForwardREST) NewConnectOptions() (runtime.Object, bool, string) {
	return &corev1.PodPortForwardOptions{}, false, ""
}

func (r *portForwardREST) Connect(ctx context.Context, name string, options runtime.Object, resp rest.Responder) (http.Handler, error) {
	o, ok := options.(*corev1.PodPortForwardOptions)
	if !ok {
		return nil, fmt.Errorf("pods/portforward: unexpected options %T", options)
	}
	if err := r.mayUpgrade(ctx); err != nil {
		return nil, err
	}
	pod, err := r.boundPod(ctx, name)
	if err != nil {
		return nil, err
	}
	q := url.Values{}
	for _, p := range o.Ports {
		q.Add("port", fmt.Sprint(p))
	}
	location, err := r.kubeletURL(ctx, pod.Spec.NodeName, []string{"portForward", pod.Namespace, pod.Name}, q)
	if err != nil {
		return nil, err
	}
	location.Scheme = "http" // TLS is the transport's
	h := r.upgrade(location, r.joined, resp)
	return translate.NewTranslatingHandler(h, lingers(translate.NewTunnelingHandler(endsReads(h))),
		wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
}

// upgrade joins the client to the kubelet at location, byte for byte.
func (b *backend) upgrade(location *url.URL, transport http.RoundTripper, resp rest.Responder) http.Handler {
	h := proxy.NewUpgradeAwareHandler(location, transport, false, true, responder{Responder: resp})
	h.MaxBytesPerSec = b.MaxBytesPerSecond
	return lingers(h)
}

// mayUpgrade makes sure that who reads a subresource by GET, as a WebSocket
// must, may also create it: the connection can do all that a POST can.
func (b *backend) mayUpgrade(ctx context.Context) error {
	info, ok := apirequest.RequestInfoFrom(ctx)
	if b.Authorizer == nil || !ok || info.Verb == "create" {
		return nil
	}
	u, ok := apirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("no user in the request for %s", info.Path))
	}
	decision, reason, err := b.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: "create",
		Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name,
		ResourceRequest: true, Path: info.Path,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		reason = err.Error()
	}
	return apierrors.NewForbidden(corev1.Resource(info.Resource+"/"+info.Subresource), info.Name,
		fmt.Errorf("user %q cannot create resource %q in API group \"\" in the namespace %q: %s",
			u.GetName(), info.Resource+"/"+info.Subresource, info.Namespace, reason))
}
