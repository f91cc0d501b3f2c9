package controlplane

// What a node that has been taken over would try, against the real API server.

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// keepsOff tries what a node that has been taken over would try.
func keepsOff(t *testing.T, m, other *machine) {
	ctx := t.Context()
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-node-lease"}}
	}
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	empty := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	k := m.CoreV1()
	for what, try := range map[string]func() error{
		"read another node": func() error { _, err := k.Nodes().Get(ctx, other.name, metav1.GetOptions{}); return err },
		"list nodes":        func() error { _, err := k.Nodes().List(ctx, metav1.ListOptions{}); return err },
		"make another node": func() error { _, err := k.Nodes().Create(ctx, node("node-9"), metav1.CreateOptions{}); return err },
		"label another node": func() error {
			_, err := k.Nodes().Patch(ctx, other.name, types.MergePatchType, empty, metav1.PatchOptions{})
			return err
		},
		"another node's status": func() error {
			_, err := k.Nodes().Patch(ctx, other.name, types.MergePatchType, empty, metav1.PatchOptions{}, "status")
			return err
		},
		"delete another node": func() error { return k.Nodes().Delete(ctx, other.name, metav1.DeleteOptions{}) },
		"taint itself": func() error {
			_, err := k.Nodes().Patch(ctx, m.name, types.MergePatchType, []byte(`{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`), metav1.PatchOptions{})
			return err
		},
		"call itself a master": func() error {
			_, err := k.Nodes().Patch(ctx, m.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"node-role.kubernetes.io/master":""}}}`), metav1.PatchOptions{})
			return err
		},
		"apply another node": func() error {
			_, err := k.Nodes().Patch(ctx, "node-9", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-9"}}`), metav1.PatchOptions{FieldManager: "x"})
			return err
		},
		"make another's lease": func() error {
			_, err := m.CoordinationV1().Leases("kube-node-lease").Create(ctx, lease("node-9"), metav1.CreateOptions{})
			return err
		},
		"make a lease by a name given": func() error {
			l := lease("")
			l.GenerateName = "node-"
			_, err := m.CoordinationV1().Leases("kube-node-lease").Create(ctx, l, metav1.CreateOptions{})
			return err
		},
		"renew another's lease": func() error {
			_, err := m.CoordinationV1().Leases("kube-node-lease").Update(ctx, lease(other.name), metav1.UpdateOptions{})
			return err
		},
		"make a lease elsewhere": func() error {
			_, err := m.CoordinationV1().Leases("kube-system").Create(ctx, lease(m.name), metav1.CreateOptions{})
			return err
		},
		"list all pods": func() error { _, err := k.Pods("").List(ctx, metav1.ListOptions{}); return err },
		"list another's pods": func() error {
			_, err := k.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + other.name})
			return err
		},
		"watch another's pods": func() error {
			_, err := k.Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + other.name})
			return err
		},
		"read another's pod": func() error { _, err := k.Pods("work").Get(ctx, "second", metav1.GetOptions{}); return err },
		"another's pod's status": func() error {
			_, err := k.Pods("work").Patch(ctx, "second", types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")
			return err
		},
		"delete another's pod": func() error { return k.Pods("work").Delete(ctx, "second", metav1.DeleteOptions{}) },
		"delete all pods": func() error {
			return k.Pods("work").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"make a pod": func() error {
			_, err := k.Pods("work").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "evil"}, Spec: corev1.PodSpec{NodeName: other.name, Containers: []corev1.Container{{Name: "c", Image: "x"}}}}, metav1.CreateOptions{})
			return err
		},
		"bind a pod": func() error {
			return k.Pods("work").Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "second"}, Target: corev1.ObjectReference{Kind: "Node", Name: m.name}}, metav1.CreateOptions{})
		},
		"read another's secret": func() error { _, err := k.Secrets("work").Get(ctx, "secret-second", metav1.GetOptions{}); return err },
		"list secrets":          func() error { _, err := k.Secrets("").List(ctx, metav1.ListOptions{}); return err },
		"read a bootstrap token": func() error {
			_, err := k.Secrets("kube-system").Get(ctx, "bootstrap-token-abcdef", metav1.GetOptions{})
			return err
		},
		"read another's request": func() error {
			_, err := m.CertificatesV1().CertificateSigningRequests().Get(ctx, "serving-"+other.name, metav1.GetOptions{})
			return err
		},
		"list requests": func() error {
			_, err := m.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := other.CoreV1().Pods("work").Get(ctx, "second", metav1.GetOptions{}); err != nil {
		t.Errorf("after all that, the other node's pod: %v", err)
	}
}
