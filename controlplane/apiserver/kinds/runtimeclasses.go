// The kind RuntimeClass.

package kinds

import (
	"time"

	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func runtimeClasses() Kind {
	return of[nodev1.RuntimeClass, nodev1.RuntimeClassList](nodev1.SchemeGroupVersion, "RuntimeClass", "runtimeclasses", "runtimeclass", Kind{
		cluster: true, conditional: true,
		rules:    Rules{Create: create(validateRuntimeClass), Update: update(validateRuntimeClassUpdate)},
		defaults: defaulting(defaultRuntimeClass),
		table:    runtimeClassTable,
	})
}

func defaultRuntimeClass(o *nodev1.RuntimeClass) {
	if o.Overhead != nil {
		defaultResourceList(o.Overhead.PodFixed)
	}
}

// validateRuntimeClass checks a runtime class.
func validateRuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	errs := required(c.Handler, field.NewPath("handler"))
	if c.Handler != "" {
		errs = append(errs, dnsLabel(c.Handler, field.NewPath("handler"))...)
	}
	if c.Overhead != nil {
		p := field.NewPath("overhead", "podFixed")
		for _, name := range sortedNames(c.Overhead.PodFixed) {
			errs = append(errs, containerResourceName(name, p.Key(string(name)))...)
			errs = append(errs, validateResourceQuantity(name, c.Overhead.PodFixed[name], p.Key(string(name)))...)
		}
	}
	if s := c.Scheduling; s != nil {
		p := field.NewPath("scheduling")
		errs = append(errs, validLabels(s.NodeSelector, p.Child("nodeSelector"))...)
		errs = append(errs, validateTolerations(s.Tolerations, p.Child("tolerations"))...)
	}
	return errs
}

// validateRuntimeClassUpdate checks a change of a class, whose handler stays.
func validateRuntimeClassUpdate(c, old *nodev1.RuntimeClass) field.ErrorList {
	return append(validateRuntimeClass(c), immutable(c.Handler, old.Handler, field.NewPath("handler"))...)
}

func runtimeClassTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), text("Handler", nodev1.RuntimeClass{}.SwaggerDoc()["handler"]), ageColumn()},
		func(o *nodev1.RuntimeClass, now time.Time) []any {
			return []any{o.Name, o.Handler, age(o.CreationTimestamp, now)}
		})
}
