// The kind VolumeAttachment.

package kinds

import (
	"maps"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func volumeAttachments() Kind {
	return of[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](storagev1.SchemeGroupVersion, "VolumeAttachment", "volumeattachments", "volumeattachment", Kind{
		cluster: true, status: true, conditional: true,
		rules:    Rules{Create: create(validateVolumeAttachment), Update: update(validateVolumeAttachmentUpdate)},
		defaults: defaulting(defaultVolumeAttachment),
		table:    volumeAttachmentTable,
	})
}

func defaultVolumeAttachment(o *storagev1.VolumeAttachment) {
	if s := o.Spec.Source.InlineVolumeSpec; s != nil {
		defaultPersistentVolumeSpec(s)
	}
}

const maxAttachMetadataBytes = 256 * 1024

// validateVolumeAttachment checks the wish to attach a volume to a node.
func validateVolumeAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	p := field.NewPath("spec")
	errs := csiDriverName(a.Spec.Attacher, p.Child("attacher"))
	if a.Spec.NodeName == "" {
		errs = append(errs, field.Required(p.Child("nodeName"), ""))
	} else {
		errs = append(errs, dnsSubdomain(a.Spec.NodeName, p.Child("nodeName"))...)
	}
	s := a.Spec.Source
	switch {
	case s.PersistentVolumeName == nil && s.InlineVolumeSpec == nil:
		errs = append(errs, field.Required(p.Child("source"), "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.PersistentVolumeName != nil && s.InlineVolumeSpec != nil:
		errs = append(errs, field.Forbidden(p.Child("source"), "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.PersistentVolumeName != nil:
		errs = append(errs, dnsSubdomain(*s.PersistentVolumeName, p.Child("source", "persistentVolumeName"))...)
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(a.Status.AttachmentMetadata)) {
		size += len(k) + len(a.Status.AttachmentMetadata[k])
	}
	if size > maxAttachMetadataBytes {
		errs = append(errs, field.TooLong(field.NewPath("status", "attachmentMetadata"), "", maxAttachMetadataBytes))
	}
	return errs
}

// validateVolumeAttachmentUpdate checks a change; the wish itself stays.
func validateVolumeAttachmentUpdate(a, old *storagev1.VolumeAttachment) field.ErrorList {
	return append(validateVolumeAttachment(a), immutable(a.Spec, old.Spec, field.NewPath("spec"))...)
}

func volumeAttachmentTable(gr schema.GroupResource) rest.TableConvertor {
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
			o.Name, o.Spec.Attacher, derefOr(o.Spec.Source.PersistentVolumeName, ""), o.Spec.NodeName,
			o.Status.Attached, age(o.CreationTimestamp, now),
		}
	})
}
