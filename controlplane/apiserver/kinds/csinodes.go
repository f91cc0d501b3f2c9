// The kind CSINode.

package kinds

import (
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func csiNodes() Kind {
	return of[storagev1.CSINode, storagev1.CSINodeList](storagev1.SchemeGroupVersion, "CSINode", "csinodes", "csinode", Kind{
		cluster: true, conditional: true,
		rules: Rules{Create: create(validateCSINode), Update: update(validateCSINodeUpdate)},
		table: csiNodeTable,
	})
}

const maxNodeID = 256

// validateCSINode checks the drivers a node says it has.
func validateCSINode(n *storagev1.CSINode) field.ErrorList {
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

// validateCSINodeUpdate checks a change: a driver comes and goes as a whole, but
// for how much it can still attach.
func validateCSINodeUpdate(n, old *storagev1.CSINode) field.ErrorList {
	errs := validateCSINode(n)
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

func csiNodeTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		integer("Drivers", "Drivers indicates the number of CSI drivers registered on the node"),
		ageColumn(),
	}, func(o *storagev1.CSINode, now time.Time) []any {
		return []any{o.Name, int64(len(o.Spec.Drivers)), age(o.CreationTimestamp, now)}
	})
}
