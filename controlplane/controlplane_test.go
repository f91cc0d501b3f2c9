package controlplane

// Tests of running controllers side by side.

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/controlplane/csr"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	// The other one sleeps until the time of the latest error, which may be of another
	// bubble's clock.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	goleak.VerifyTestMain(m,
		// Sleeps for 3 s beside a read that has long been answered.
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		// One for the whole process, started by the API server's first health check.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	)
}

// scripted is a controller that does something else each time it is run.
type scripted struct {
	name string
	runs []func(ctx context.Context) error

	mu sync.Mutex
	at []time.Time
}

func (s *scripted) Name() string { return s.name }

func (s *scripted) Run(ctx context.Context) error {
	s.mu.Lock()
	n := len(s.at)
	s.at = append(s.at, time.Now())
	s.mu.Unlock()
	if n >= len(s.runs) {
		<-ctx.Done()
		return nil
	}
	return s.runs[n](ctx)
}

func (s *scripted) since(start time.Time) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []time.Duration
	for _, t := range s.at {
		out = append(out, t.Sub(start))
	}
	return out
}

// TestOneFailsTheOthersGoOn runs three controllers of which one panics, fails,
// ends for no reason, and then lives long before it fails again.
func TestOneFailsTheOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		var text strings.Builder
		var mu sync.Mutex
		p, err := New(Config{
			Client: &rest.Config{}, MinRestart: time.Second, MaxRestart: 4 * time.Second, Metrics: reg,
			Log: slog.New(slog.NewTextHandler(locked{&mu, &text}, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		long := func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			return errors.New("after a minute")
		}
		fail := func(context.Context) error { return errors.New("cannot") }
		bad := &scripted{name: "bad", runs: []func(context.Context) error{
			func(context.Context) error { panic("odd object") }, fail, func(context.Context) error { return nil }, fail, fail, long,
		}}
		good, also := &scripted{name: "good"}, &scripted{name: "also"}
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		done := make(chan error, 1)
		started := make(chan struct{})
		go func() {
			p.runAll(ctx, []member{{good, newKinds(nil)}, {bad, newKinds(nil)}, {also, newKinds(nil)}}, func() { close(started) })
			done <- nil
		}()
		select {
		case <-started:
		case <-time.After(time.Minute):
			t.Fatal("never ready")
		}
		<-time.After(10 * time.Minute)
		synctest.Wait()
		s := time.Second
		if got, want := bad.since(start), []time.Duration{0, 1 * s, 3 * s, 7 * s, 11 * s, 15 * s, 76 * s}; !slices.Equal(got, want) {
			t.Errorf("the bad one was started at %v, want %v", got, want)
		}
		for _, c := range []*scripted{good, also} {
			if n := len(c.since(start)); n != 1 {
				t.Errorf("%s was started %d times", c.name, n)
			}
		}
		if n := testutil.ToFloat64(p.metrics.restarts.WithLabelValues("bad")); n != 6 {
			t.Errorf("counted %v restarts, want 6", n)
		}
		if n := testutil.ToFloat64(p.metrics.up.WithLabelValues("good")); n != 1 {
			t.Errorf("the good one is said to be down: %v", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("asked to stop: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{"panic: odd object", "controlplane_test.go", "error=cannot", "controller=bad", "in=4s"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, text.String())
			}
		}
	})
}

// locked is a writer that several goroutines may use.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func TestEnabled(t *testing.T) {
	all := Names()
	for _, name := range []string{ // upstream's, as kube-controller-manager --help has them
		"node-lifecycle-controller", "taint-eviction-controller", "node-ipam-controller", "pod-garbage-collector-controller", "garbage-collector-controller",
		"certificatesigningrequest-approving-controller", "certificatesigningrequest-signing-controller", "certificatesigningrequest-cleaner-controller",
		"ttl-after-finished-controller", "root-ca-certificate-publisher-controller", "serviceaccount-controller", "namespace-controller", "job-controller",
		"serviceaccount-token-controller",
	} {
		if !slices.Contains(all, name) {
			t.Errorf("there is no %s", name)
		}
	}
	without := func(drop ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(drop, n) })
	}
	for _, tc := range []struct {
		selection []string
		want      []string
		says      string
	}{
		{nil, all, ""},
		{[]string{"*"}, all, ""},
		{[]string{}, nil, ""},
		{[]string{"*", "-kube-scheduler"}, without("kube-scheduler"), ""},
		{[]string{"-kube-scheduler", "*"}, without("kube-scheduler"), ""},
		{[]string{"*", "-csrsigning", "-namespace"}, without("certificatesigningrequest-signing-controller", "namespace-controller"), ""},
		{[]string{"*", "-serviceaccount"}, without("serviceaccount-controller"), ""},
		{[]string{"namespace-controller"}, []string{"namespace-controller"}, ""},
		{[]string{"csrapproving", "csrcleaner"}, []string{"certificatesigningrequest-approving-controller", "certificatesigningrequest-cleaner-controller"}, ""},
		{[]string{"-namespace-controller"}, without("namespace-controller"), ""},
		{[]string{"-namespace", "-csrsigning"}, without("namespace-controller", "certificatesigningrequest-signing-controller"), ""},
		{[]string{"-namespace-controller", "kube-scheduler"}, []string{"kube-scheduler"}, ""},
		{[]string{"*", "nosuch"}, nil, `there is no "nosuch"; there are certificatesigningrequest-approving-controller, `},
		{[]string{"*", "-nosuch"}, nil, `there is no "nosuch"`},
		{[]string{""}, nil, `there is no ""`},
	} {
		entries, err := enabled(tc.selection)
		if tc.says != "" {
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%q: got %v, want %q", tc.selection, err, tc.says)
			}
			continue
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.name)
		}
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%q: got %q, %v; want %q", tc.selection, got, err, tc.want)
		}
	}
}

func TestNewChecks(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("accepted without a client")
	}
	if _, err := New(Config{Client: &rest.Config{}, Enabled: []string{"x"}}); err == nil {
		t.Error("accepted with a controller that there is not")
	}
}

// authority writes a certificate authority to files.
func authority(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	certDER, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	err = errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certDER}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// emptyAPI is an API server that holds nothing. It notes which resources were
// listed, and by whom.
type emptyAPI struct {
	mu     sync.Mutex
	listed map[string]bool
}

func (e *emptyAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	switch {
	case q.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case q.Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		e.mu.Lock()
		e.listed[r.URL.Path+" "+r.UserAgent()[strings.LastIndex(r.UserAgent(), "/")+1:]] = true
		e.mu.Unlock()
		fmt.Fprint(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
	}
}

// TestRun starts every controller against an API server that holds nothing, and
// stops them.
func TestRun(t *testing.T) {
	api := &emptyAPI{listed: map[string]bool{}}
	srv := httptest.NewServer(api)
	defer srv.Close()
	cert, key := authority(t)
	p, err := New(Config{Client: &rest.Config{Host: srv.URL}, Signer: csr.SignerConfig{CertFile: cert, KeyFile: key}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	select {
	case <-p.Ready():
	case err := <-done:
		t.Fatalf("ended: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	for _, path := range []string{"/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces", "/apis/certificates.k8s.io/v1/certificatesigningrequests"} {
		if !api.listed[path+" controllers"] {
			t.Errorf("%s was not listed; listed were %v", path, api.listed)
		}
	}
}

// TestRunNeedsTheAuthority: what cannot be made is said at once and by name.
func TestRunNeedsTheAuthority(t *testing.T) {
	p, err := New(Config{Client: &rest.Config{Host: "http://127.0.0.1:1"}, Signer: csr.SignerConfig{CertFile: "/nowhere/ca.crt", KeyFile: "/nowhere/ca.key"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "/nowhere/ca.crt") || !strings.Contains(err.Error(), "signing-controller") {
		t.Errorf("got %v", err)
	}
}
