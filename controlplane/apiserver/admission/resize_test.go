package admission

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

func TestPodResizeValidator(t *testing.T) {
	of := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	p := PodResizeValidator(func(_ context.Context, name string) (*corev1.Node, error) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: of("2", "2Gi")}}
		switch name {
		case "windows":
			n.Labels = map[string]string{corev1.LabelOSStable: "windows"}
		case "broken":
			return nil, errors.New("no")
		case "gone":
			return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
		}
		return n, nil
	})
	if !p.Handles(admission.Update) || p.Handles(admission.Create) {
		t.Error("does not handle update, and only that")
	}
	for _, c := range []struct {
		name, node, sub string
		requests        corev1.ResourceList
		refused, cause  string
	}{
		{"as much as there is", "n", "resize", of("2", "2Gi"), "", ""},
		{"more", "n", "resize", of("3", "3Gi"), "node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000; memory, requested: 3221225472, allocatable: 2147483648", "NodeCapacity"},
		{"more, by no resize", "n", "", of("3", "1Gi"), "", ""},
		{"more, without a node", "", "resize", of("3", "1Gi"), "", ""},
		{"another platform", "windows", "resize", of("1", "1Gi"), `pod resize is only supported on linux nodes, node "windows" is "windows"`, "UnsupportedPlatform"},
		{"no node", "gone", "resize", of("1", "1Gi"), `node "gone" not found`, ""},
	} {
		is := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: corev1.PodSpec{NodeName: c.node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: c.requests}}}}}
		was := is.DeepCopy()
		was.Generation = 1
		validate := func() error {
			return p.(admission.ValidationInterface).Validate(t.Context(), attributes(is, was, podResource, c.sub, admission.Update), nil)
		}
		err := validate()
		if (err != nil) != (c.refused != "") || err != nil && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, told := apierrors.StatusCause(err, metav1.CauseType(c.cause)); c.cause != "" && !told {
			t.Errorf("%s: no cause %s", c.name, c.cause)
		}
		was.Generation = is.Generation
		if err := validate(); err != nil {
			t.Errorf("%s: nothing changes and it is refused: %v", c.name, err)
		}
	}
	broken := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: corev1.PodSpec{NodeName: "broken"}}
	if err := p.(admission.ValidationInterface).Validate(t.Context(), attributes(broken, &corev1.Pod{}, podResource, "resize", admission.Update), nil); !apierrors.IsInternalError(err) {
		t.Errorf("a node that cannot be read: %v", err)
	}
}
