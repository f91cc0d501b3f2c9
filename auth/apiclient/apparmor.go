package apiclient

// The AppArmor profiles of containers, which older clients write as annotations of the pod.

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	appArmorPrefix    = "container.apparmor.security.beta.kubernetes.io/" // and the container's name
	appArmorLocalhost = "localhost/"                                      // and the profile's name
	maxAppArmorName   = 4095                                              // bytes
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
			key := appArmorPrefix + c.Name
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
	case "runtime/default":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case "unconfined":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	}
	name, local := strings.CutPrefix(value, appArmorLocalhost)
	if !local || name == "" || len(name) > maxAppArmorName || strings.TrimSpace(name) != name {
		return nil
	}
	return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
}
