// Rules for the kinds of the group storage.k8s.io.

package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of the kinds of this group.
const (
	maxProvisionerParameters     = 512
	maxProvisionerParameterBytes = 256 * 1024
	maxNodeID                    = 256
	maxAttachMetadataBytes       = 256 * 1024
)

// ValidateStorageClass checks a storage class.
func ValidateStorageClass(c *storagev1.StorageClass) field.ErrorList {
	errs := required(c.Provisioner, field.NewPath("provisioner"))
	if c.Provisioner != "" {
		errs = append(errs, qualifiedName(strings.ToLower(c.Provisioner), field.NewPath("provisioner"))...)
	}
	p := field.NewPath("parameters")
	if n := len(c.Parameters); n > maxProvisionerParameters {
		errs = append(errs, field.TooLong(p, "", maxProvisionerParameters))
	}
	size := 0
	for k, v := range c.Parameters {
		if k == "" {
			errs = append(errs, field.Invalid(p, k, "field can not be empty."))
		}
		size += len(k) + len(v)
	}
	if size > maxProvisionerParameterBytes {
		errs = append(errs, field.TooLong(p, "", maxProvisionerParameterBytes))
	}
	if r := c.ReclaimPolicy; r != nil {
		errs = append(errs, oneOf(*r, field.NewPath("reclaimPolicy"), corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)...)
	}
	if c.VolumeBindingMode == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	}
	errs = append(errs, optionalOneOf(c.VolumeBindingMode, field.NewPath("volumeBindingMode"), storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)...)
	for i, t := range c.AllowedTopologies {
		for j, e := range t.MatchLabelExpressions {
			at := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j)
			errs = append(errs, labelName(e.Key, at.Child("key"))...)
			if len(e.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), ""))
			}
		}
	}
	return errs
}

// ValidateStorageClassUpdate checks a change of a class. Volumes have been made
// by what it said, so it cannot say otherwise.
func ValidateStorageClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	var errs field.ErrorList
	if !equal(c.Parameters, old.Parameters) {
		errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
	}
	if c.Provisioner != old.Provisioner {
		errs = append(errs, field.Forbidden(field.NewPath("provisioner"), "updates to provisioner are forbidden."))
	}
	if deref(c.ReclaimPolicy) != deref(old.ReclaimPolicy) {
		errs = append(errs, field.Forbidden(field.NewPath("reclaimPolicy"), "updates to reclaimPolicy are forbidden."))
	}
	return append(errs, immutable(c.VolumeBindingMode, old.VolumeBindingMode, field.NewPath("volumeBindingMode"))...)
}

// ValidateCSINode checks the drivers a node says it has.
func ValidateCSINode(n *storagev1.CSINode) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range n.Spec.Drivers {
		d, p := &n.Spec.Drivers[i], field.NewPath("spec", "drivers").Index(i)
		errs = append(errs, csiDriverName(d.Name, p.Child("name"))...)
		if seen[d.Name] {
			errs = append(errs, field.Duplicate(p.Child("name"), d.Name))
		}
		seen[d.Name] = true
		switch {
		case d.NodeID == "":
			errs = append(errs, field.Required(p.Child("nodeID"), ""))
		case len(d.NodeID) > maxNodeID:
			errs = append(errs, field.Invalid(p.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID)))
		}
		if d.Allocatable != nil {
			errs = append(errs, optionalNonNegative(d.Allocatable.Count, p.Child("allocatable", "count"))...)
		}
		keys := map[string]bool{}
		for _, k := range d.TopologyKeys {
			errs = append(errs, required(k, p.Child("topologyKeys"))...)
			if keys[k] {
				errs = append(errs, field.Duplicate(p.Child("topologyKeys"), k))
			}
			keys[k] = true
			errs = append(errs, qualifiedName(k, p.Child("topologyKeys"))...)
		}
	}
	return errs
}

// ValidateCSINodeUpdate checks a change: a driver comes and goes as a whole, but
// for how much it can still attach.
func ValidateCSINodeUpdate(n, old *storagev1.CSINode) field.ErrorList {
	errs := ValidateCSINode(n)
	for _, was := range old.Spec.Drivers {
		for i, d := range n.Spec.Drivers {
			d.Allocatable = was.Allocatable
			if d.Name == was.Name && !equal(d, was) {
				errs = append(errs, field.Invalid(field.NewPath("spec", "drivers").Index(i), n.Spec.Drivers[i], "field is immutable"))
			}
		}
	}
	return errs
}

// ValidateCSIDriver checks a driver's description.
func ValidateCSIDriver(d *storagev1.CSIDriver) field.ErrorList {
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
	for _, m := range d.Spec.VolumeLifecycleModes {
		errs = append(errs, oneOf(m, p.Child("volumeLifecycleModes"), storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral)...)
	}
	return errs
}

// ValidateCSIDriverUpdate checks a change of a driver's description.
func ValidateCSIDriverUpdate(d, old *storagev1.CSIDriver) field.ErrorList {
	p := field.NewPath("spec")
	errs := ValidateCSIDriver(d)
	errs = append(errs, immutable(d.Spec.AttachRequired, old.Spec.AttachRequired, p.Child("attachedRequired"))...)
	return append(errs, immutable(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes, p.Child("volumeLifecycleModes"))...)
}

// ValidateVolumeAttachment checks the wish to attach a volume to a node.
func ValidateVolumeAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
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

// ValidateVolumeAttachmentUpdate checks a change; the wish itself stays.
func ValidateVolumeAttachmentUpdate(a, old *storagev1.VolumeAttachment) field.ErrorList {
	return append(ValidateVolumeAttachment(a), immutable(a.Spec, old.Spec, field.NewPath("spec"))...)
}
