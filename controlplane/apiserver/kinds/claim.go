// Rules for persistent volumes and the claims on them.

package kinds

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePersistentVolume checks a persistent volume.
func ValidatePersistentVolume(v *corev1.PersistentVolume) field.ErrorList {
	p := field.NewPath("spec")
	s := &v.Spec
	errs := accessModes(s.AccessModes, p.Child("accessModes"))
	at := p.Child("capacity")
	size, ok := s.Capacity[corev1.ResourceStorage]
	switch {
	case len(s.Capacity) == 0:
		errs = append(errs, field.Required(at, ""))
	case !ok || len(s.Capacity) > 1:
		errs = append(errs, field.NotSupported(at, s.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	default:
		errs = append(errs, quantityPositive(size, at.Key(string(corev1.ResourceStorage)))...)
	}
	if s.PersistentVolumeReclaimPolicy != "" {
		errs = append(errs, oneOf(s.PersistentVolumeReclaimPolicy, p.Child("persistentVolumeReclaimPolicy"),
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain)...)
	}
	errs = append(errs, optionalOneOf(s.VolumeMode, p.Child("volumeMode"), corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)...)
	if s.StorageClassName != "" {
		errs = append(errs, dnsSubdomain(s.StorageClassName, p.Child("storageClassName"))...)
	}
	errs = append(errs, persistentSource(s, p)...)
	if a := s.NodeAffinity; a != nil {
		if a.Required == nil {
			errs = append(errs, field.Required(p.Child("nodeAffinity", "required"), "must specify required node constraints"))
		} else {
			errs = append(errs, nodeSelector(a.Required, p.Child("nodeAffinity", "required"))...)
		}
	}
	return errs
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

func persistentSource(s *corev1.PersistentVolumeSpec, p *field.Path) field.ErrorList {
	errs := oneSource(&s.PersistentVolumeSource, p)
	if v := s.HostPath; v != nil {
		errs = append(errs, hostPath(v, p.Child("hostPath"))...)
		if v.Path == "/" && s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
			errs = append(errs, field.Forbidden(p.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
		}
	}
	if v := s.NFS; v != nil {
		errs = append(errs, nfs(v, p.Child("nfs"))...)
	}
	if v := s.Local; v != nil {
		at := p.Child("local", "path")
		errs = append(errs, required(v.Path, at)...)
		errs = append(errs, noBacksteps(v.Path, at)...)
		if s.NodeAffinity == nil || s.NodeAffinity.Required == nil {
			errs = append(errs, field.Required(p.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	}
	if v := s.CSI; v != nil {
		at := p.Child("csi")
		errs = append(errs, csiDriverName(v.Driver, at.Child("driver"))...)
		errs = append(errs, required(v.VolumeHandle, at.Child("volumeHandle"))...)
		errs = append(errs, secretReference(v.ControllerPublishSecretRef, at.Child("controllerPublishSecretRef"))...)
		errs = append(errs, secretReference(v.NodeStageSecretRef, at.Child("nodeStageSecretRef"))...)
		errs = append(errs, secretReference(v.NodePublishSecretRef, at.Child("nodePublishSecretRef"))...)
		errs = append(errs, secretReference(v.ControllerExpandSecretRef, at.Child("controllerExpandSecretRef"))...)
		errs = append(errs, secretReference(v.NodeExpandSecretRef, at.Child("nodeExpandSecretRef"))...)
	}
	return errs
}

// ValidatePersistentVolumeUpdate checks a change of a volume. Where the data is
// cannot change; nor, once said, from which nodes it can be reached.
func ValidatePersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	p := field.NewPath("spec")
	errs := ValidatePersistentVolume(v)
	// A CSI volume's secrets for expansion may be added later.
	now := v.Spec.PersistentVolumeSource.DeepCopy()
	if now.CSI != nil && old.Spec.CSI != nil {
		if old.Spec.CSI.ControllerExpandSecretRef == nil {
			now.CSI.ControllerExpandSecretRef = nil
		}
		if old.Spec.CSI.NodeExpandSecretRef == nil {
			now.CSI.NodeExpandSecretRef = nil
		}
	}
	if !equal(*now, old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(p.Child("persistentvolumesource"), "spec.persistentvolumesource is immutable after creation"))
	}
	errs = append(errs, immutable(v.Spec.VolumeMode, old.Spec.VolumeMode, p.Child("volumeMode"))...)
	if old.Spec.NodeAffinity != nil {
		errs = append(errs, immutable(v.Spec.NodeAffinity, old.Spec.NodeAffinity, p.Child("nodeAffinity"))...)
	}
	return errs
}

// ValidatePersistentVolumeClaim checks a claim.
func ValidatePersistentVolumeClaim(c *corev1.PersistentVolumeClaim) field.ErrorList {
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

// ValidatePersistentVolumeClaimUpdate checks a change of a claim: it may be
// bound to a volume, and once bound ask for more.
func ValidatePersistentVolumeClaimUpdate(c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	p := field.NewPath("spec")
	errs := ValidatePersistentVolumeClaim(c)
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

// ValidatePersistentVolumeClaimStatus checks what a claim is said to have got.
func ValidatePersistentVolumeClaimStatus(c *corev1.PersistentVolumeClaim) field.ErrorList {
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
