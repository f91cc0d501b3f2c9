package kubeauth

// Tests of the names that no Node may have.

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/hawser-project/hawser/auth"
)

func TestNodeNames(t *testing.T) {
	plugin := NodeNames(auth.NewServerNames("hub.example.com", "192.0.2.7")).(admission.ValidationInterface)
	for _, tc := range []struct {
		name, resource, sub string
		object              runtime.Object
		says                string
	}{
		{"hub.example.com", "nodes", "", &corev1.Node{}, "choose another --node-name"},
		{"192.519", "nodes", "", &corev1.Node{}, "is a name of the server (192.0.2.7)"},
		{"kubernetes", "nodes", "", &corev1.Node{}, "is a name of the server"},
		{"node-1", "nodes", "", &corev1.Node{}, ""},
		{"kubernetes", "nodes", "status", &corev1.Node{}, ""},
		{"kubernetes", "services", "", &corev1.Service{}, ""},
		{"node-1", "nodes", "", &corev1.Pod{}, "unexpected type"},
	} {
		if n, ok := tc.object.(*corev1.Node); ok {
			n.Name = tc.name
		}
		a := admission.NewAttributesRecord(tc.object, nil, corev1.SchemeGroupVersion.WithKind("Node"), "", tc.name,
			corev1.SchemeGroupVersion.WithResource(tc.resource), tc.sub, admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "admin"})
		err := plugin.Validate(t.Context(), a, nil)
		switch {
		case tc.says == "" && err != nil:
			t.Errorf("%s %s %s: %v", tc.resource, tc.sub, tc.name, err)
		case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s %s: got %v, want %q", tc.resource, tc.name, err, tc.says)
		case strings.Contains(tc.says, "server") && !apierrors.IsForbidden(err):
			t.Errorf("%s: %v is not 403", tc.name, err)
		}
	}
	if plugin.Handles(admission.Update) {
		t.Error("a Node that is there cannot be updated any more")
	}
}
