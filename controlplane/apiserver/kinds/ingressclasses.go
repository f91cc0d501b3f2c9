// The kind IngressClass.

package kinds

import (
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func ingressClasses() Kind {
	return of[networkingv1.IngressClass, networkingv1.IngressClassList](networkingv1.SchemeGroupVersion, "IngressClass", "ingressclasses", "ingressclass", Kind{
		cluster: true, generation: true,
		rules:    Rules{Create: create(validateIngressClass), Update: update(validateIngressClassUpdate)},
		defaults: defaulting(defaultIngressClass),
		table:    ingressClassTable,
	})
}

func defaultIngressClass(o *networkingv1.IngressClass) {
	if o.Spec.Parameters != nil {
		setPtr(&o.Spec.Parameters.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
	}
}

// validateIngressClass checks an ingress class.
func validateIngressClass(c *networkingv1.IngressClass) field.ErrorList {
	p := field.NewPath("spec")
	var errs field.ErrorList
	if c.Spec.Controller == "" {
		errs = append(errs, field.Required(p.Child("controller"), ""))
	} else {
		errs = append(errs, validation.IsDomainPrefixedPath(p.Child("controller"), c.Spec.Controller)...)
	}
	if r := c.Spec.Parameters; r != nil {
		at := p.Child("parameters")
		errs = append(errs, required(r.Kind, at.Child("kind"))...)
		errs = append(errs, required(r.Name, at.Child("name"))...)
		scope := deref(r.Scope)
		scopes := []string{networkingv1.IngressClassParametersReferenceScopeCluster, networkingv1.IngressClassParametersReferenceScopeNamespace}
		switch {
		case !slices.Contains(scopes, scope):
			errs = append(errs, oneOf(scope, at.Child("scope"), scopes...)...)
		case scope == networkingv1.IngressClassParametersReferenceScopeNamespace && deref(r.Namespace) == "":
			errs = append(errs, field.Required(at.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
		case scope == networkingv1.IngressClassParametersReferenceScopeCluster && r.Namespace != nil:
			errs = append(errs, field.Forbidden(at.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
		}
	}
	return errs
}

// validateIngressClassUpdate checks a change of a class, whose controller stays.
func validateIngressClassUpdate(c, old *networkingv1.IngressClass) field.ErrorList {
	return append(validateIngressClass(c), immutable(c.Spec.Controller, old.Spec.Controller, field.NewPath("spec", "controller"))...)
}

func ingressClassTable(gr schema.GroupResource) rest.TableConvertor {
	doc := networkingv1.IngressClassSpec{}.SwaggerDoc()
	return newTable(gr, columns{nameColumn(), text("Controller", doc["controller"]), text("Parameters", doc["parameters"]), ageColumn()},
		func(o *networkingv1.IngressClass, now time.Time) []any {
			parameters := none
			if p := o.Spec.Parameters; p != nil {
				parameters = p.Kind
				if g := derefOr(p.APIGroup, ""); g != "" {
					parameters += "." + g
				}
				parameters += "/" + p.Name
			}
			return []any{o.Name, o.Spec.Controller, parameters, age(o.CreationTimestamp, now)}
		})
}
