// The kind CSIDriver.

package kinds

import (
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func csiDrivers() Kind {
	return of[storagev1.CSIDriver, storagev1.CSIDriverList](storagev1.SchemeGroupVersion, "CSIDriver", "csidrivers", "csidriver", Kind{
		cluster: true, generation: true, conditional: true,
		rules:    Rules{Create: create(validateCSIDriver), Update: update(validateCSIDriverUpdate)},
		defaults: defaulting(defaultCSIDriver),
		table:    csiDriverTable,
	})
}

func defaultCSIDriver(o *storagev1.CSIDriver) {
	s := &o.Spec
	setPtr(&s.AttachRequired, true)
	setPtr(&s.PodInfoOnMount, false)
	setPtr(&s.StorageCapacity, false)
	setPtr(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	setPtr(&s.RequiresRepublish, false)
	setPtr(&s.SELinuxMount, false)
}

// minAllocatablePeriod is how often a driver may have the limits of a node counted anew, in seconds.
const minAllocatablePeriod = 10

// validateCSIDriver checks a driver's description.
func validateCSIDriver(d *storagev1.CSIDriver) field.ErrorList {
	p := field.NewPath("spec")
	errs := csiDriverName(d.Name, field.NewPath("metadata", "name"))
	for _, f := range []struct {
		name string
		set  *bool
	}{
		{"attachRequired", d.Spec.AttachRequired},
		{"podInfoOnMount", d.Spec.PodInfoOnMount},
		{"storageCapacity", d.Spec.StorageCapacity},
	} {
		if f.set == nil {
			errs = append(errs, field.Required(p.Child(f.name), ""))
		}
	}
	errs = append(errs, optionalOneOf(d.Spec.FSGroupPolicy, p.Child("fsGroupPolicy"),
		storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy)...)
	audiences := map[string]bool{}
	for i, t := range d.Spec.TokenRequests {
		at := p.Child("tokenRequests").Index(i)
		if audiences[t.Audience] {
			errs = append(errs, field.Duplicate(at.Child("audience"), t.Audience))
		}
		audiences[t.Audience] = true
		if e := t.ExpirationSeconds; e != nil && *e < minTokenExpiration {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, "may not specify a duration less than 10 minutes"))
		}
	}
	if s := d.Spec.NodeAllocatableUpdatePeriodSeconds; s != nil && *s < minAllocatablePeriod {
		errs = append(errs, younger(field.Invalid(p.Child("nodeAllocatableUpdatePeriodSeconds"), *s, "must be greater than or equal to 10 seconds"))...)
	}
	if b := d.Spec.ServiceAccountTokenInSecrets; b != nil && len(d.Spec.TokenRequests) == 0 {
		errs = append(errs, younger(field.Invalid(p.Child("serviceAccountTokenInSecrets"), *b, "serviceAccountTokenInSecrets is set but no tokenRequests are specified"))...)
	}
	for _, m := range d.Spec.VolumeLifecycleModes {
		errs = append(errs, oneOf(m, p.Child("volumeLifecycleModes"), storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral)...)
	}
	return errs
}

// validateCSIDriverUpdate checks a change of a driver's description.
func validateCSIDriverUpdate(d, old *storagev1.CSIDriver) field.ErrorList {
	p := field.NewPath("spec")
	errs := validateCSIDriver(d)
	errs = append(errs, immutable(d.Spec.AttachRequired, old.Spec.AttachRequired, p.Child("attachedRequired"))...)
	return append(errs, immutable(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, p.Child("volumeLifecycleModes"))...)
}

func csiDriverTable(gr schema.GroupResource) rest.TableConvertor {
	doc := storagev1.CSIDriverSpec{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		boolean("AttachRequired", doc["attachRequired"]),
		boolean("PodInfoOnMount", doc["podInfoOnMount"]),
		boolean("StorageCapacity", doc["storageCapacity"]),
		text("TokenRequests", doc["tokenRequests"]),
		boolean("RequiresRepublish", doc["requiresRepublish"]),
		text("Modes", doc["volumeLifecycleModes"]),
		ageColumn(),
	}, func(o *storagev1.CSIDriver, now time.Time) []any {
		s := o.Spec
		var audiences, modes []string
		for _, t := range s.TokenRequests {
			audiences = append(audiences, t.Audience)
		}
		for _, m := range s.VolumeLifecycleModes {
			modes = append(modes, string(m))
		}
		return []any{
			o.Name, derefOr(s.AttachRequired, true), derefOr(s.PodInfoOnMount, false), derefOr(s.StorageCapacity, false),
			or(strings.Join(audiences, ","), unset), derefOr(s.RequiresRepublish, false), or(strings.Join(modes, ","), none),
			age(o.CreationTimestamp, now),
		}
	})
}
