package admission

import (
	"context"
	"errors"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// startQuotas returns the plugin with a cache that has been filled, or is never.
func startQuotas(t testing.TB, stored func(context.Context, string) (bool, error), filled bool, objs ...runtime.Object) admission.ValidationInterface {
	t.Helper()
	served := make(chan struct{})
	p, err := ResourceQuota(QuotaConfig{Stored: stored, Served: served})
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(objs...)
	f := informers.NewSharedInformerFactory(client, 0)
	t.Cleanup(func() {
		close(served)
		f.Shutdown()
	})
	q := p.(*quotas)
	q.SetExternalKubeClientSet(client)
	q.SetExternalKubeInformerFactory(f)
	if err := q.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	if filled {
		f.Start(served)
		f.WaitForCacheSync(served)
	}
	return q
}

func created(kind, resource string, obj runtime.Object, by user.Info) admission.Attributes {
	return admission.NewAttributesRecord(obj, nil, schema.GroupVersionKind{Version: "v1", Kind: kind}, "ns", "x", corev1.SchemeGroupVersion.WithResource(resource), "", admission.Create, nil, false, by)
}

// While quotas cannot be listed, the store says which namespaces have any.
func TestQuotaBeforeTheyAreListed(t *testing.T) {
	any, err := false, error(nil)
	p := startQuotas(t, func(_ context.Context, ns string) (bool, error) {
		if ns != "ns" {
			t.Errorf("asked for %q", ns)
		}
		return any, err
	}, false)
	pod := created("Pod", "pods", &corev1.Pod{}, nil)
	if err := p.Validate(t.Context(), pod, nil); err != nil {
		t.Errorf("there are none: %v", err)
	}
	err = errors.New("the store is away")
	if err := p.Validate(t.Context(), pod, nil); err == nil || !strings.Contains(err.Error(), "quotas of namespace ns: the store is away") {
		t.Errorf("it is not known: %v", err)
	}
	for _, u := range []struct {
		user.DefaultInfo
		passes bool
	}{
		{user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, true},
		{user.DefaultInfo{Name: user.APIServerUser}, false},
		{user.DefaultInfo{Name: "ann", Groups: []string{user.SystemPrivilegedGroup}}, false},
	} {
		if err := p.Validate(t.Context(), created("Pod", "pods", &corev1.Pod{}, &u.DefaultInfo), nil); (err == nil) != u.passes {
			t.Errorf("%s of %q: %v", u.Name, u.Groups, err)
		}
	}
}

// What a namespace without quotas pays.
func BenchmarkNoQuota(b *testing.B) {
	elsewhere := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "q"}}
	p := startQuotas(b, nil, true, elsewhere)
	lease := admission.NewAttributesRecord(&coordinationv1.Lease{}, &coordinationv1.Lease{}, schema.GroupVersionKind{}, "kube-node-lease", "n",
		coordinationv1.SchemeGroupVersion.WithResource("leases"), "", admission.Update, nil, false, nil)
	for name, a := range map[string]admission.Attributes{"pod": created("Pod", "pods", &corev1.Pod{}, nil), "lease": lease} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := context.Background()
			for b.Loop() {
				if err := p.Validate(ctx, a, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// It costs no allocation, whatever the machine.
func TestNoQuotaCostsNothing(t *testing.T) {
	p := startQuotas(t, nil, true)
	pod, ctx := created("Pod", "pods", &corev1.Pod{}, &user.DefaultInfo{Name: "ann"}), t.Context()
	if n := testing.AllocsPerRun(100, func() { _ = p.Validate(ctx, pod, nil) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A pod that counts for nothing is made by its node, and by nobody else, by no way.
func TestQuotaOfMirrorPods(t *testing.T) {
	p := startQuotas(t, func(context.Context, string) (bool, error) { return false, nil }, false)
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"}}, Spec: corev1.PodSpec{NodeName: "n"}}
	mirror := plain.DeepCopy()
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", Controller: ptr.To(true)}}
	node := &user.DefaultInfo{Name: "system:node:n", Groups: []string{user.NodesGroup}}
	ann := &user.DefaultInfo{Name: "ann", Groups: []string{user.SystemPrivilegedGroup}}
	for _, tt := range []struct {
		name    string
		by      user.Info
		is, was *corev1.Pod
		want    string
	}{
		{"its node", node, mirror, nil, ""},
		{"another node", &user.DefaultInfo{Name: "system:node:other", Groups: node.Groups}, mirror, nil, "only node n itself"},
		{"called like its node", &user.DefaultInfo{Name: node.Name}, mirror, nil, "only node n itself"},
		{"an administrator", ann, mirror, nil, "only node n itself"},
		{"no owner", ann, plain, nil, ""},
		{"an owner later", ann, mirror, plain, "only node n itself"},
		{"a change of what a node shows", ann, mirror, mirror, ""},
	} {
		op, old := admission.Create, runtime.Object(nil)
		if tt.was != nil {
			op, old = admission.Update, tt.was
		}
		a := admission.NewAttributesRecord(tt.is, old, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "ns", "x", corev1.SchemeGroupVersion.WithResource("pods"), "", op, nil, false, tt.by)
		err := p.Validate(t.Context(), a, nil)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
