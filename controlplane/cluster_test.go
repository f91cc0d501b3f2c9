package controlplane

// A test of everything together: a real API server with its store, the
// authenticator, authorizer and admission plugin of package kubeauth, and all
// the controllers; and a machine that becomes a node, the way an agent does it.

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/auth/rbac"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/csr"
	"github.com/hawser-project/hawser/controlplane/etcd"
	"github.com/hawser-project/hawser/controlplane/leader"
)

// patience is how long a test waits for what should take a moment.
const patience = 2 * time.Minute

// A keeper is made when there is an API server to ask, and that is made with it.
type keeper struct{ *nodekeys.Keeper }

// A cluster is a running control plane.
type cluster struct {
	names *nodekeys.Keeper
	t     *testing.T
	host  string
	ca    string
	keys  *pki.PKI
	admin *kubernetes.Clientset
	// writers is who has written.
	writers *writers
	// resign stops the controllers that the cluster was started with.
	resign func()
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	return startClusterIn(t, t.TempDir())
}

// startClusterIn starts one with the data in dir, whose API server is told also what
// change says.
func startClusterIn(t *testing.T, dir string, change ...func(*apiserver.Config)) *cluster {
	t.Helper()
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, host: "https://" + l.Addr().String(), ca: keys.Path(pki.CA, false), keys: keys, writers: &writers{last: map[string]string{}, refused: map[string]bool{}}}
	t.Cleanup(func() { c.writers.check(t) })
	known := kubeauth.NewObjects()
	names := &keeper{}
	tokens, err4 := accounttoken.New(accounttoken.Config{Signer: keys.AccountKeys().Signer, Public: keys.AccountKeys().Public})
	if err4 != nil {
		t.Fatal(err4)
	}
	authn, err := kubeauth.NewAuthenticator(kubeauth.AuthenticatorConfig{
		ClientCAFile: keys.Path(pki.ClientCA, false), Secrets: known.Secret, Names: names,
		Accounts: tokens.Authenticator(known.Bound), Audiences: tokens.Audiences(),
	})
	roles, nodes := &rbac.Authorizer{}, kubeauth.NewAuthorizer(known)
	authz, err3 := union.New(union.NamedAuthorizer{AuthorizerName: "Node", Authorizer: nodes}, union.NamedAuthorizer{AuthorizerName: "RBAC", Authorizer: roles})
	restriction, err2 := kubeauth.NodeRestriction(kubeauth.RestrictionConfig{Objects: known})
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	config := apiserver.Config{
		Listener: l, ServingCertFile: keys.Path(pki.APIServer, false), ServingKeyFile: keys.Path(pki.APIServer, true), ClientCAFile: keys.Path(pki.ClientCA, false),
		Etcd: etcd.Config{Dir: filepath.Join(dir, "etcd")}, EnableGarbageCollector: true,
		Wrap:          func(next http.Handler) http.Handler { return c.writers.note(kubeauth.EndRequests(names, next)) },
		Authenticator: authn, Tokens: tokens, Authorizer: authz, Rules: union.NewRuleResolvers(nodes, roles),
		Admission: []admission.Interface{restriction, rbac.Escalation(roles)},
	}
	for _, f := range change {
		f(&config)
	}
	api, err := apiserver.New(config)
	if err != nil {
		t.Fatal(err)
	}
	loopback, err := kubernetes.NewForConfig(api.LoopbackConfig())
	if err != nil {
		t.Fatal(err)
	}
	f := informers.NewSharedInformerFactory(loopback, 0)
	if err = errors.Join(known.Use(loopback, f), roles.Use(f)); err != nil {
		t.Fatal(err)
	}
	if names.Keeper, err = nodekeys.New(nodekeys.Config{Client: loopback, Nodes: f.Core().V1().Nodes().Informer()}); err != nil {
		t.Fatal(err)
	}
	c.names = names.Keeper
	c.admin = c.client(c.as(keys, pki.Admin))
	c.run(api, f)
	c.begin("identities", c.names.Run, c.names.Ready())
	c.resign = c.manage("first")
	return c
}

// manage runs controllers until stop is called or the test ends.
func (c *cluster) manage(identity string) (stop func()) {
	c.t.Helper()
	controllers, err := New(Config{
		Client: c.as(c.keys, pki.ControllerManager), SchedulerClient: c.as(c.keys, pki.Scheduler),
		Signer: csr.SignerConfig{
			CertFile: c.keys.Path(pki.ClientCA, false), KeyFile: c.keys.Path(pki.ClientCA, true),
			ServingCertFile: c.keys.Path(pki.KubeletCA, false), ServingKeyFile: c.keys.Path(pki.KubeletCA, true),
		},
		SchedulerMinBackoff: 100 * time.Millisecond, CollectGarbage: true,
		Leader: &leader.Config{Identity: identity}, Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.begin("controllers of "+identity, controllers.Run, controllers.Ready())
}

// run starts the API server and what looks at it for the authorizer.
func (c *cluster) run(api *apiserver.Server, f informers.SharedInformerFactory) {
	c.t.Helper()
	c.begin("API server", api.Run, api.Ready())
	synced := make(chan struct{})
	c.begin("informers", func(ctx context.Context) error {
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
		close(synced)
		<-ctx.Done()
		f.Shutdown()
		return nil
	}, synced)
}

// begin starts a part and waits until it is ready. What was begun later is stopped
// first at the test's end.
func (c *cluster) begin(name string, run func(context.Context) error, ready <-chan struct{}) (stop func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
	})
	c.t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		c.t.Fatalf("%s ended: %v", name, err)
	case <-time.After(patience):
		c.t.Fatalf("%s is not ready after %s", name, patience)
	}
	return stop
}

func (c *cluster) as(keys *pki.PKI, name string) *rest.Config {
	c.t.Helper()
	conf := &rest.Config{Host: c.host, TLSClientConfig: rest.TLSClientConfig{
		CAFile: c.ca, CertFile: keys.Path(name, false), KeyFile: keys.Path(name, true),
	}}
	// client-go follows files by goroutines that outlive the client.
	if err := rest.LoadTLSFiles(conf); err != nil {
		c.t.Fatal(err)
	}
	conf.CAFile, conf.CertFile, conf.KeyFile = "", "", ""
	return conf
}

// token makes a bootstrap token and returns a client that uses it.
func (c *cluster) token(id string, expires time.Duration) *kubernetes.Clientset {
	c.t.Helper()
	const secret = "0123456789abcdef"
	_, err := c.admin.CoreV1().Secrets("kube-system").Create(c.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": kubeauth.JoinGroup,
			"expiration":        time.Now().Add(expires).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.client(&rest.Config{Host: c.host, BearerToken: id + "." + secret, TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}})
}

// ask makes a request by client and returns it once it has been decided about.
func (c *cluster) ask(client kubernetes.Interface, name, signer, cn string, dns []string, key crypto.Signer) *certificatesv1.CertificateSigningRequest {
	c.t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: cn, Organization: []string{"system:nodes"}}, DNSNames: dns,
	}, key)
	if err != nil {
		c.t.Fatal(err)
	}
	usage := certificatesv1.UsageClientAuth
	if signer == certificatesv1.KubeletServingSignerName {
		usage = certificatesv1.UsageServerAuth
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	made, err := requests.Create(c.t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	// From its creation: a watch from now on is refused while the watch cache is three seconds behind.
	w, err := requests.Watch(c.t.Context(), metav1.SingleObject(made.ObjectMeta))
	if err != nil {
		c.t.Fatalf("watch my own request: %v", err)
	}
	defer w.Stop()
	return until(c.t, w, func(r *certificatesv1.CertificateSigningRequest) bool {
		denied := len(r.Status.Conditions) > 0 && r.Status.Conditions[0].Type == certificatesv1.CertificateDenied
		return denied || len(r.Status.Certificate) > 0
	})
}

// until waits for an object of a watch.
func until[T runtime.Object](t *testing.T, w watch.Interface, want func(T) bool) T {
	t.Helper()
	deadline := time.After(patience)
	var last runtime.Object
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatalf("the watch ended; last seen %+v", last)
			}
			last = e.Object
			if obj, ok := e.Object.(T); ok && want(obj) {
				return obj
			}
		case <-deadline:
			t.Fatalf("not within %s; last seen %+v", patience, last)
		}
	}
}

func TestCluster(t *testing.T) {
	c := startCluster(t)
	ctx := t.Context()
	if _, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token := c.token("abcdef", time.Hour)
	one, two := c.join(token, "node-1"), c.join(token, "node-2")
	first, second := c.pod("first", "600m", "node-1"), c.pod("second", "600m", "node-2")
	if first.Spec.NodeName != "node-1" || second.Spec.NodeName != "node-2" {
		t.Fatalf("pods are on %s and %s", first.Spec.NodeName, second.Spec.NodeName)
	}
	t.Run("a node does its work", func(t *testing.T) { worksOnItsOwn(t, one, first) })
	t.Run("a node keeps off others", func(t *testing.T) { keepsOff(t, one, two) })
	t.Run("a node claims nothing of others", func(t *testing.T) { claimsNothing(t, c, one, second) })
	t.Run("a token does nothing else", func(t *testing.T) { tokenDoesLittle(t, c, token) })
	t.Run("a name that is held", func(t *testing.T) { nameIsHeld(t, c, token) })
	t.Run("a pod that waits for room", func(t *testing.T) { waitsForRoom(t, c) })
	t.Run("a namespace goes", func(t *testing.T) { namespaceGoes(t, c) })
}

func worksOnItsOwn(t *testing.T, m *machine, pod *corev1.Pod) {
	ctx := t.Context()
	list, err := m.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + m.name})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != pod.Name {
		t.Errorf("its pods: %v, %v", list, err)
	}
	if _, err := m.CoreV1().Secrets("work").Get(ctx, "secret-"+pod.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("a secret of its pod: %v", err)
	}
	patch := []byte(`{"metadata":{"uid":"` + string(pod.UID) + `"},"status":{"phase":"Running"}}`)
	if _, err := m.CoreV1().Pods("work").Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("its pod's status: %v", err)
	}
	if _, err := m.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("services: %v", err)
	}
	if _, err := m.CoreV1().Pods("work").Get(ctx, "gone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is gone: %v", err)
	}
}

func tokenDoesLittle(t *testing.T, c *cluster, token kubernetes.Interface) {
	ctx := t.Context()
	if _, err := token.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list nodes: %v", err)
	}
	if _, err := token.CertificatesV1().CertificateSigningRequests().Get(ctx, "serving-node-1", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("read a node's request: %v", err)
	}
	expired := c.token("fedcba", -time.Minute)
	if _, err := expired.CertificatesV1().CertificateSigningRequests().Get(ctx, "x", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("an expired token: %v", err)
	}
	nobody := c.client(&rest.Config{Host: c.host, TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}})
	if _, err := nobody.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("nobody: %v", err)
	}
	w, err := c.admin.CoreV1().Secrets("kube-system").Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: "bootstrap-token-fedcba"}))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for deadline := time.After(patience); ; {
		select {
		case e := <-w.ResultChan():
			if e.Type == watch.Deleted {
				return
			}
		case <-time.After(time.Second):
			// It may have gone before the watch began.
			if _, err := c.admin.CoreV1().Secrets("kube-system").Get(ctx, "bootstrap-token-fedcba", metav1.GetOptions{}); apierrors.IsNotFound(err) {
				return
			}
		case <-deadline:
			t.Fatal("the expired token is not deleted")
		}
	}
}

func nameIsHeld(t *testing.T, c *cluster, token kubernetes.Interface) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := c.ask(token, "again-node-1", certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:node-1", nil, key)
	if len(r.Status.Certificate) > 0 || !strings.Contains(r.Status.Conditions[0].Message, `node name "node-1" is held by the key of another machine`) {
		t.Errorf("got %+v", r.Status)
	}
}

// waitsForRoom: a pod that does not fit says so, and is bound when there is room.
func waitsForRoom(t *testing.T, c *cluster) {
	ctx := t.Context()
	_, err := c.admin.CoreV1().Pods("work").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "third"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("500m")}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const why, preempts = "0/2 nodes are available: 2 Insufficient cpu.", " preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
	c.podUntil("third", func(p *corev1.Pod) bool {
		cs := p.Status.Conditions
		return len(cs) == 1 && cs[0].Reason == corev1.PodReasonUnschedulable && cs[0].Message == why+preempts
	})
	now := int64(0)
	if err = c.admin.CoreV1().Pods("work").Delete(ctx, "second", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	c.podUntil("third", func(p *corev1.Pod) bool { return p.Spec.NodeName == "node-2" })
	w, err := c.admin.CoreV1().Events("work").Watch(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=third", ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	until(t, w, func(e *corev1.Event) bool { return e.Reason == "FailedScheduling" && e.Message == why+preempts })
}

func namespaceGoes(t *testing.T, c *cluster) {
	ctx, namespaces := t.Context(), c.admin.CoreV1().Namespaces()
	w, err := namespaces.Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: "work"}))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := namespaces.Delete(ctx, "work", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The pods are on nodes whose kubelets are this test: they end as theirs would.
	now := int64(0)
	for _, name := range []string{"first", "third"} {
		if err := c.admin.CoreV1().Pods("work").Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	deadline := time.After(patience)
	for {
		select {
		case e := <-w.ResultChan():
			if e.Type == watch.Deleted {
				left, err := c.admin.CoreV1().Secrets("work").List(ctx, metav1.ListOptions{})
				if err != nil || len(left.Items) > 0 {
					t.Errorf("left in it: %v, %v", left, err)
				}
				return
			}
		case <-deadline:
			ns, err := namespaces.Get(ctx, "work", metav1.GetOptions{})
			t.Fatalf("not gone after %s: %+v, %v", patience, ns.Status, err)
		}
	}
}
