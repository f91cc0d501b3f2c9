package admission

import (
	"context"
	"errors"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
)

func TestPodTopologyLabels(t *testing.T) {
	node := func(_ context.Context, name string) (*corev1.Node, error) {
		switch name {
		case "placed":
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
				"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "kubernetes.io/hostname": "h", "topology.example.com/rack": "7",
			}}}, nil
		case "zoned":
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"topology.kubernetes.io/zone": "z"}}}, nil
		case "anywhere":
			return &corev1.Node{}, nil
		case "broken":
			return nil, errors.New("no")
		}
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	type labels = map[string]string
	pod := func(node string, l labels) runtime.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(l)}, Spec: corev1.PodSpec{NodeName: node}}
	}
	binding := func(kind, node string, l labels) runtime.Object {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(l)}, Target: corev1.ObjectReference{Kind: kind, Name: node}}
	}
	both := labels{"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"}
	for _, c := range []struct {
		name string
		sub  string
		obj  runtime.Object
		want labels
	}{
		{"bound", "binding", binding("Node", "placed", nil), both},
		{"bound, with labels", "binding", binding("Node", "zoned", labels{"a": "b", "topology.kubernetes.io/region": "mine"}), labels{"a": "b", "topology.kubernetes.io/region": "mine", "topology.kubernetes.io/zone": "z"}},
		{"bound to what has no place", "binding", binding("Node", "anywhere", nil), nil},
		{"bound to what is not there", "binding", binding("Node", "gone", nil), nil},
		{"bound to something else", "binding", binding("Ship", "placed", nil), nil},
		{"made for a node", "", pod("placed", labels{"topology.kubernetes.io/zone": "elsewhere"}), both},
		{"made for no node", "", pod("", nil), nil},
		{"another subresource", "status", pod("placed", nil), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := PodTopologyLabels(node)
			if !p.Handles(admission.Create) || p.Handles(admission.Update) {
				t.Error("does not handle create, and only that")
			}
			if err := p.(admission.MutationInterface).Admit(t.Context(), attributes(c.obj, nil, podResource, c.sub, admission.Create), nil); err != nil {
				t.Fatal(err)
			}
			if got := c.obj.(metav1.Object).GetLabels(); !maps.Equal(got, c.want) {
				t.Errorf("labels %v, want %v", got, c.want)
			}
		})
	}
	err := PodTopologyLabels(node).(admission.MutationInterface).Admit(t.Context(), attributes(binding("Node", "broken", nil), nil, podResource, "binding", admission.Create), nil)
	if !apierrors.IsInternalError(err) {
		t.Errorf("with a store that fails: %v", err)
	}
}
