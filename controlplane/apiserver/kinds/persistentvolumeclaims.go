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
		short: []string{"pvc"}, status: true, onCreate: creating(newClaim), onUpdate: updating(updateClaim),
		rules:    Rules{create(validatePersistentVolumeClaim), update(validatePersistentVolumeClaimUpdate), anew(validatePersistentVolumeClaimStatus)},
		defaults: defaulting(defaultPersistentVolumeClaim),
		table:    claimTable,
	})
}

func newClaim(_ context.Context, c *corev1.PersistentVolumeClaim) {
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	keepSources(&c.Spec, &corev1.PersistentVolumeClaimSpec{})
}

func updateClaim(_ context.Context, c, old *corev1.PersistentVolumeClaim) {
	keepSources(&c.Spec, &old.Spec)
}

// keepSources makes the two fields agree that tell what a claim is filled from. The older one
// never had but claims and snapshots, and anything else in it is dropped, as is a source in
// another namespace. What was stored stays.
func keepSources(s, old *corev1.PersistentVolumeClaimSpec) {
	if s.DataSourceRef != nil && deref(s.DataSourceRef.Namespace) != "" && old.DataSourceRef == nil {
		s.DataSourceRef = nil
	}
	if d := s.DataSource; d != nil && s.DataSourceRef == nil && old.DataSource == nil && old.DataSourceRef == nil {
		group := deref(d.APIGroup)
		isClaim := d.Kind == "PersistentVolumeClaim" && group == ""
		if isSnapshot := d.Kind == "VolumeSnapshot" && group == "snapshot.storage.k8s.io"; !isClaim && !isSnapshot {
			s.DataSource = nil
		}
	}
	agreeOnSource(s)
}

// agreeOnSource fills one of the two fields by the other.
func agreeOnSource(s *corev1.PersistentVolumeClaimSpec) {
	switch d, r := s.DataSource, s.DataSourceRef; {
	case d != nil && r == nil:
		d = d.DeepCopy()
		s.DataSourceRef = &corev1.TypedObjectReference{APIGroup: d.APIGroup, Kind: d.Kind, Name: d.Name}
	case d == nil && r != nil && deref(r.Namespace) == "":
		r = r.DeepCopy()
		s.DataSource = &corev1.TypedLocalObjectReference{APIGroup: r.APIGroup, Kind: r.Kind, Name: r.Name}
	}
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
	return append(errs, claimSources(s, p)...)
}

// claimSources checks what a claim is filled from.
func claimSources(s *corev1.PersistentVolumeClaimSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	source := func(group *string, kind, name string, p *field.Path) {
		errs = append(errs, required(name, p.Child("name"))...)
		errs = append(errs, required(kind, p.Child("kind"))...)
		if deref(group) == "" && kind != "" && kind != "PersistentVolumeClaim" {
			errs = append(errs, younger(field.Invalid(p, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))...)
		}
	}
	d, r := s.DataSource, s.DataSourceRef
	if d != nil {
		source(d.APIGroup, d.Kind, d.Name, p.Child("dataSource"))
	}
	if r != nil {
		source(r.APIGroup, r.Kind, r.Name, p.Child("dataSourceRef"))
	}
	if d == nil || r == nil {
		return errs
	}
	if deref(r.Namespace) == "" && (d.Kind != r.Kind || d.Name != r.Name || deref(d.APIGroup) != deref(r.APIGroup)) {
		errs = append(errs, younger(field.Invalid(p, p.Child("dataSource").String(), "must match dataSourceRef"))...)
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
	before := old.Spec.DeepCopy()
	agreeOnSource(before) // it may be older than the second field
	if !equal(*back, *before) {
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
