// Rules for AppArmor profiles, and for the annotations that name those of containers.

package kinds

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/hawser-project/hawser/auth/apiclient"
)

func appArmor(s *corev1.AppArmorProfile, p *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := oneOf(s.Type, p.Child("type"), corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	at := p.Child("localhostProfile")
	switch {
	case s.Type != corev1.AppArmorProfileTypeLocalhost:
		if s.LocalhostProfile != nil {
			errs = append(errs, field.Invalid(at, *s.LocalhostProfile, "can only be set when AppArmor type is Localhost"))
		}
	case s.LocalhostProfile == nil:
		errs = append(errs, field.Required(at, "must be set when AppArmor type is Localhost"))
	case strings.TrimSpace(*s.LocalhostProfile) != *s.LocalhostProfile:
		errs = append(errs, field.Invalid(at, *s.LocalhostProfile, "must not be padded with whitespace"))
	case *s.LocalhostProfile == "":
		errs = append(errs, field.Required(at, "must be set when AppArmor type is Localhost"))
	}
	if name := deref(s.LocalhostProfile); s.Type == corev1.AppArmorProfileTypeLocalhost && len(name) > apiclient.MaxAppArmorName {
		errs = append(errs, beyondBound(field.TooLong(at, "", apiclient.MaxAppArmorName), name, len(name))...)
	}
	return errs
}

// appArmorUnchanged refuses changes of the annotations of a pod that name AppArmor profiles: they are
// read when the pod is made.
func appArmorUnchanged(annotations, old map[string]string) field.ErrorList {
	p := field.NewPath("metadata", "annotations")
	armor := func(all map[string]string) []string {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(key string) bool { return !strings.HasPrefix(key, apiclient.AppArmorPrefix) })
	}
	var errs field.ErrorList
	for _, key := range armor(old) {
		if now, is := annotations[key]; !is || now != old[key] {
			errs = append(errs, field.Forbidden(p.Key(key), "may not remove or update AppArmor annotations"))
		}
	}
	for _, key := range armor(annotations) {
		if _, was := old[key]; !was {
			errs = append(errs, field.Forbidden(p.Key(key), "may not add AppArmor annotations"))
		}
	}
	return errs
}
