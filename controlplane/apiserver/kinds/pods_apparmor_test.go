// Tests of AppArmor profiles that a pod has as annotations.

package kinds

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// armored is a pod with annotations of AppArmor by the names of its containers, and with profiles of
// the pod and of the container web; nil for none.
func armored(whole, container *corev1.AppArmorProfile, annotations map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{}
		for name, value := range annotations {
			p.Annotations["container.apparmor.security.beta.kubernetes.io/"+name] = value
		}
		if whole != nil {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: whole}
		}
		if container != nil {
			web(p).SecurityContext = &corev1.SecurityContext{AppArmorProfile: container}
		}
	}
}

// profile is an AppArmor profile, of a type or "Localhost/" and a name.
func profile(text string) *corev1.AppArmorProfile {
	kind, name, local := strings.Cut(text, "/")
	s := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileType(kind)}
	if local {
		s.LocalhostProfile = &name
	}
	return s
}

// appArmorCases are those of new pods and of templates, which are the same but for the paths.
func appArmorCases(annotations, spec string) []mutation[*corev1.Pod] {
	type texts = map[string]string
	const kinds, names = ": Forbidden: apparmor type in annotation and field must match", ": Forbidden: apparmor profile in annotation and field must match"
	at := spec + ".containers[0].securityContext.appArmorProfile"
	of := func(name string) string {
		return annotations + "[container.apparmor.security.beta.kubernetes.io/" + name + "]"
	}
	return []mutation[*corev1.Pod]{
		{"default", armored(nil, nil, texts{"web": "runtime/default"}), nil},
		{"default of an init container", armored(nil, nil, texts{"setup": "runtime/default"}), nil},
		{"localhost", armored(nil, nil, texts{"web": "localhost/foo-bar"}), nil},
		{"localhost by path", armored(nil, nil, texts{"web": "localhost//usr/sbin/ntpd"}), nil},
		{"unconfined", armored(nil, nil, texts{"web": "unconfined"}), nil},
		{"empty", armored(nil, nil, texts{"web": ""}), nil},
		{"same as the container's", armored(nil, profile("Localhost/foo"), texts{"web": "localhost/foo"}), nil},
		{"same as the pod's", armored(profile("Localhost/foo"), nil, texts{"web": "localhost/foo"}), nil},
		{"same as the container's, other than the pod's", armored(profile("Unconfined"), profile("RuntimeDefault"), texts{"web": "runtime/default"}), nil},
		{
			"another container's", armored(nil, nil, texts{"web": "runtime/default", "setup": "runtime/default", "fake": "runtime/default"}),
			bad(of("fake") + `: Invalid value: "fake": container not found`),
		},
		{"no profile", armored(nil, nil, texts{"web": "mine"}), bad(of("web") + `: Invalid value: "mine": invalid AppArmor profile name: "mine"`)},
		{"another of the runtime", armored(nil, nil, texts{"web": "runtime/foo"}), bad(of("web") + `: Invalid value: "runtime/foo": invalid AppArmor profile name: "runtime/foo"`)},
		{"default, unconfined container", armored(nil, profile("Unconfined"), texts{"web": "runtime/default"}), bad(at + ".type" + kinds)},
		{"default, unconfined pod", armored(profile("Unconfined"), nil, texts{"web": "runtime/default"}), bad(at + ".type" + kinds)},
		{"localhost, unconfined container", armored(nil, profile("Unconfined"), texts{"web": "localhost/mine"}), bad(at + ".type" + kinds)},
		{"unconfined, default container", armored(nil, profile("RuntimeDefault"), texts{"web": "unconfined"}), bad(at + ".type" + kinds)},
		{"empty, localhost pod", armored(profile("Localhost/foo"), nil, texts{"web": ""}), bad(at + ".type" + kinds)},
		{"localhost, another localhost container", armored(nil, profile("Localhost/bar"), texts{"web": "localhost/foo"}), bad(at + ".localhostProfile" + names)},
		{"longest localhost", armored(nil, profile("Localhost/"+strings.Repeat("x", 4095)), nil), nil},
		{
			"localhost too long", armored(nil, profile("Localhost/"+strings.Repeat("x", 4096)), nil),
			bad(at + ".localhostProfile: Too long: may not be more than 4095 bytes"),
		},
		{"windows", func(p *corev1.Pod) {
			armored(nil, nil, texts{"fake": "runtime/default"})(p)
			p.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
		}, bad(of("fake") + `: Invalid value: "fake": container not found`)},
	}
}

// TestValidateAppArmor: the annotations of a new pod and of a template name profiles of containers
// that are there, and those of their fields.
func TestValidateAppArmor(t *testing.T) {
	t.Parallel()
	mutate(t, goodPod(t), validatePod, appArmorCases("metadata.annotations", "spec"))
	rules := For(schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"})
	for _, c := range appArmorCases("spec.template.annotations", "spec.template.spec") {
		t.Run(c.name, func(t *testing.T) {
			d := armoredDeployment(t, c.change)
			check(t, rules.Create(d), c.want...)
			d.Labels = map[string]string{"more": "labels"}
			check(t, rules.Update(d, armoredDeployment(t, c.change))) // as it is stored
			check(t, rules.Update(d, armoredDeployment(t, func(*corev1.Pod) {})), c.want...)
		})
	}
}

// armoredDeployment has pods that are goodPod but for change.
func armoredDeployment(t *testing.T, change func(*corev1.Pod)) *appsv1.Deployment {
	t.Helper()
	p := goodPod(t)()
	change(p)
	d := defaulted[appsv1.Deployment](t, `{metadata: {name: d, resourceVersion: "1"}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}`)
	d.Spec.Template.Annotations, d.Spec.Template.Spec = p.Annotations, p.Spec
	return d
}

// TestStoredAppArmor: a stored template keeps a mismatch, but gets no other one.
func TestStoredAppArmor(t *testing.T) {
	t.Parallel()
	update := For(schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}).Update
	old := armoredDeployment(t, armored(nil, profile("Unconfined"), map[string]string{"web": "runtime/default"}))
	const refused = "containers[0].securityContext.appArmorProfile.type: Forbidden"
	check(t, update(armoredDeployment(t, armored(nil, profile("Unconfined"), map[string]string{"web": "localhost/mine"})), old), "spec.template.spec."+refused)
	check(t, update(armoredDeployment(t, armored(nil, profile("RuntimeDefault"), map[string]string{"web": "unconfined"})), old), "spec.template.spec."+refused)

	set := func(annotations string) *appsv1.StatefulSet {
		return defaulted[appsv1.StatefulSet](t, `{metadata: {name: s, resourceVersion: "1"}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}, annotations: {`+annotations+`}}, spec: {containers: [{name: c, image: i}]}}}}`)
	}
	const key, other = "container.apparmor.security.beta.kubernetes.io/nobody", "container.apparmor.security.beta.kubernetes.io/c"
	update = For(schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}).Update
	check(t, update(set(key+": unconfined, x: y"), set(key+": unconfined")))
	check(t, update(set(key+": unconfined, "+other+": mine"), set(key+": unconfined")), "spec.template.annotations["+other+"]: Invalid value")
}

// TestAppArmorUpdate: the annotations of a pod stay, whichever way it is updated.
func TestAppArmorUpdate(t *testing.T) {
	t.Parallel()
	const prefix = "container.apparmor.security.beta.kubernetes.io/"
	fresh := func(p *corev1.Pod) *corev1.Pod {
		p.ResourceVersion = "1"
		p.Annotations = map[string]string{prefix + "web": "unconfined", prefix + "nobody": "mine", "x": "y"}
		return p
	}
	const changed, added = "]: Forbidden: may not remove or update AppArmor annotations", "]: Forbidden: may not add AppArmor annotations"
	pods := For(schema.GroupKind{Kind: "Pod"})
	for _, c := range []struct {
		name   string
		change func(map[string]string)
		want   []string
	}{
		{"same", func(map[string]string) {}, nil},
		{"others", func(a map[string]string) { a["x"] = "z"; a["y"] = "z" }, nil},
		{"changed", func(a map[string]string) { a[prefix+"web"] = "runtime/default" }, bad("metadata.annotations[" + prefix + "web" + changed)},
		{"emptied", func(a map[string]string) { a[prefix+"web"] = "" }, bad("metadata.annotations[" + prefix + "web" + changed)},
		{"removed", func(a map[string]string) { delete(a, prefix+"web") }, bad("metadata.annotations[" + prefix + "web" + changed)},
		{"added", func(a map[string]string) { a[prefix+"setup"] = "" }, bad("metadata.annotations[" + prefix + "setup" + added)},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, now := fresh(goodPod(t)()), fresh(goodPod(t)())
			c.change(now.Annotations)
			check(t, pods.Update(now, old), c.want...)
			check(t, pods.Status(now, old), c.want...)
		})
	}
}
