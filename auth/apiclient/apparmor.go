package apiclient

// The AppArmor profiles of containers, which older clients write as annotations of the pod.

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AppArmorPrefix is what the key of an annotation starts with that names a container's profile. The
// container's name follows.
const AppArmorPrefix = "container.apparmor.security.beta.kubernetes.io/"

// MaxAppArmorName is the longest name of a profile of the node, in bytes.
const MaxAppArmorName = 4095

// The values of the annotations.
const (
	appArmorDefault    = "runtime/default"
	appArmorUnconfined = "unconfined"
	appArmorLocalhost  = "localhost/" // and the profile's name
)

// CopyAppArmor copies the AppArmor profiles that annotations of a pod name to the fields of its
// containers that have none, as Kubernetes does when a pod is made. A profile that is the pod's own
// is not copied. It returns a warning for each annotation that it copied, and for each that names no
// profile.
func CopyAppArmor(pod *corev1.Pod) (warnings []string) {
	if pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows {
		return nil
	}
	var whole *corev1.AppArmorProfile
	if sc := pod.Spec.SecurityContext; sc != nil {
		whole = sc.AppArmorProfile
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			key := AppArmorPrefix + c.Name
			value, annotated := pod.Annotations[key]
			if !annotated || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
				continue
			}
			profile := appArmorProfile(value)
			if profile != nil && reflect.DeepEqual(profile, whole) {
				continue
			}
			warnings = append(warnings, fmt.Sprintf(`metadata.annotations[%s]: deprecated since v1.30; use the "appArmorProfile" field instead`, key))
			if profile == nil {
				continue
			}
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
	}
	return warnings
}

// appArmorProfile is the profile that the value of an annotation names; nil if there is none.
func appArmorProfile(value string) *corev1.AppArmorProfile {
	switch value {
	case appArmorDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case appArmorUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	name, local := strings.CutPrefix(value, appArmorLocalhost)
	if !local || name == "" || len(name) > MaxAppArmorName || strings.TrimSpace(name) != name {
		return nil
	}
	return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
}

// CheckAppArmorAnnotations returns an error for each annotation at p that names an AppArmor profile of
// a container that spec does not have, or that has no form of a profile. Kubernetes refuses these of
// pods and of their templates. Annotations that name no profile pass, such as empty ones.
func CheckAppArmorAnnotations(annotations map[string]string, spec *corev1.PodSpec, p *field.Path) field.ErrorList {
	names := map[string]bool{}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			names[list[i].Name] = true
		}
	}
	for i := range spec.EphemeralContainers {
		names[spec.EphemeralContainers[i].Name] = true
	}
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		name, is := strings.CutPrefix(key, AppArmorPrefix)
		if !is {
			continue
		}
		if !names[name] {
			errs = append(errs, field.Invalid(p.Key(key), name, "container not found"))
		}
		value := annotations[key]
		if value != "" && value != appArmorDefault && value != appArmorUnconfined && !strings.HasPrefix(value, appArmorLocalhost) {
			errs = append(errs, field.Invalid(p.Key(key), value, fmt.Sprintf("invalid AppArmor profile name: %q", value)))
		}
	}
	return errs
}

// CheckAppArmorFields returns an error for each container of the spec at p whose AppArmor profile is
// another than that of its annotation. A container without a profile has the pod's. Kubernetes refuses
// these of templates, and of pods when they are made, after CopyAppArmor. The BadValue of each error
// is a string of the container's name, its annotation and its profile.
func CheckAppArmorFields(annotations map[string]string, spec *corev1.PodSpec, p *field.Path) field.ErrorList {
	if spec.OS != nil && spec.OS.Name == corev1.Windows {
		return nil
	}
	var whole *corev1.AppArmorProfile
	if sc := spec.SecurityContext; sc != nil {
		whole = sc.AppArmorProfile
	}
	var errs field.ErrorList
	check := func(list []corev1.Container, p *field.Path) {
		for i := range list {
			profile := whole
			if sc := list[i].SecurityContext; sc != nil && sc.AppArmorProfile != nil {
				profile = sc.AppArmorProfile
			}
			value, annotated := annotations[AppArmorPrefix+list[i].Name]
			if !annotated || profile == nil {
				continue
			}
			if e := appArmorMismatch(value, profile, p.Index(i).Child("securityContext", "appArmorProfile")); e != nil {
				e.BadValue = fmt.Sprintf("%s %q %s", list[i].Name, value, profile)
				errs = append(errs, e)
			}
		}
	}
	check(spec.InitContainers, p.Child("initContainers"))
	check(spec.Containers, p.Child("containers"))
	return errs
}

// appArmorMismatch is an error about a profile at p that is not the one that the value of an annotation
// names; nil if it is.
func appArmorMismatch(value string, profile *corev1.AppArmorProfile, p *field.Path) *field.Error {
	name, local := strings.CutPrefix(value, appArmorLocalhost)
	kind := profile.Type
	switch {
	case kind == corev1.AppArmorProfileTypeUnconfined && value != appArmorUnconfined,
		kind == corev1.AppArmorProfileTypeRuntimeDefault && value != appArmorDefault,
		kind == corev1.AppArmorProfileTypeLocalhost && !local:
		return field.Forbidden(p.Child("type"), "apparmor type in annotation and field must match")
	case kind == corev1.AppArmorProfileTypeLocalhost && (profile.LocalhostProfile == nil || *profile.LocalhostProfile != name):
		return field.Forbidden(p.Child("localhostProfile"), "apparmor profile in annotation and field must match")
	default:
		return nil
	}
}
