// What was acknowledged survives: a stop, a start, and a kill -9.

package apiserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

// other is a server in a process of its own.
type other struct {
	cmd    *exec.Cmd
	client *kubernetes.Clientset
}

// startOther runs this binary as a server on dir and waits until it is ready.
func startOther(t *testing.T, dir string) *other {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out := must(cmd.StdoutPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &other{cmd: cmd}
	t.Cleanup(func() { o.end(syscall.SIGKILL) })
	line, err := bufio.NewReader(out).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) < 2 || fields[0] != "ready" {
		t.Fatalf("server said %q, %v", line, err)
	}
	config := as(&rest.Config{Host: fields[1], TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "pki", "ca.crt")}}, "admin", "system:masters")
	o.client = must(kubernetes.NewForConfig(config))(t)
	return o
}

// end signals the process and waits for it. Calling it again is harmless.
func (o *other) end(signal os.Signal) error {
	if o.cmd.ProcessState != nil {
		return nil
	}
	if err := o.cmd.Process.Signal(signal); err != nil {
		return err
	}
	return o.cmd.Wait()
}

func TestKill(t *testing.T) {
	dir := t.TempDir()
	const writers, enough = 4, 200
	o := startOther(t, dir)
	// Writers write until the server is gone; what they were told is written
	// must be there afterwards.
	acked := make(chan string, 1<<16)
	done := make(chan struct{}, writers)
	killed := make(chan struct{})
	for w := range writers {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range 1 << 16 / writers {
				name := fmt.Sprintf("w%d-%d", w, i)
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"name": name}}
				if _, err := o.client.CoreV1().ConfigMaps("default").Create(context.Background(), m, metav1.CreateOptions{}); err != nil {
					select {
					case <-killed:
					default:
						t.Errorf("write %s before the kill: %v", name, err)
					}
					return
				}
				acked <- name
			}
		}()
	}
	written := map[string]bool{}
	for len(written) < enough {
		written[<-acked] = true
	}
	close(killed)
	if err := o.end(syscall.SIGKILL); err == nil {
		t.Fatal("killed, and ended well")
	}
	for range writers {
		<-done
	}
	close(acked)
	for name := range acked {
		written[name] = true
	}

	o = startOther(t, dir)
	list := must(o.client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}))(t)
	for _, m := range list.Items {
		if m.Data["name"] == m.Name {
			delete(written, m.Name)
		}
	}
	for name := range written {
		t.Errorf("%s was acknowledged and is lost", name)
	}
	// Addresses in use before are in use still.
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := o.client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the address of default/kubernetes: %v", err)
	}
	if err := o.end(syscall.SIGTERM); err != nil {
		t.Errorf("asked to stop: %v", err)
	}
}

// TestOneServerAtATime starts a second server on the data of the shared one.
func TestOneServerAtATime(t *testing.T) {
	dir := filepath.Dir(filepath.Dir(shared.config.CAFile))
	in, err := start(dir)
	if err == nil {
		in.stop()
		t.Fatal("two servers on one directory")
	}
	if !errors.Is(err, etcd.ErrLocked) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// TestStopInTime stops a server that has watches open.
func TestStopInTime(t *testing.T) {
	o := startOther(t, t.TempDir())
	w := must(o.client.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	began := time.Now()
	if err := o.end(syscall.SIGTERM); err != nil {
		t.Errorf("asked to stop: %v", err)
	}
	if took := time.Since(began); took > 2*time.Minute {
		t.Errorf("stopped after %v", took)
	}
	t.Logf("stopped after %v", time.Since(began).Round(time.Millisecond))
}

// ownStore runs an etcd in a directory e of dir until the test is over.
func ownStore(t *testing.T, dir string) *etcd.Server {
	t.Helper()
	store := must(etcd.New(etcd.Config{Dir: filepath.Join(dir, "e")}))(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stored := make(chan error, 1)
	go func() { stored <- store.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stored; err != nil {
			t.Error(err)
		}
	})
	<-store.Ready()
	return store
}

// TestExternalStore runs a server on an etcd that is not its own.
func TestExternalStore(t *testing.T) {
	dir := t.TempDir()
	store := ownStore(t, dir)
	in, err := startWith(dir, func(c *apiserver.Config) {
		c.Etcd = etcd.Config{}
		c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
	})
	if err != nil {
		t.Fatal(err)
	}
	w := must(in.client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	must(in.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}))(t)
	if event := <-w.ResultChan(); event.Type != watch.Added {
		t.Errorf("%v", event)
	}
	got := must(store.Client().Get(t.Context(), "/registry/configmaps/default/m"))(t)
	if len(got.Kvs) != 1 || !strings.HasPrefix(string(got.Kvs[0].Value), "k8s\x00") {
		t.Errorf("stored: %v", got.Kvs)
	}
	if err := in.stop(); err != nil {
		t.Error(err)
	}
}

// TestUnreadableObject: one object that cannot be read, and its kind not listed, stops
// neither the server nor other kinds; when it is gone the kind is back.
func TestUnreadableObject(t *testing.T) {
	t.Parallel()
	const key = "/registry/serviceaccounts/default/unreadable"
	dir := t.TempDir()
	store := ownStore(t, dir)
	must(store.Client().Put(t.Context(), key, "k8s\x00garbage"))(t)
	in, err := startWith(dir, func(c *apiserver.Config) {
		c.Etcd = etcd.Config{}
		c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
		c.ReadyBound = time.Second
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	list := func() error { // without the client's retries, which wait
		return in.client.CoreV1().RESTClient().Get().Resource("serviceaccounts").MaxRetries(0).Do(t.Context()).Error()
	}
	if list() == nil {
		t.Fatal("the kind can be listed")
	}
	must(in.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}))(t)
	must(in.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))(t)
	must(store.Client().Delete(t.Context(), key))(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		err := list()
		if err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}

// TestUnreadableDefinition: a definition and an APIService that cannot be read stop neither
// the server nor what it serves itself; when they are gone kinds can be defined.
func TestUnreadableDefinition(t *testing.T) {
	t.Parallel()
	keys := []string{"/registry/apiextensions.k8s.io/customresourcedefinitions/unreadable", "/registry/apiregistration.k8s.io/apiservices/unreadable"}
	dir := t.TempDir()
	store := ownStore(t, dir)
	for _, key := range keys {
		must(store.Client().Put(t.Context(), key, "garbage"))(t)
	}
	in := must(startWith(dir, func(c *apiserver.Config) {
		c.Etcd = etcd.Config{}
		c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
		c.ReadyBound = time.Second
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	must(in.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}))(t)
	must(in.client.AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{}))(t)
	for _, key := range keys {
		must(store.Client().Delete(t.Context(), key))(t)
	}
	gvr := define(t, in, "readable.example.com")
	must(objectsOf(t, in, gvr, "default").Create(t.Context(), widget(gvr, "a", map[string]any{"size": "small"}), metav1.CreateOptions{}))(t)
}

// TestStartsBesideWebhookThatFails: a webhook that refuses all writes, or lets them wait, does not
// keep a server from starting and stopping. What the server could not make it makes once that is
// possible.
func TestStartsBesideWebhookThatFails(t *testing.T) {
	t.Run("refuses", func(t *testing.T) {
		testStartsBeside(t, admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")}, 1, "system:node-problem-detector")
	})
	t.Run("waits", func(t *testing.T) {
		h := startHookWith(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then the end of the connection is noticed
			<-r.Context().Done()
		})
		testStartsBeside(t, admissionv1.WebhookClientConfig{URL: ptr.To(h.URL), CABundle: h.ca}, 30,
			"system:node-problem-detector", "system:kube-dns", "system:monitoring", "system:auth-delegator")
	})
}

func testStartsBeside(t *testing.T, to admissionv1.WebhookClientConfig, timeout int32, roles ...string) {
	t.Parallel()
	dir := t.TempDir()
	in := must(start(dir))(t)
	for _, list := range must(in.client.FlowcontrolV1().FlowSchemas().List(t.Context(), metav1.ListOptions{}))(t).Items {
		if list.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] == "" {
			t.Errorf("the next start has to write flow schema %s", list.Name)
		}
	}
	for _, role := range roles {
		if err := in.client.RbacV1().ClusterRoles().Delete(t.Context(), role, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	hook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name:         "all.hawser.dev",
		ClientConfig: to,
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.OperationAll},
			Rule:       admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
		}},
		FailurePolicy: ptr.To(admissionv1.Fail), TimeoutSeconds: &timeout,
		SideEffects: ptr.To(admissionv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
	}}}
	if _, err := in.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), hook, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := in.stop(); err != nil {
		t.Fatal(err)
	}
	// Twice: the stop in between does not wait either. Nobody waits for as long as all the writes do.
	for range 2 {
		in = must(start(dir))(t)
		if in.took > 30*time.Second {
			t.Errorf("ready after %v", in.took)
		}
		if _, err := in.client.RbacV1().ClusterRoles().Get(t.Context(), roles[0], metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the webhook lets a cluster role pass: %v", err)
		}
		began := time.Now()
		if err := in.stop(); err != nil || time.Since(began) > 30*time.Second {
			t.Errorf("stopped after %v: %v", time.Since(began), err)
		}
	}
	in = must(start(dir))(t)
	t.Cleanup(func() { _ = in.stop() })
	if err := in.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "all", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the cluster role is made", func() bool {
		_, err := in.client.RbacV1().ClusterRoles().Get(t.Context(), roles[len(roles)-1], metav1.GetOptions{})
		return err == nil
	})
}
