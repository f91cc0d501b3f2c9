package kubelet

// The bench: a real generic API server with nothing but this package's
// subresources, a fake kubelet behind TLS, and a dialer in between.

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	randv2 "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientrest "k8s.io/client-go/rest"
	basecompat "k8s.io/component-base/compatibility"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/controlplane/apiserver/openapi"
)

// network stands for the tunnel: it knows where addresses are, and who asked.
type network struct {
	mu    sync.Mutex
	where map[string]string // dialed address to listening address
	asked []string
}

func (n *network) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.asked = append(n.asked, addr)
	to, ok := n.where[addr]
	n.mu.Unlock()
	if !ok {
		host, _, _ := strings.Cut(addr, ":")
		return nil, fmt.Errorf("dial %s: no agent is connected for node %q", addr, host)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

// dialEarly does not wait to know whether dial succeeds: if it does not, the
// connection's first use says so.
func (n *network) dialEarly(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := n.dial(ctx, network, addr)
	if err == nil {
		return c, nil
	}
	near, far := net.Pipe()
	return &stillborn{Conn: near, far: far, err: err}, nil
}

// A stillborn connection takes what is written and fails when it is read from.
type stillborn struct {
	net.Conn
	far net.Conn
	err error
}

func (c *stillborn) Read([]byte) (int, error)    { return 0, c.err }
func (c *stillborn) Write(p []byte) (int, error) { return len(p), nil }
func (c *stillborn) Close() error                { return errors.Join(c.Conn.Close(), c.far.Close()) }

func (n *network) lead(addr string, l net.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.where[addr] = l.Addr().String()
}

func (n *network) dials(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(n.asked), func(a string) bool { return a != addr }))
}

// fakeKubelet answers as a kubelet does.
type fakeKubelet struct {
	mu    sync.Mutex
	paths []string // method, path and query of what was asked
	peers []string // common names that were shown
	gone  chan struct{}
	more  chan string // lines of a followed log
	stats func(w http.ResponseWriter)
}

func (k *fakeKubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	peer := ""
	if len(r.TLS.PeerCertificates) > 0 {
		peer = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	k.mu.Lock()
	k.paths = append(k.paths, r.Method+" "+r.URL.RequestURI())
	k.peers = append(k.peers, peer)
	k.mu.Unlock()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	const idle, create = time.Minute, 10 * time.Second
	switch parts[0] {
	case "stats":
		k.stats(w)
	case "containerLogs":
		k.logs(w, r, parts)
	case "exec", "attach":
		opts, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		protocols := []string{"v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"}
		if parts[0] == "attach" {
			remotecommand.ServeAttach(w, r, container1{}, parts[2], "", parts[3], opts, idle, create, protocols)
			return
		}
		remotecommand.ServeExec(w, r, container1{}, parts[2], "", parts[3], r.URL.Query()["command"], opts, idle, create, protocols)
	case "portForward":
		opts, err := portforward.NewV4Options(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, r, container1{}, parts[2], "", opts, idle, create, []string{"portforward.k8s.io"})
	default:
		fmt.Fprintf(w, "%s from %s", r.URL.Path, peer)
	}
}

func (k *fakeKubelet) logs(w http.ResponseWriter, r *http.Request, parts []string) {
	switch parts[3] {
	case "waiting":
		http.Error(w, `container "waiting" in pod "web" is waiting to start: ContainerCreating`, http.StatusBadRequest)
		return
	case "lost":
		http.Error(w, "no such container", http.StatusNotFound)
		return
	}
	if r.URL.Query().Get("follow") == "" {
		fmt.Fprintln(w, "a line")
		return
	}
	for {
		select {
		case line := <-k.more:
			fmt.Fprintln(w, line)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			close(k.gone)
			return
		}
	}
}

// much is how many bytes the command of that name writes.
const much = 4 << 20

// container1 is what runs in the fake node's only container.
type container1 struct{}

func (container1) ExecInContainer(_ context.Context, _, _, _ string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	switch cmd[0] {
	case "cat":
		_, err := io.Copy(out, in)
		fmt.Fprint(out, "<eof>") // seen only if the end of stdin came through
		return err
	case "both":
		fmt.Fprint(out, "to out")
		fmt.Fprint(errOut, "to err")
		return nil
	case "size":
		s := <-resize
		fmt.Fprintf(out, "%dx%d tty=%v", s.Width, s.Height, tty)
		return nil
	case "endless":
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(out, "%07d\n", i); err != nil {
				return err
			}
		}
	case "much":
		_, err := io.CopyN(out, randv2.NewChaCha8([32]byte{1}), much)
		return err
	case "deaf":
		if _, err := io.CopyN(out, zeros{}, much); err != nil {
			return err
		}
		return exec.CodeExitError{Err: errors.New("exit"), Code: 42}
	case "exit":
		return exec.CodeExitError{Err: errors.New("exit"), Code: 42}
	}
	return fmt.Errorf("exec: %q: executable file not found in $PATH", cmd[0])
}

func (container1) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	b, err := io.ReadAll(in)
	fmt.Fprintf(out, "attached, got %q", b)
	return err
}

// PortForward echoes, and refuses one port as a node does.
func (container1) PortForward(_ context.Context, _, _ string, port int32, s io.ReadWriteCloser) error {
	if port == 81 {
		return errors.New("dial tcp4 127.0.0.1:81: connect: connection refused")
	}
	defer s.Close()
	_, err := io.Copy(s, s)
	return err
}

// bench is the whole arrangement.
type bench struct {
	pki     *pki
	net     *network
	kubelet *fakeKubelet
	url     string
	config  *clientrest.Config
}

// parent stands for the resources that the subresources belong to.
type parent struct {
	rest.Storage
	obj        func() runtime.Object
	singular   string
	namespaced bool
}

func (p parent) New() runtime.Object     { return p.obj() }
func (parent) Destroy()                  {}
func (p parent) NamespaceScoped() bool   { return p.namespaced }
func (p parent) GetSingularName() string { return p.singular }

// start starts the arrangement; change may adjust the options first.
func start(t *testing.T, change func(*Options)) *bench {
	t.Helper()
	b := &bench{pki: newPKI(t), net: &network{where: map[string]string{}}, kubelet: &fakeKubelet{gone: make(chan struct{}), more: make(chan string, 16)}}
	b.serveKubelet(t, "node-1:10250", "node-1")
	cert, key := b.pki.clientFiles("kube-apiserver-kubelet-client")
	conf, authorities, err := LoadTLS(new(auth.Files), []string{filepath.Join(b.pki.dir, "ca.crt")}, cert, key)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Pods: pods, Nodes: nodes, Services: services, EndpointSlices: endpointSlices,
		Dial: b.net.dial, DialEarly: b.net.dialEarly, TLS: conf, Authorities: authorities, DialTimeout: 5 * time.Second,
	}
	if change != nil {
		change(&o)
	}
	handler := apiServer(t, Storages(o))
	srv := httptest.NewUnstartedServer(handler)
	srv.Config.ErrorLog = quiet
	srv.StartTLS()
	t.Cleanup(srv.Close)
	b.url = srv.URL
	b.config = &clientrest.Config{Host: srv.URL, TLSClientConfig: clientrest.TLSClientConfig{Insecure: true}, BearerToken: "secret"}
	return b
}

var quiet = log.New(io.Discard, "", 0)

// serveKubelet puts the fake kubelet behind an address, with a certificate for
// name.
func (b *bench) serveKubelet(t *testing.T, addr, name string) {
	t.Helper()
	s := httptest.NewUnstartedServer(b.kubelet)
	s.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{b.pki.issue("system:node:"+name, name)},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: b.pki.Pool(),
	}
	s.Config.ErrorLog = quiet
	s.Listener = tunnelListener{s.Listener}
	s.StartTLS()
	t.Cleanup(s.Close)
	b.net.lead(addr, s.Listener)
}

// A tunnelListener's connections lose nothing by a Close with unread data, as a tunnel's streams.
type tunnelListener struct{ net.Listener }

func (l tunnelListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return tunnelConn{c}, err
}

type tunnelConn struct{ net.Conn }

func (c tunnelConn) Close() error {
	closeWrite(c.Conn)
	go func() {
		_, _ = io.Copy(io.Discard, c.Conn) // until the other end is closed
		_ = c.Conn.Close()
	}()
	return nil
}

// serve puts a plain server behind an address.
func (b *bench) serve(t *testing.T, addr string, secure bool, h http.Handler) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = quiet
	if secure {
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	b.net.lead(addr, s.Listener)
}

func apiServer(t *testing.T, subs map[string]rest.Storage) http.Handler {
	t.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	if err := errors.Join(corev1.AddToScheme(scheme), AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	c := genericapiserver.NewConfig(codecs)
	c.EffectiveVersion = basecompat.NewEffectiveVersionFromString("1.37", "", "")
	c.LoopbackClientConfig = &clientrest.Config{}
	c.ExternalAddress = "127.0.0.1:443"
	c.SkipOpenAPIInstallation = true
	names := openapinamer.NewDefinitionNamer(scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, names)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, names)
	c.EnableProfiling, c.EnableMetrics = false, false
	c.LongRunningFunc = LongRunning()
	c.LegacyAPIGroupPrefixes.Insert("/api")
	c.Authentication.Authenticator = authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, r.Header.Get("Authorization") == "Bearer secret", nil
	})
	c.Authorization.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	})
	s, err := c.Complete(nil).New("test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Destroy)
	group := genericapiserver.NewDefaultAPIGroupInfo("", scheme, runtime.NewParameterCodec(scheme), codecs)
	all := map[string]rest.Storage{
		"pods":     parent{obj: func() runtime.Object { return &corev1.Pod{} }, singular: "pod", namespaced: true},
		"nodes":    parent{obj: func() runtime.Object { return &corev1.Node{} }, singular: "node"},
		"services": parent{obj: func() runtime.Object { return &corev1.Service{} }, singular: "service", namespaced: true},
	}
	for path, r := range subs {
		all[path] = r
	}
	group.VersionedResourcesStorageMap["v1"] = all
	if err := s.InstallLegacyAPIGroup("/api", &group); err != nil {
		t.Fatal(err)
	}
	return s.Handler
}

func notFound(resource, name string) error {
	return apierrors.NewNotFound(corev1.Resource(resource), name)
}

func pods(_ context.Context, name string) (*corev1.Pod, error) {
	web := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{
			{Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}},
		}},
		Status: corev1.PodStatus{PodIP: "10.0.0.7"},
	}
	switch name {
	case "web":
	case "two":
		web.Spec.Containers = append(web.Spec.Containers, corev1.Container{Name: "waiting"}, corev1.Container{Name: "lost"})
		web.Spec.InitContainers = []corev1.Container{{Name: "i1"}, {Name: "i2"}}
		web.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	case "pending":
		web.Spec.NodeName, web.Status.PodIP = "", ""
	case "starting":
		web.Status.PodIP = ""
	case "six":
		web.Status.PodIP = "fd00::7"
	case "loopback":
		web.Status.PodIP = "127.0.0.1"
	case "portless":
		web.Spec.Containers[0].Ports = nil
	case "away":
		web.Spec.NodeName = "node-9" // no agent is connected for it
	case "wrong":
		web.Spec.NodeName = "node-2" // shows another's certificate
	case "stray":
		web.Spec.NodeName = "gone"
	default:
		return nil, notFound("pods", name)
	}
	return web, nil
}

func nodes(_ context.Context, name string) (*corev1.Node, error) {
	if !strings.HasPrefix(name, "node-") {
		return nil, notFound("nodes", name)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if name == "node-3" {
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 11250
	}
	return n, nil
}

func services(_ context.Context, name string) (*corev1.Service, error) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}, {Name: "free", Port: 90}},
	}}
	switch name {
	case "s":
	case "single":
		s.Spec.Ports = s.Spec.Ports[:1]
	default:
		return nil, notFound("services", name)
	}
	return s, nil
}

func endpointSlices(context.Context, string) ([]*discoveryv1.EndpointSlice, error) {
	at := func(ip string, ready *bool, node string) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
		if node != "" {
			e.NodeName = &node
		}
		return e
	}
	return []*discoveryv1.EndpointSlice{{
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{at("10.0.0.8", ptr.To(false), "node-1"), at("10.0.0.7", nil, "node-1")},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}, {Name: ptr.To("https"), Port: ptr.To[int32](8443)}},
	}, {
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{at("10.0.0.9", ptr.To(true), "")},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("free"), Port: ptr.To[int32](8090)}},
	}}, nil
}

// get makes a request as a user and returns the answer.
func (b *bench) get(t *testing.T, method, path string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, bytes.NewReader(nil))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	client := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}
