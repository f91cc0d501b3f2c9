// Tests of AppArmor profiles that a pod has as annotations.

package kinds

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/warning"
)

// told keeps warnings.
type told []string

func (l *told) AddWarning(_, text string) { *l = append(*l, text) }

// TestAppArmorAnnotation: a new pod gets the field for it, so that its node refuses it or enforces it,
// and its author a warning.
func TestAppArmorAnnotation(t *testing.T) {
	t.Parallel()
	const key = "container.apparmor.security.beta.kubernetes.io/web"
	p := goodPod(t)()
	p.Annotations = map[string]string{key: "runtime/default"}
	var got told
	newPod(warning.WithWarningRecorder(t.Context(), &got), p)
	if sc := web(p).SecurityContext; sc == nil || sc.AppArmorProfile == nil || sc.AppArmorProfile.Type != corev1.AppArmorProfileTypeRuntimeDefault {
		t.Errorf("the container's security context is %+v", sc)
	}
	if want := []string{"metadata.annotations[" + key + `]: deprecated since v1.30; use the "appArmorProfile" field instead`}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
}
