package controlplane

// Tests of who is a node, on the whole control plane: one key at a time, until an
// administrator says otherwise.

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// All on one cluster, each with nodes of its own.
func TestIdentities(t *testing.T) {
	c := startCluster(t)
	for name, test := range map[string]func(*testing.T, *cluster){
		"revoked": revokedNode, "revoked requests": revokedNodeRequests, "revoked tokens": revokedNodeTokens,
		"deleted": deletedNodeIsNobody, "wanted by many": manyMachinesWantOneName, "its own": nodeAndItsIdentity,
	} {
		t.Run(name, func(t *testing.T) {
			own := *c
			own.t = t
			test(t, &own)
		})
	}
}

// askFor makes a request for a node's client certificate by client, and returns what
// becomes of it and a client with it if it was issued.
func (c *cluster) askFor(client kubernetes.Interface, request, node string) (*certificatesv1.CertificateSigningRequest, *kubernetes.Clientset) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	r := c.ask(client, request, certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:"+node, nil, key)
	if len(r.Status.Certificate) == 0 {
		return r, nil
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	return r, c.client(&rest.Config{Host: c.host, TLSClientConfig: rest.TLSClientConfig{
		CAFile: c.ca, CertData: r.Status.Certificate, KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}})
}

// out waits until a node's client is nobody to the API server, and checks that it
// stays so.
func (c *cluster) out(step string, client kubernetes.Interface, node string) {
	c.t.Helper()
	began := time.Now()
	for {
		_, err := client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
		if apierrors.IsUnauthorized(err) {
			break
		}
		if time.Since(began) > patience {
			c.t.Fatalf("%s: still somebody: %v", step, err)
		}
		<-time.After(10 * time.Millisecond)
	}
	for range 5 {
		if _, err := client.CoreV1().Services("").List(c.t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			c.t.Errorf("%s: somebody again: %v", step, err)
		}
	}
}

// flows waits until a watch tells something: one that is open so far may be about to end.
func (c *cluster) flows(w watch.Interface) {
	c.t.Helper()
	select {
	case _, open := <-w.ResultChan():
		if !open {
			c.t.Fatal("the watch has ended")
		}
	case <-time.After(patience):
		c.t.Fatal("the watch tells nothing")
	}
}

// onNode binds a new pod to a node.
func (c *cluster) onNode(node string) *corev1.Pod {
	c.t.Helper()
	pod, err := c.admin.CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "on-" + node},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return pod
}

func revokedNode(t *testing.T, c *cluster) {
	token, ctx := c.token("aaaaaa", time.Hour), t.Context()
	one, other := c.join(token, "revoked"), c.join(token, "revoked-other")
	renewed, second := c.askFor(one, "revoked-renewal", "revoked")
	if second == nil {
		t.Fatalf("the renewal was refused: %+v", renewed.Status.Conditions)
	}
	watch, err := one.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=revoked"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	c.onNode("revoked")
	c.flows(watch)
	if _, err = second.CoreV1().Nodes().Get(ctx, "revoked", metav1.GetOptions{}); err != nil {
		t.Errorf("with its new certificate: %v", err)
	}
	book := nodekeys.NewBook(c.admin)
	if _, err := book.Revoke(ctx, "revoked", "root", "stolen"); err != nil {
		t.Fatal(err)
	}
	c.out("the first certificate", one, "revoked")
	c.out("the renewed one", second, "revoked")
	deadline := time.After(patience)
	for open := true; open; {
		select {
		case _, open = <-watch.ResultChan():
		case <-deadline:
			t.Fatal("its watch goes on")
		}
	}
	if _, err := other.CoreV1().Nodes().Get(ctx, "revoked-other", metav1.GetOptions{}); err != nil {
		t.Errorf("another node: %v", err)
	}
	if r, _ := c.askFor(token, "revoked-back", "revoked"); r.Status.Conditions[0].Type != certificatesv1.CertificateDenied ||
		!strings.Contains(r.Status.Conditions[0].Message, "stolen") {
		t.Errorf("with a join token: %+v", r.Status.Conditions)
	}
	if err := book.Allow(ctx, "revoked", "root", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	c.out("allowed, and not taken", one, "revoked")
	r, third := c.askFor(token, "revoked-again", "revoked")
	if third == nil {
		t.Fatalf("allowed: %+v", r.Status.Conditions)
	}
	if _, err := third.CoreV1().Nodes().Get(ctx, "revoked", metav1.GetOptions{}); err != nil {
		t.Errorf("the new machine: %v", err)
	}
	c.out("after that", one, "revoked")
	c.out("after that", second, "revoked")
}

// What a revoked node had begun ends, however it is written: a watch whose name is
// percent-encoded, and a write whose body comes later.
func revokedNodeRequests(t *testing.T, c *cluster) {
	ctx, one := t.Context(), c.join(c.token("bbbbbb", time.Hour), "requests")
	rc, ok := one.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok {
		t.Fatal("not a REST client")
	}
	do := func(ctx context.Context, method, uri string, body io.Reader) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, method, c.host+uri, body)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", string(types.MergePatchType))
		r.Header.Set("Expect", "100-continue")
		return rc.Client.Do(r)
	}
	watch, err := do(ctx, http.MethodGet, "/api/v1/pods?w%61tch=1&fieldSelector=spec.nodeName%3Drequests&timeoutSeconds=100000", nil)
	if err != nil || watch.StatusCode != http.StatusOK {
		t.Fatalf("watch: %v, %v", watch, err)
	}
	defer watch.Body.Close()
	c.onNode("requests")
	if _, err := watch.Body.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the watch tells nothing: %v", err)
	}
	text, more := io.Pipe()
	reading, wrote := make(chan struct{}), make(chan string, 1)
	go func() {
		traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { close(reading) }})
		resp, err := do(traced, http.MethodPatch, "/api/v1/nodes/requests", text)
		if err != nil {
			wrote <- err.Error()
			return
		}
		_ = resp.Body.Close() // the status is what counts
		wrote <- resp.Status
	}()
	<-reading
	if _, err = nodekeys.NewBook(c.admin).Revoke(ctx, "requests", "root", "stolen"); err != nil {
		t.Fatal(err)
	}
	c.out("revoked", one, "requests")
	go func() {
		_, _ = io.WriteString(more, `{"metadata":{"labels":{"late":"yes"}}}`) // the server may have gone
		_ = more.Close()
	}()
	t.Logf("the write: %s", <-wrote)
	ended := make(chan error, 1)
	go func() { ended <- second(io.ReadAll(watch.Body)) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("its watch goes on")
	}
	n, err := c.admin.CoreV1().Nodes().Get(ctx, "requests", metav1.GetOptions{})
	if err != nil || n.Labels["late"] != "" {
		t.Errorf("labels %v, %v", n.Labels, err)
	}
}

// The tokens that a node has got for its pods are worth nothing once it is revoked, and
// what was begun with them ends. Those of other nodes' pods go on.
func revokedNodeTokens(t *testing.T, c *cluster) {
	ctx, join := t.Context(), c.token("cccccc", time.Hour)
	if _, err := c.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "robots"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "default"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	robot := func(m *machine) *kubernetes.Clientset {
		pod := c.onNode(m.name)
		r, err := m.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c.client(&rest.Config{Host: c.host, BearerToken: r.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}})
	}
	stolen, other := robot(c.join(join, "tokens")), robot(c.join(join, "tokens-other"))
	watch, err := stolen.CoreV1().Secrets("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "seen-by-robots", Namespace: "default"}}
	if _, err := c.admin.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.flows(watch)
	book := nodekeys.NewBook(c.admin)
	if _, err := book.Revoke(ctx, "tokens", "root", "stolen"); err != nil {
		t.Fatal(err)
	}
	c.out("a token of its pod", stolen, "tokens")
	deadline := time.After(patience)
	for open := true; open; {
		select {
		case _, open = <-watch.ResultChan():
		case <-deadline:
			t.Fatal("the watch goes on")
		}
	}
	if _, err := other.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("a token of another's pod: %v", err)
	}
	if err := book.Allow(ctx, "tokens", "root", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	c.out("allowed, and not taken", stolen, "tokens")
	if r, next := c.askFor(join, "tokens-again", "tokens"); next == nil {
		t.Fatalf("allowed: %+v", r.Status.Conditions)
	}
	c.out("taken by another machine: the pod lives on", stolen, "tokens")
	if err := c.admin.CoreV1().Nodes().Delete(ctx, "tokens", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.out("deleted: the pod lives on", stolen, "tokens")
	if r, next := c.askFor(join, "tokens-anew", "tokens"); next == nil {
		t.Fatalf("deleted: %+v", r.Status.Conditions)
	}
	c.out("taken after the deletion: the pod lives on", stolen, "tokens")
}

// A Node that is deleted takes its key with it, and leaves its name to the first who
// comes with a join token.
func deletedNodeIsNobody(t *testing.T, c *cluster) {
	token, ctx := c.token("dddddd", time.Hour), t.Context()
	one := c.join(token, "deleted")
	if err := c.admin.CoreV1().Nodes().Delete(ctx, "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.out("deleted", one, "deleted")
	if _, err := c.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "deleted"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.out("made by somebody", one, "deleted")
	r, again := c.askFor(token, "deleted-again", "deleted")
	if again == nil {
		t.Fatalf("with a join token: %+v", r.Status.Conditions)
	}
	if _, err := again.CoreV1().Nodes().Get(ctx, "deleted", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	c.out("after that", one, "deleted")
}

// Of many machines that ask for one name at once one gets it, and only that one is
// believed.
func manyMachinesWantOneName(t *testing.T, c *cluster) {
	token := c.token("eeeeee", time.Hour)
	var (
		wg     sync.WaitGroup
		issued atomic.Int64
	)
	for i := range 8 {
		wg.Go(func() {
			r, client := c.askFor(token, fmt.Sprintf("r-%d", i), "wanted")
			if client == nil {
				if !strings.Contains(r.Status.Conditions[0].Message, "held by the key of another machine") {
					t.Errorf("refused because %+v", r.Status.Conditions)
				}
				return
			}
			issued.Add(1)
			if _, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := issued.Load(); n != 1 {
		t.Errorf("%d machines have the name", n)
	}
}

// A node does nothing to its own identity, or to another's, whatever way it takes.
func nodeAndItsIdentity(t *testing.T, c *cluster) {
	token, ctx := c.token("ffffff", time.Hour), t.Context()
	one := c.join(token, "itself")
	maps := one.CoreV1().ConfigMaps(nodekeys.Namespace)
	// Not even through a pod that names the object.
	if _, err := c.admin.CoreV1().Pods(nodekeys.Namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "itself", Containers: []corev1.Container{{
			Name: "c", Image: "none", EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "itself"}}}},
		}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, get := maps.Get(ctx, "itself", metav1.GetOptions{})
	_, list := maps.List(ctx, metav1.ListOptions{})
	_, patch := maps.Patch(ctx, "itself", types.MergePatchType, []byte(`{"data":{"record":"{}"}}`), metav1.PatchOptions{})
	_, create := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{})
	_, ns := one.CoreV1().Namespaces().Patch(ctx, nodekeys.Namespace, types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{})
	_, asked := c.admin.CoreV1().ConfigMaps(nodekeys.Namespace).Get(ctx, "itself", metav1.GetOptions{})
	for what, err := range map[string]error{
		"get": get, "list": list, "patch": patch, "create": create, "patch its namespace": ns,
		"delete":              maps.Delete(ctx, "itself", metav1.DeleteOptions{}),
		"delete its Node":     one.CoreV1().Nodes().Delete(ctx, "itself", metav1.DeleteOptions{}),
		"delete its request":  one.CertificatesV1().CertificateSigningRequests().Delete(ctx, "first-itself", metav1.DeleteOptions{}),
		"approve its request": approve(t, one, "first-itself"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if asked != nil {
		t.Error(asked)
	}
	if err := c.admin.CoreV1().Namespaces().Delete(ctx, nodekeys.Namespace, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the namespace can be deleted: %v", err)
	}
}

// approve approves a request as the holder of client.
func approve(t *testing.T, client kubernetes.Interface, name string) error {
	t.Helper()
	_, err := client.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), name,
		&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.UpdateOptions{})
	return err
}
