package admission

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
)

// A heard is the warnings of one request.
type heard []string

func (h *heard) AddWarning(_, text string) { *h = append(*h, text) }

func TestEffect(t *testing.T) {
	apps, core := appsv1.SchemeGroupVersion, corev1.SchemeGroupVersion
	balanced := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	for _, tt := range []struct {
		gv             schema.GroupVersion
		kind, resource string
		sub            string
		obj            runtime.Object
		want           string
	}{
		{apps, "Deployment", "deployments", "", &appsv1.Deployment{}, "Deployment is stored and has no effect here: no controller of this server acts on deployments, so no pods are made"},
		{apps, "Deployment", "deployments", "scale", &appsv1.Deployment{}, ""},
		{apps, "ReplicaSet", "replicasets", "", &appsv1.ReplicaSet{}, ""},
		{core, "Pod", "pods", "", &corev1.Pod{}, ""},
		{core, "Service", "services", "", &corev1.Service{}, ""},
		{core, "Service", "services", "", balanced, "makes load balancers"},
		{core, "ResourceQuota", "resourcequotas", "", &corev1.ResourceQuota{}, ""},
	} {
		var said heard
		ctx := warning.WithWarningRecorder(context.Background(), &said)
		a := admission.NewAttributesRecord(tt.obj, nil, tt.gv.WithKind(tt.kind), "ns", "x", tt.gv.WithResource(tt.resource), tt.sub, admission.Create, nil, false, nil)
		plugin := Effect()
		if err := plugin.(admission.ValidationInterface).Validate(ctx, a, nil); err != nil {
			t.Error(err)
		}
		if got := strings.Join(said, "|"); tt.want == "" && got != "" || !strings.Contains(got, tt.want) || len(said) > 1 {
			t.Errorf("%s: %q", tt.resource, got)
		}
		if plugin.Handles(admission.Update) {
			t.Error("an update is warned about again")
		}
	}
}
