// The kind StorageClass.

package kinds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func storageClasses() Kind {
	return of[storagev1.StorageClass, storagev1.StorageClassList](storagev1.SchemeGroupVersion, "StorageClass", "storageclasses", "storageclass", Kind{
		short: []string{"sc"}, cluster: true,
		rules:    Rules{Create: create(validateStorageClass), Update: update(validateStorageClassUpdate)},
		defaults: defaulting(defaultStorageClass),
		table:    storageClassTable,
	})
}

func defaultStorageClass(o *storagev1.StorageClass) {
	setPtr(&o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	setPtr(&o.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

// Bounds of the kinds of this group.
const (
	maxProvisionerParameters     = 512
	maxProvisionerParameterBytes = 256 * 1024
)

// validateStorageClass checks a storage class.
func validateStorageClass(c *storagev1.StorageClass) field.ErrorList {
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
	return append(errs, topologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

// topologies wants terms that differ. It tells the first that does not: there may be thousands.
func topologies(terms []corev1.TopologySelectorTerm, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen, told := make(map[string]bool, len(terms)), false
	for i, t := range terms {
		at := p.Index(i).Child("matchLabelExpressions")
		term := make(map[string][]string, len(t.MatchLabelExpressions))
		for j, e := range t.MatchLabelExpressions {
			errs = append(errs, topologyValues(&e, at.Index(j))...)
			if _, twice := term[e.Key]; twice {
				errs = append(errs, field.Duplicate(at.Index(j).Child("key"), e.Key))
			}
			term[e.Key] = slices.Compact(slices.Sorted(slices.Values(e.Values)))
		}
		key := fmt.Sprintf("%q", term) // with the keys sorted
		if seen[key] && !told {
			errs = append(errs, field.Duplicate(at, ""))
			told = true
		}
		seen[key] = true
	}
	return errs
}

func topologyValues(e *corev1.TopologySelectorLabelRequirement, p *field.Path) field.ErrorList {
	errs := labelName(e.Key, p.Child("key"))
	if len(e.Values) == 0 {
		errs = append(errs, field.Required(p.Child("values"), ""))
	}
	again := repeats[string]()
	for i, v := range e.Values {
		if again(v) {
			errs = append(errs, field.Duplicate(p.Child("values").Index(i), v))
		}
	}
	return errs
}

// validateStorageClassUpdate checks a change of a class. Volumes have been made
// by what it said, so it cannot say otherwise.
func validateStorageClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
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

// defaultClassAnnotations mark a storage class as the default of the cluster;
// the second is the name it had in beta.
var defaultClassAnnotations = [...]string{
	"storageclass.kubernetes.io/is-default-class",
	"storageclass.beta.kubernetes.io/is-default-class",
}

// IsDefaultStorageClass tells whether c is marked as the default of the cluster.
func IsDefaultStorageClass(c *storagev1.StorageClass) bool {
	return slices.ContainsFunc(defaultClassAnnotations[:], func(a string) bool { return c.Annotations[a] == "true" })
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
		if IsDefaultStorageClass(o) {
			name += " (default)"
		}
		return []any{
			name, o.Provisioner, string(derefOr(o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
			string(derefOr(o.VolumeBindingMode, storagev1.VolumeBindingImmediate)), derefOr(o.AllowVolumeExpansion, false),
			age(o.CreationTimestamp, now),
		}
	})
}
