package kubeletapi

// A kubelet API in operation over TLS, with pods that are real processes.

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/process"
)

func TestMain(m *testing.M) {
	process.ShimMain()
	if os.Getenv(echoEnv) != "" {
		echoMain()
		return
	}
	// The SPDY library takes up to a second to get over a connection that its peer
	// has closed first.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

const patience = 30 * time.Second

// testCgroup is this test process's own.
func testCgroup() string { return fmt.Sprintf("hawser-test-kubelet-%d", os.Getpid()) }

// pods is a list of pods that tests change.
type pods struct {
	mu   sync.Mutex
	list []*corev1.Pod
}

func (p *pods) Pods(context.Context) ([]*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*corev1.Pod(nil), p.list...), nil
}

func (p *pods) Pod(_ context.Context, name types.NamespacedName, uid types.UID) (*corev1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range p.list {
		if pod.Namespace == name.Namespace && pod.Name == name.Name && (uid == "" || uid == pod.UID) {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("pod %s: %w", name, runtime.ErrNotFound)
}

// A rig is a server and what a client needs to talk to it.
type rig struct {
	t    *testing.T
	ctx  context.Context
	rt   *process.Runtime
	pods *pods
	ca   *authority
	addr string
	logs string
	stop func()
}

func newRig(t *testing.T, edit ...func(*Config)) *rig {
	t.Helper()
	dir := t.TempDir()
	rt, err := process.New(process.Config{DataDir: dir, Isolation: process.None, CgroupParent: testCgroup()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	run, stopRun := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(run) }()
	g := &rig{t: t, ctx: ctx, rt: rt, pods: &pods{}, ca: newAuthority(t), logs: dir}
	cfg := Config{NodeName: "node-1", Pods: g.pods, Runtime: rt, TLS: g.ca.serverTLS(t)}
	for _, e := range edit {
		e(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = ln.Addr().String()
	serve, stopServe := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(serve, ln) }()
	g.stop = sync.OnceFunc(func() {
		stopServe()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		g.stop()
		g.clear()
		stopRun()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		cancel()
		left, _ := filepath.Glob("/sys/fs/cgroup/*/" + testCgroup())
		for _, dir := range left {
			_ = os.Remove(dir)
		}
	})
	return g
}

func (g *rig) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := g.rt.Containers(ctx)
	if err != nil {
		g.t.Error(err)
	}
	for _, c := range list {
		if err := g.rt.Stop(ctx, c.ID, 0); err != nil {
			g.t.Error(err)
		}
		if err := g.rt.Remove(ctx, c.ID); err != nil {
			g.t.Error(err)
		}
	}
	for _, p := range g.pods.list {
		if err := g.rt.RemoveSandbox(ctx, podID(p)); err != nil {
			g.t.Error(err)
		}
	}
}

// addPod adds a pod with containers of these names, none of which runs.
func (g *rig) addPod(name string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	for _, c := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c, Image: "none"})
	}
	g.pods.mu.Lock()
	defer g.pods.mu.Unlock()
	g.pods.list = append(g.pods.list, pod)
	return pod
}

// start runs a script as an attempt of a container.
func (g *rig) start(pod *corev1.Pod, name string, attempt int, script string, edit ...func(*runtime.Container)) string {
	g.t.Helper()
	c := runtime.Container{
		Pod: podID(pod), Name: name, Attempt: attempt, Image: "none",
		Argv:    []string{"/bin/sh", "-c", script},
		LogPath: filepath.Join(g.logs, fmt.Sprintf("%s-%s-%d.log", pod.Name, name, attempt)),
	}
	for _, e := range edit {
		e(&c)
	}
	id, err := g.rt.Start(g.ctx, c)
	if err != nil {
		g.t.Fatal(err)
	}
	return id
}

const idle = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"

// wait waits until a container has ended.
func (g *rig) wait(id string) {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ch := make(chan runtime.PodID)
	wg.Go(func() { _ = g.rt.Watch(ctx, ch) })
	for {
		list, err := g.rt.Containers(ctx)
		if err != nil {
			g.t.Fatal(err)
		}
		if !isRunning(list, id) {
			return
		}
		select {
		case <-ch:
		case <-ctx.Done():
			g.t.Fatal("container does not end")
		}
	}
}

// get asks for path as the API server does.
func (g *rig) get(path string) (code int, body string) {
	g.t.Helper()
	return g.do(http.MethodGet, path, g.ca.client(g.t, clientName, clientGroup))
}

// header is that of the answer to the API server.
func (g *rig) header(path string) http.Header {
	g.t.Helper()
	resp, _ := g.answer(http.MethodGet, path, g.ca.client(g.t, clientName, clientGroup))
	return resp.Header
}

func (g *rig) do(method, path string, cert *tls.Certificate) (code int, body string) {
	g.t.Helper()
	resp, body := g.answer(method, path, cert)
	return resp.StatusCode, body
}

// answer is a whole answer. Its Body is closed.
func (g *rig) answer(method, path string, cert *tls.Certificate) (resp *http.Response, body string) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.ctx, method, "https://"+g.addr+path, http.NoBody)
	if err != nil {
		g.t.Fatal(err)
	}
	cfg := &tls.Config{RootCAs: g.ca.pool, ServerName: "node-1", MinVersion: tls.VersionTLS12}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: cfg}
	defer tr.CloseIdleConnections()
	if resp, err = (&http.Client{Transport: tr}).Do(req); err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return resp, string(b)
}

// restConfig is for client-go's streaming clients.
func (g *rig) restConfig() *rest.Config {
	certPEM, keyPEM := g.ca.issue(g.t, clientName, clientGroup)
	return &rest.Config{
		Host:            "https://" + g.addr,
		TLSClientConfig: rest.TLSClientConfig{CAData: g.ca.pem, CertData: certPEM, KeyData: keyPEM, ServerName: "node-1"},
	}
}

func (g *rig) url(path string, query url.Values) *url.URL {
	return &url.URL{Scheme: "https", Host: g.addr, Path: path, RawQuery: query.Encode()}
}

// An authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{cert, key, pool, pemBlock("CERTIFICATE", der)}
}

func (a *authority) issue(t *testing.T, cn string, groups ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: cn, Organization: groups}, DNSNames: []string{"node-1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pemBlock("CERTIFICATE", der), pemBlock("EC PRIVATE KEY", raw)
}

func (a *authority) client(t *testing.T, cn string, groups ...string) *tls.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(a.issue(t, cn, groups...))
	if err != nil {
		t.Fatal(err)
	}
	return &cert
}

func (a *authority) serverTLS(t *testing.T) *tls.Config {
	t.Helper()
	cert := a.client(t, "node-1")
	return &tls.Config{
		ClientCAs:      a.pool,
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
	}
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// A screen collects output and can be waited for.
type screen struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{}
}

func newScreen() *screen { return &screen{more: make(chan struct{}, 1)} }

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Write(b)
	select {
	case s.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *screen) wait(g *rig, text string) {
	g.t.Helper()
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.more:
		case <-g.ctx.Done():
			g.t.Fatalf("never saw %q, but %q", text, s.String())
		}
	}
}
