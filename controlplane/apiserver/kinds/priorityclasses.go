// The kind PriorityClass.

package kinds

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func priorityClasses() Kind {
	return of[schedulingv1.PriorityClass, schedulingv1.PriorityClassList](schedulingv1.SchemeGroupVersion, "PriorityClass", "priorityclasses", "priorityclass", Kind{
		short: []string{"pc"}, cluster: true, generation: true,
		rules:    Rules{Create: create(validatePriorityClass), Update: update(validatePriorityClassUpdate)},
		defaults: defaulting(defaultPriorityClass),
		table:    priorityClassTable,
	})
}

// SystemPriorityClasses exist in every cluster.
func SystemPriorityClasses() []*schedulingv1.PriorityClass {
	return []*schedulingv1.PriorityClass{
		{
			ObjectMeta:  metav1.ObjectMeta{Name: "system-node-critical"},
			Value:       2000001000,
			Description: "Used for system critical pods that must not be moved from their current node.",
		},
		{
			ObjectMeta:  metav1.ObjectMeta{Name: "system-cluster-critical"},
			Value:       2000000000,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
		},
	}
}

func defaultPriorityClass(o *schedulingv1.PriorityClass) {
	setPtr(&o.PreemptionPolicy, corev1.PreemptLowerPriority)
}

// maxUserPriority is the highest value a class can have that is not one of the
// system's own, whose names begin with system-.
const (
	maxUserPriority = 1_000_000_000
	systemPrefix    = "system-"
)

// validatePriorityClass checks a priority class. The names and values above
// what users can have belong to the two classes of the system.
func validatePriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	known := map[string]int32{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
	name, value := field.NewPath("metadata", "name"), field.NewPath("value")
	if strings.HasPrefix(c.Name, systemPrefix) {
		want, ok := known[c.Name]
		switch {
		case !ok:
			errs = append(errs, field.Forbidden(name, "priority class names with 'system-' prefix are reserved for system use only. error: "+
				fmt.Sprintf("%s is not a known system priority class", c.Name)))
		case c.Value != want:
			errs = append(errs, field.Forbidden(name, "priority class names with 'system-' prefix are reserved for system use only. error: "+
				fmt.Sprintf("value of %s PriorityClass must be %d", c.Name, want)))
		case c.GlobalDefault:
			errs = append(errs, field.Forbidden(name, "priority class names with 'system-' prefix are reserved for system use only. error: "+
				fmt.Sprintf("globalDefault of %s PriorityClass must be false", c.Name)))
		}
	} else if c.Value > maxUserPriority {
		errs = append(errs, field.Forbidden(value, fmt.Sprintf("maximum allowed value of a user defined priority is %d", maxUserPriority)))
	}
	return append(errs, optionalOneOf(c.PreemptionPolicy, field.NewPath("preemptionPolicy"), corev1.PreemptLowerPriority, corev1.PreemptNever)...)
}

// validatePriorityClassUpdate checks a change of a class: pods carry its value,
// so it stays.
func validatePriorityClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs, immutable(c.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
}

func priorityClassTable(gr schema.GroupResource) rest.TableConvertor {
	doc := schedulingv1.PriorityClass{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		integer("Value", doc["value"]),
		boolean("Global-Default", doc["globalDefault"]),
		ageColumn(),
		text("PreemptionPolicy", doc["preemptionPolicy"]),
	}, func(o *schedulingv1.PriorityClass, now time.Time) []any {
		return []any{
			o.Name, int64(o.Value), o.GlobalDefault, age(o.CreationTimestamp, now),
			string(derefOr(o.PreemptionPolicy, corev1.PreemptLowerPriority)),
		}
	})
}
