// The kind PersistentVolume.

package kinds

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func persistentVolumes() Kind {
	return of[corev1.PersistentVolume, corev1.PersistentVolumeList](corev1.SchemeGroupVersion, "PersistentVolume", "persistentvolumes", "persistentvolume", Kind{
		short: []string{"pv"}, cluster: true, status: true, onCreate: creating(newVolume), onStatus: updating(volumeStatus),
		rules:    Rules{create(validatePersistentVolume), update(validatePersistentVolumeUpdate), nil},
		defaults: defaulting(defaultPersistentVolume),
		table:    persistentVolumeTable,
	})
}

func newVolume(_ context.Context, pv *corev1.PersistentVolume) {
	now := metav1.Now()
	pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
}

// volumeStatus dates a change of phase that the writer did not date.
func volumeStatus(_ context.Context, pv, old *corev1.PersistentVolume) {
	if pv.Status.Phase == old.Status.Phase {
		return
	}
	if pv.Status.LastPhaseTransitionTime == nil || pv.Status.LastPhaseTransitionTime.Equal(old.Status.LastPhaseTransitionTime) {
		now := metav1.Now()
		pv.Status.LastPhaseTransitionTime = &now
	}
}

func defaultPersistentVolume(o *corev1.PersistentVolume) {
	set(&o.Status.Phase, corev1.VolumePending)
	defaultPersistentVolumeSpec(&o.Spec)
}

func defaultPersistentVolumeSpec(s *corev1.PersistentVolumeSpec) {
	set(&s.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	setPtr(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	defaultResourceList(s.Capacity)
	switch {
	case s.HostPath != nil:
		setPtr(&s.HostPath.Type, corev1.HostPathUnset)
	case s.ISCSI != nil:
		set(&s.ISCSI.ISCSIInterface, "default")
	case s.RBD != nil:
		defaultRBD(&s.RBD.RBDPool, &s.RBD.RadosUser, &s.RBD.Keyring)
	case s.AzureDisk != nil:
		defaultAzureDisk(s.AzureDisk)
	case s.ScaleIO != nil:
		defaultScaleIO(&s.ScaleIO.StorageMode, &s.ScaleIO.FSType)
	}
}

// validatePersistentVolume checks a persistent volume.
func validatePersistentVolume(v *corev1.PersistentVolume) field.ErrorList {
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

// validatePersistentVolumeUpdate checks a change of a volume. Where the data is
// cannot change; nor, once said, from which nodes it can be reached.
func validatePersistentVolumeUpdate(v, old *corev1.PersistentVolume) field.ErrorList {
	p := field.NewPath("spec")
	errs := validatePersistentVolume(v)
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

func persistentVolumeTable(gr schema.GroupResource) rest.TableConvertor {
	spec, status := corev1.PersistentVolumeSpec{}.SwaggerDoc(), corev1.PersistentVolumeStatus{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("Capacity", spec["capacity"]),
		text("Access Modes", spec["accessModes"]),
		text("Reclaim Policy", spec["persistentVolumeReclaimPolicy"]),
		text("Status", status["phase"]),
		text("Claim", spec["claimRef"]),
		text("StorageClass", "StorageClass of the pv"),
		text("VolumeAttributesClass", "VolumeAttributesClass of the pv"),
		text("Reason", status["reason"]),
		ageColumn(),
		wide(text("VolumeMode", spec["volumeMode"])),
	}, func(o *corev1.PersistentVolume, now time.Time) []any {
		claim := ""
		if r := o.Spec.ClaimRef; r != nil {
			claim = r.Namespace + "/" + r.Name
		}
		phase := string(o.Status.Phase)
		if o.DeletionTimestamp != nil {
			phase = "Terminating"
		}
		class := o.Spec.StorageClassName
		if beta, ok := o.Annotations[corev1.BetaStorageClassAnnotation]; ok {
			class = beta
		}
		return []any{
			o.Name, o.Spec.Capacity.Storage().String(), accessModesCell(o.Spec.AccessModes), string(o.Spec.PersistentVolumeReclaimPolicy),
			phase, claim, class, derefOr(o.Spec.VolumeAttributesClassName, unset), o.Status.Reason, age(o.CreationTimestamp, now),
			string(derefOr(o.Spec.VolumeMode, unset)),
		}
	})
}
