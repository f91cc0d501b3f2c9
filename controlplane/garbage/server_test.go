package garbage

// A test against a real API server, with the rights that controllers have.

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/etcd"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// begin runs f until the test ends.
func begin(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// serve runs an API server and a collector, and returns an administrator.
func serve(t *testing.T) (kubernetes.Interface, metadata.Interface) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	keys, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	must(err)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(err)
	known := kubeauth.NewObjects()
	authn, err := kubeauth.NewAuthenticator(kubeauth.AuthenticatorConfig{ClientCAFile: keys.Path(pki.ClientCA, false), Secrets: known.Secret})
	must(err)
	authz := kubeauth.NewAuthorizer(known)
	api, err := apiserver.New(apiserver.Config{
		Listener: l, ServingCertFile: keys.Path(pki.APIServer, false), ServingKeyFile: keys.Path(pki.APIServer, true), ClientCAFile: keys.Path(pki.ClientCA, false),
		Etcd: etcd.Config{Dir: filepath.Join(dir, "etcd")}, Authenticator: authn, Authorizer: authz, Rules: authz, EnableGarbageCollector: true,
	})
	must(err)
	loopback, err := kubernetes.NewForConfig(api.LoopbackConfig())
	must(err)
	f := informers.NewSharedInformerFactory(loopback, 0)
	must(known.Use(loopback, f))
	begin(t, api.Run)
	select {
	case <-api.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the API server does not get ready")
	}
	begin(t, func(ctx context.Context) error {
		f.Start(ctx.Done())
		<-ctx.Done()
		f.Shutdown()
		return nil
	})
	as := func(name string) *rest.Config {
		c := &rest.Config{Host: "https://" + l.Addr().String(), QPS: -1}
		var bad error
		for file, data := range map[string]*[]byte{keys.Path(pki.CA, false): &c.CAData, keys.Path(name, false): &c.CertData, keys.Path(name, true): &c.KeyData} {
			*data, bad = os.ReadFile(file)
			must(bad)
		}
		return c
	}
	client, err := kubernetes.NewForConfig(as(pki.ControllerManager))
	must(err)
	objects, err := loop.NewObjects(as(pki.ControllerManager))
	must(err)
	c, err := New(loop.Deps{Client: client, Objects: objects, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}, Config{})
	must(err)
	begin(t, c.Run)
	admin, err := kubernetes.NewForConfig(as(pki.Admin))
	must(err)
	all, err := metadata.NewForConfig(as(pki.Admin))
	must(err)
	return admin, all
}

// ref returns an owner reference that blocks.
func ref(apiVersion, kind string, o metav1.Object) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: o.GetName(), UID: o.GetUID(), BlockOwnerDeletion: ptr.To(true)}}
}

// deletion watches an object of the default namespace, and returns what waits for the version
// at which it goes.
func deletion(t *testing.T, all metadata.Interface, resource schema.GroupVersionResource, name string) func() uint64 {
	t.Helper()
	w, err := all.Resource(resource).Namespace("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return func() uint64 {
		t.Helper()
		for e := range w.ResultChan() {
			if o, ok := e.Object.(metav1.Object); ok && e.Type == watch.Deleted {
				n, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("the watch of %s ended", name)
		return 0
	}
}

// TestServer deletes owners of several kinds in every way.
func TestServer(t *testing.T) {
	admin, all := serve(t)
	ctx := t.Context()
	node, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sets, owners := admin.AppsV1().ReplicaSets("default"), make(map[string]*appsv1.ReplicaSet)
	for _, name := range []string{"back", "front", "orphans"} {
		match := map[string]string{"app": name}
		owners[name], err = sets.Create(ctx, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: match},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: match}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// Of a kind that controllers have no other business with.
		_, err = admin.RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: ref("apps/v1", "ReplicaSet", owners[name])}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = admin.CoordinationV1().Leases("default").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", OwnerReferences: ref("v1", "Node", node)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone := func(resource schema.GroupVersionResource, ns, name string) bool {
		_, err := all.Resource(resource).Namespace(ns).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	await := func(what string, ok func() bool) {
		t.Helper()
		tick, deadline := time.NewTicker(20*time.Millisecond), time.After(time.Minute)
		defer tick.Stop()
		for !ok() {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	roles, replicas := rbacv1.SchemeGroupVersion.WithResource("roles"), appsv1.SchemeGroupVersion.WithResource("replicasets")
	roleGone, setGone := deletion(t, all, roles, "front"), deletion(t, all, replicas, "front")
	for name, policy := range map[string]metav1.DeletionPropagation{"back": background, "front": inFront, "orphans": orphaned} {
		if err := sets.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"back", "front"} {
		await(name+"'s role goes", func() bool { return gone(roles, "default", name) })
	}
	for name := range owners {
		await(name+" goes", func() bool { return gone(replicas, "default", name) })
	}
	if dependent, owner := roleGone(), setGone(); dependent >= owner {
		t.Errorf("the owner went at version %d, its dependent at %d", owner, dependent)
	}
	await("the node's lease goes", func() bool { return gone(coordinationv1.SchemeGroupVersion.WithResource("leases"), "default", "n") })
	// An owner whose name would lead to a watch, as a path, is absent.
	led := []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "../../../watch/pods", UID: "nobody"}}
	if _, err = admin.RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "led", OwnerReferences: led}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("the role whose owner is a path goes", func() bool { return gone(roles, "default", "led") })
	role, err := admin.RbacV1().Roles("default").Get(ctx, "orphans", metav1.GetOptions{})
	if err != nil || len(role.OwnerReferences) != 0 {
		t.Errorf("the orphan: %v, owners %v", err, role.OwnerReferences)
	}
}
