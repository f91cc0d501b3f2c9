// Tables of volumes, claims and the group storage.k8s.io.

package printers

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// defaultClassAnnotations mark a storage class as the default of the cluster;
// the second is the name it had in beta.
var defaultClassAnnotations = [...]string{
	"storageclass.kubernetes.io/is-default-class",
	"storageclass.beta.kubernetes.io/is-default-class",
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
			o.Name, o.Spec.Capacity.Storage().String(), accessModes(o.Spec.AccessModes), string(o.Spec.PersistentVolumeReclaimPolicy),
			phase, claim, class, deref(o.Spec.VolumeAttributesClassName, unset), o.Status.Reason, age(o.CreationTimestamp, now),
			string(deref(o.Spec.VolumeMode, unset)),
		}
	})
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
			modes = accessModes(o.Status.AccessModes)
		}
		class := deref(o.Spec.StorageClassName, "")
		if beta, ok := o.Annotations[corev1.BetaStorageClassAnnotation]; ok {
			class = beta
		}
		return []any{
			o.Name, phase, o.Spec.VolumeName, capacity, modes, class, deref(o.Spec.VolumeAttributesClassName, unset),
			age(o.CreationTimestamp, now), string(deref(o.Spec.VolumeMode, unset)),
		}
	})
}

// accessModes abbreviates, in a fixed order and each mode once.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
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

func storageTable(gr schema.GroupResource) rest.TableConvertor {
	switch gr.Resource {
	case "storageclasses":
		return storageClassTable(gr)
	case "csidrivers":
		return csiDriverTable(gr)
	case "csinodes":
		return newTable(gr, columns{
			nameColumn(),
			integer("Drivers", "Drivers indicates the number of CSI drivers registered on the node"),
			ageColumn(),
		}, func(o *storagev1.CSINode, now time.Time) []any {
			return []any{o.Name, int64(len(o.Spec.Drivers)), age(o.CreationTimestamp, now)}
		})
	case "volumeattachments":
		spec := storagev1.VolumeAttachmentSpec{}.SwaggerDoc()
		return newTable(gr, columns{
			nameColumn(),
			text("Attacher", spec["attacher"]),
			text("PV", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
			text("Node", spec["nodeName"]),
			boolean("Attached", storagev1.VolumeAttachmentStatus{}.SwaggerDoc()["attached"]),
			ageColumn(),
		}, func(o *storagev1.VolumeAttachment, now time.Time) []any {
			return []any{
				o.Name, o.Spec.Attacher, deref(o.Spec.Source.PersistentVolumeName, ""), o.Spec.NodeName,
				o.Status.Attached, age(o.CreationTimestamp, now),
			}
		})
	default:
		return nil
	}
}

func storageClassTable(gr schema.GroupResource) rest.TableConvertor {
	doc := storagev1.StorageClass{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("Provisioner", doc["provisioner"]),
		text("ReclaimPolicy", doc["reclaimPolicy"]),
		text("VolumeBindingMode", doc["volumeBindingMode"]),
		boolean("AllowVolumeExpansion", doc["allowVolumeExpansion"]),
		ageColumn(),
	}, func(o *storagev1.StorageClass, now time.Time) []any {
		name := o.Name
		if slices.ContainsFunc(defaultClassAnnotations[:], func(a string) bool { return o.Annotations[a] == "true" }) {
			name += " (default)"
		}
		return []any{
			name, o.Provisioner, string(deref(o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
			string(deref(o.VolumeBindingMode, storagev1.VolumeBindingImmediate)), deref(o.AllowVolumeExpansion, false),
			age(o.CreationTimestamp, now),
		}
	})
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
			o.Name, deref(s.AttachRequired, true), deref(s.PodInfoOnMount, false), deref(s.StorageCapacity, false),
			or(strings.Join(audiences, ","), unset), deref(s.RequiresRepublish, false), or(strings.Join(modes, ","), none),
			age(o.CreationTimestamp, now),
		}
	})
}
