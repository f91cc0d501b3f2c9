// One real server for all tests of this package: on loopback, with its own etcd,
// and with the certificates that a cluster has.

package apiserver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrest "k8s.io/apiserver/pkg/registry/rest"
	reloading "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
	"github.com/hawser-project/hawser/controlplane/etcd"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/serviceaccount"
)

// serveEnv, set to a data directory, makes the test binary a server: tests that
// kill one run it so.
const serveEnv = "HAWSER_TEST_APISERVER_DIR"

// shared is the server that most tests use.
var shared *instance

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	reloading.EncryptionConfigFileChangePollDuration = 20 * time.Millisecond
	if dir := os.Getenv(serveEnv); dir != "" {
		os.Exit(serveUntilKilled(dir))
	}
	os.Exit(withShared(m))
}

func withShared(m *testing.M) int {
	dir, err := os.MkdirTemp("", "apiserver-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if shared, err = start(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := leaks(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// leaks is an error if goroutines are left after all servers have stopped.
func leaks() error {
	return goleak.Find(
		// Sleeps for 3 s beside a read that has long been answered.
		goleak.IgnoreTopFunction("k8s.io/apiserver/pkg/storage/cacher.(*watchCache).waitUntilFreshLocked.func2"),
		// One for the whole process, started by the first health check.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.Forever"),
	)
}

// instance is a running server.
type instance struct {
	server *apiserver.Server
	config *rest.Config // an administrator's
	client *kubernetes.Clientset
	took   time.Duration // until ready
	stored apiserver.Getters
	cancel context.CancelFunc
	done   chan error
}

// start runs a server on the data in dir, in this process.
func start(dir string) (*instance, error) { return startWith(dir, func(*apiserver.Config) {}) }

func startWith(dir string, change func(*apiserver.Config)) (*instance, error) {
	p, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	in := &instance{done: make(chan error, 1)}
	cfg := testConfig(dir, p, l)
	cfg.Stored = func(g apiserver.Getters) { in.stored = g }
	change(&cfg)
	s, err := apiserver.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	in.server, in.cancel = s, cancel
	began := time.Now()
	go func() { in.done <- run(ctx, s) }()
	select {
	case <-s.Ready():
	case err = <-in.done:
		cancel()
		return nil, fmt.Errorf("server ended before it was ready: %w", err)
	}
	in.took = time.Since(began)
	in.config = as(&rest.Config{
		Host:            "https://" + l.Addr().String(),
		TLSClientConfig: rest.TLSClientConfig{CAFile: p.Path(pki.CA, false)},
	}, "admin", "system:masters")
	in.client, err = kubernetes.NewForConfig(in.config)
	return in, err
}

// run serves, and gives each namespace its default account: without one it has no pods.
func run(ctx context.Context, s *apiserver.Server) error {
	client, err := kubernetes.NewForConfig(s.LoopbackConfig())
	if err != nil {
		return err
	}
	f := informers.NewSharedInformerFactory(client, 0)
	accounts, err := serviceaccount.New(loop.Deps{Client: client, Informers: f}, serviceaccount.Config{})
	if err != nil {
		return err
	}
	return loop.Together(ctx, s.Run, func(ctx context.Context) error {
		select {
		case <-s.Ready():
		case <-ctx.Done():
		}
		defer f.Shutdown()
		f.Start(ctx.Done())
		return accounts.Run(ctx)
	})
}

func testConfig(dir string, p *pki.PKI, l net.Listener) apiserver.Config {
	return apiserver.Config{
		Listener:        l,
		ServingCertFile: p.Path(pki.APIServer, false), ServingKeyFile: p.Path(pki.APIServer, true), ClientCAFile: p.Path(pki.ClientCA, false),
		AdvertiseAddress: netip.MustParseAddr("192.0.2.10"),
		Etcd:             etcd.Config{Dir: filepath.Join(dir, "etcd")},
		Connect:          connect,
		Authenticator:    authenticator.RequestFunc(byName),
		Authorizer:       authorizer.AuthorizerFunc(onlyNamed),
		BuiltinPeriod:    100 * time.Millisecond,
		Log:              slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// connect leads into nodes that cannot be reached.
func connect(g apiserver.Getters) map[string]genericrest.Storage {
	return kubelet.Storages(kubelet.Options{
		Pods: g.Pod, Nodes: g.Node, Services: g.Service, EndpointSlices: g.EndpointSlices, TLS: &tls.Config{MinVersion: tls.VersionTLS13},
		Dial: func(_ context.Context, _, addr string) (net.Conn, error) {
			return nil, fmt.Errorf("no way to %s", addr)
		},
	})
}

// byName believes whoever says who he is by a token NAME/GROUP,…
func byName(r *http.Request) (*authenticator.Response, bool, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	name, groups, named := strings.Cut(token, "/")
	if !ok || !named {
		return nil, false, nil
	}
	u := &user.DefaultInfo{Name: name, UID: "uid-of-" + name, Groups: append(strings.Split(groups, ","), user.AllAuthenticated)}
	return &authenticator.Response{User: u}, true, nil
}

// onlyNamed lets users of the group testers do everything but sign and approve.
func onlyNamed(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	for _, g := range a.GetUser().GetGroups() {
		if g == "testers" && a.GetResource() != "signers" {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "not a tester", nil
}

// as is c with the identity of name in groups.
func as(c *rest.Config, name string, groups ...string) *rest.Config {
	c = rest.CopyConfig(c)
	c.BearerToken = name + "/" + strings.Join(groups, ",")
	c.QPS = -1
	return c
}

func (i *instance) stop() error {
	i.cancel()
	return <-i.done
}

// serveUntilKilled is the other process of tests that need one: it prints its
// address and an administrator's way in, and serves.
func serveUntilKilled(dir string) int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	in, err := startWith(dir, func(c *apiserver.Config) { c.BuiltinPeriod = 0 })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready", in.config.Host, in.took.Round(time.Millisecond)) // the address is what a test reads
	select {
	case <-ctx.Done():
		err = in.stop()
	case err = <-in.done:
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
