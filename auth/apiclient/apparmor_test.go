package apiclient

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// TestCopyAppArmor: what each annotation makes of the field.
func TestCopyAppArmor(t *testing.T) {
	const def, unconfined, local = corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined, corev1.AppArmorProfileTypeLocalhost
	for value, tt := range map[string]struct {
		pod, container, want corev1.AppArmorProfileType // empty for none
		warned               bool
	}{
		"runtime/default":    {want: def, warned: true},
		"unconfined":         {want: unconfined, warned: true},
		"localhost/mine":     {want: local, warned: true},
		"localhost/":         {warned: true},
		"localhost/ mine":    {warned: true},
		"default":            {warned: true},
		"":                   {warned: true},
		"runtime/default|c":  {container: unconfined, want: unconfined},
		"runtime/default|p":  {pod: def},
		"runtime/default|pu": {pod: unconfined, want: def, warned: true},
		"localhost/" + strings.Repeat("x", MaxAppArmorName+1): {warned: true},
	} {
		profile := func(kind corev1.AppArmorProfileType) *corev1.AppArmorProfile {
			if kind == "" {
				return nil
			}
			return &corev1.AppArmorProfile{Type: kind}
		}
		text, _, _ := strings.Cut(value, "|")
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AppArmorPrefix + "c": text}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "other"}, {Name: "c"}}},
		}
		if tt.pod != "" {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: profile(tt.pod)}
		}
		c := &p.Spec.Containers[1]
		if tt.container != "" {
			c.SecurityContext = &corev1.SecurityContext{AppArmorProfile: profile(tt.container)}
		}
		warnings := CopyAppArmor(p)
		var got corev1.AppArmorProfileType
		if c.SecurityContext != nil {
			got = c.SecurityContext.AppArmorProfile.Type
		}
		const want = `metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the "appArmorProfile" field instead`
		if got != tt.want || (len(warnings) == 1 && warnings[0] == want) != tt.warned || len(warnings) > 1 || p.Spec.Containers[0].SecurityContext != nil {
			t.Errorf("%.20q: profile %q, want %q; warnings %q", value, got, tt.want, warnings)
		}
		if got == local && *c.SecurityContext.AppArmorProfile.LocalhostProfile != "mine" {
			t.Errorf("%.20q: %+v", value, c.SecurityContext.AppArmorProfile)
		}
	}
}

// TestCopyAppArmorElsewhere: init containers have profiles, too, and pods of Windows have none.
func TestCopyAppArmorElsewhere(t *testing.T) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AppArmorPrefix + "i": "runtime/default", AppArmorPrefix + "nobody": "runtime/default"}},
		Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{RunAsUser: ptr.To[int64](1)}}}, OS: &corev1.PodOS{Name: corev1.Windows}},
	}
	sc := p.Spec.InitContainers[0].SecurityContext
	if w := CopyAppArmor(p); len(w) > 0 || sc.AppArmorProfile != nil {
		t.Errorf("on Windows: %+v, warnings %q", sc, w)
	}
	p.Spec.OS = nil
	if w := CopyAppArmor(p); len(w) != 1 || sc.AppArmorProfile == nil || *sc.RunAsUser != 1 {
		t.Errorf("on Linux: %+v, warnings %q", sc, w)
	}
}

// TestCheckAppArmor: what is wrong with the annotations, and which fields say otherwise.
func TestCheckAppArmor(t *testing.T) {
	local := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost}
	spec := &corev1.PodSpec{
		InitContainers:      []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{AppArmorProfile: local}}},
		Containers:          []corev1.Container{{Name: "c"}, {Name: "plain"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}},
		SecurityContext:     &corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}},
	}
	annotations := map[string]string{AppArmorPrefix + "i": "localhost/mine", AppArmorPrefix + "c": "localhost/mine", AppArmorPrefix + "e": "", AppArmorPrefix + "nobody": "mine", "x": "y"}
	want := func(errs field.ErrorList, texts ...string) {
		t.Helper()
		var got []string
		for _, e := range errs {
			got = append(got, e.Error())
		}
		if !slices.Equal(got, texts) {
			t.Errorf("errors %q, want %q", got, texts)
		}
	}
	p := field.NewPath("p")
	want(CheckAppArmorAnnotations(annotations, spec, p), "p["+AppArmorPrefix+`nobody]: Invalid value: "nobody": container not found`,
		"p["+AppArmorPrefix+`nobody]: Invalid value: "mine": invalid AppArmor profile name: "mine"`)
	want(CheckAppArmorFields(annotations, spec, p), "p.initContainers[0].securityContext.appArmorProfile.localhostProfile: Forbidden: apparmor profile in annotation and field must match",
		"p.containers[0].securityContext.appArmorProfile.type: Forbidden: apparmor type in annotation and field must match")
	local.LocalhostProfile = ptr.To("mine")
	annotations[AppArmorPrefix+"c"] = "unconfined"
	want(CheckAppArmorFields(annotations, spec, p))
	annotations[AppArmorPrefix+"c"], spec.OS = "", &corev1.PodOS{Name: corev1.Windows}
	want(CheckAppArmorFields(annotations, spec, p))
}
