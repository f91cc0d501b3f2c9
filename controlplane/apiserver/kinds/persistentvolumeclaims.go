// The kind PersistentVolumeClaim.

package kinds

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func persistentVolumeClaims() Kind {
	return of[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](corev1.SchemeGroupVersion, "PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim", Kind{
		short: []string{"pvc"}, status: true, onCreate: creating(newClaim),
		rules:    Rules{create(validatePersistentVolumeClaim), update(validatePersistentVolumeClaimUpdate), anew(validatePersistentVolumeClaimStatus)},
		defaults: defaulting(defaultPersistentVolumeClaim),
		table:    claimTable,
	})
}

func newClaim(_ context.Context, c *corev1.PersistentVolumeClaim) {
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
}

func defaultPersistentVolumeClaim(o *corev1.PersistentVolumeClaim) {
	set(&o.Status.Phase, corev1.ClaimPending)
	defaultClaimSpec(&o.Spec)
	defaultResourceList(o.Status.Capacity)
	defaultResourceList(o.Status.AllocatedResources)
}

func defaultClaimSpec(s *corev1.PersistentVolumeClaimSpec) {
	setPtr(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	defaultResourceList(s.Resources.Limits)
	defaultResourceList(s.Resources.Requests)
}

func accessModes(modes []corev1.PersistentVolumeAccessMode, p *field.Path) field.ErrorList {
	if len(modes) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	for _, m := range modes {
		errs = append(errs, oneOf(m, p, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)...)
	}
	if len(modes) > 1 && slices.Contains(modes, corev1.ReadWriteOncePod) {
		errs = append(errs, field.Forbidden(p, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

// validatePersistentVolumeClaim checks a claim.
func validatePersistentVolumeClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
	return claimSpec(&c.Spec, field.NewPath("spec"))
}

func claimSpec(s *corev1.PersistentVolumeClaimSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.AccessModes) == 0 {
		errs = append(errs, field.Required(p.Child("accessModes"), "at least 1 access mode is required"))
	} else {
		errs = append(errs, accessModes(s.AccessModes, p.Child("accessModes"))...)
	}
	errs = append(errs, labelSelector(s.Selector, p.Child("selector"))...)
	at := p.Child("resources", "requests").Key(string(corev1.ResourceStorage))
	if size, ok := s.Resources.Requests[corev1.ResourceStorage]; ok {
		errs = append(errs, quantityPositive(size, at)...)
	} else {
		errs = append(errs, field.Required(p.Child("resources").Key(string(corev1.ResourceStorage)), ""))
	}
	if n := deref(s.StorageClassName); n != "" {
		errs = append(errs, dnsSubdomain(n, p.Child("storageClassName"))...)
	}
	if n := deref(s.VolumeAttributesClassName); n != "" {
		errs = append(errs, dnsSubdomain(n, p.Child("volumeAttributesClassName"))...)
	}
	errs = append(errs, optionalOneOf(s.VolumeMode, p.Child("volumeMode"), corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)...)
	if d := s.DataSource; d != nil {
		errs = append(errs, required(d.Name, p.Child("dataSource", "name"))...)
		errs = append(errs, required(d.Kind, p.Child("dataSource", "kind"))...)
	}
	if d := s.DataSourceRef; d != nil {
		errs = append(errs, required(d.Name, p.Child("dataSourceRef", "name"))...)
		errs = append(errs, required(d.Kind, p.Child("dataSourceRef", "kind"))...)
	}
	return errs
}

// validatePersistentVolumeClaimUpdate checks a change of a claim: it may be
// bound to a volume, and once bound ask for more.
func validatePersistentVolumeClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	p := field.NewPath("spec")
	errs := validatePersistentVolumeClaim(c)
	back := c.Spec.DeepCopy()
	if old.Spec.VolumeName == "" {
		back.VolumeName = ""
	}
	// A class may be filled in for a claim that had none when it was made.
	if old.Spec.StorageClassName == nil {
		back.StorageClassName = nil
	}
	back.VolumeAttributesClassName = old.Spec.VolumeAttributesClassName
	size, was := c.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(was) != 0 && old.Status.Phase == corev1.ClaimBound {
		if status := old.Status.Capacity[corev1.ResourceStorage]; size.Cmp(was) < 0 && size.Cmp(status) <= 0 {
			errs = append(errs, field.Forbidden(p.Child("resources", "requests").Key("storage"), "field can not be less than status.capacity"))
		}
		if _, ok := back.Resources.Requests[corev1.ResourceStorage]; ok {
			back.Resources.Requests[corev1.ResourceStorage] = was
		}
	}
	if !equal(*back, old.Spec) {
		errs = append(errs, field.Forbidden(p, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"))
	}
	return errs
}

// validatePersistentVolumeClaimStatus checks what a claim is said to have got.
func validatePersistentVolumeClaimStatus(c *corev1.PersistentVolumeClaim) field.ErrorList {
	p := field.NewPath("status")
	var errs field.ErrorList
	if len(c.Spec.AccessModes) == 0 {
		errs = append(errs, field.Required(field.NewPath("spec", "accessModes"), ""))
	}
	for _, name := range sortedNames(c.Status.Capacity) {
		errs = append(errs, quantityNotNegative(c.Status.Capacity[name], p.Child("capacity").Key(string(name)))...)
	}
	for _, name := range sortedNames(c.Status.AllocatedResources) {
		errs = append(errs, quantityNotNegative(c.Status.AllocatedResources[name], p.Child("allocatedResources").Key(string(name)))...)
	}
	return errs
}

func claimTable(gr schema.GroupResource) rest.TableConvertor {
	spec, status := corev1.PersistentVolumeClaimSpec{}.SwaggerDoc(), corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("Status", status["phase"]),
		text("Volume", spec["volumeName"]),
		text("Capacity", status["capacity"]),
		text("Access Modes", status["accessModes"]),
		text("StorageClass", "StorageClass of the pvc"),
		text("VolumeAttributesClass", "VolumeAttributesClass of the pvc"),
		ageColumn(),
		wide(text("VolumeMode", spec["volumeMode"])),
	}, func(o *corev1.PersistentVolumeClaim, now time.Time) []any {
		phase := string(o.Status.Phase)
		if o.DeletionTimestamp != nil {
			phase = "Terminating"
		}
		capacity, modes := "", ""
		if o.Spec.VolumeName != "" {
			capacity = o.Status.Capacity.Storage().String()
			modes = accessModesCell(o.Status.AccessModes)
		}
		class := derefOr(o.Spec.StorageClassName, "")
		if beta, ok := o.Annotations[corev1.BetaStorageClassAnnotation]; ok {
			class = beta
		}
		return []any{
			o.Name, phase, o.Spec.VolumeName, capacity, modes, class, derefOr(o.Spec.VolumeAttributesClassName, unset),
			age(o.CreationTimestamp, now), string(derefOr(o.Spec.VolumeMode, unset)),
		}
	})
}

// accessModesCell abbreviates, in a fixed order and each mode once.
func accessModesCell(modes []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"},
		{corev1.ReadOnlyMany, "ROX"},
		{corev1.ReadWriteMany, "RWX"},
		{corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(modes, m.mode) {
			out = append(out, m.short)
		}
	}
	return strings.Join(out, ",")
}
