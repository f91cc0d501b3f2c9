// The kind ValidatingAdmissionPolicyBinding.

package kinds

import (
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func validatingAdmissionPolicyBindings() Kind {
	return of[admissionv1.ValidatingAdmissionPolicyBinding, admissionv1.ValidatingAdmissionPolicyBindingList](admissionv1.SchemeGroupVersion, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", "validatingadmissionpolicybinding", Kind{
		category: "api-extensions", cluster: true, generation: true, anyFinalizer: true,
		rules:    Rules{Create: create(validateAdmissionPolicyBinding), Update: anew(validateAdmissionPolicyBinding)},
		defaults: defaulting(defaultAdmissionPolicyBinding),
		table:    policyBindingTable,
	})
}

func defaultAdmissionPolicyBinding(o *admissionv1.ValidatingAdmissionPolicyBinding) {
	defaultMatchResources(o.Spec.MatchResources)
}

// validateAdmissionPolicyBinding checks what puts a policy into force.
func validateAdmissionPolicyBinding(b *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
	s, p := &b.Spec, field.NewPath("spec")
	errs := required(s.PolicyName, p.Child("policyName"))
	if s.PolicyName != "" {
		errs = append(errs, dnsSubdomain(s.PolicyName, p.Child("policyName"))...)
	}
	if r := s.ParamRef; r != nil {
		errs = append(errs, paramRef(r, p.Child("paramRef"))...)
	}
	if s.MatchResources != nil {
		errs = append(errs, matchResources(s.MatchResources, p.Child("matchResources"))...)
	}
	actions := p.Child("validationActions")
	if len(s.ValidationActions) == 0 {
		errs = append(errs, field.Required(actions, "at least one validation action is required"))
	}
	again := repeats[admissionv1.ValidationAction]()
	for i, a := range s.ValidationActions {
		errs = append(errs, oneOf(a, actions.Index(i), admissionv1.Deny, admissionv1.Warn, admissionv1.Audit)...)
		if again(a) {
			errs = append(errs, field.Duplicate(actions.Index(i), a))
		}
	}
	if slices.Contains(s.ValidationActions, admissionv1.Deny) && slices.Contains(s.ValidationActions, admissionv1.Warn) {
		errs = append(errs, field.Invalid(actions, s.ValidationActions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	return errs
}

func paramRef(r *admissionv1.ParamRef, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case (r.Name == "") == (r.Selector == nil):
		errs = append(errs, field.Required(p, "exactly one of name or selector is required"))
	case r.Selector != nil:
		errs = append(errs, labelSelector(r.Selector, p.Child("selector"))...)
	default:
		errs = append(errs, messages(p.Child("name"), r.Name, pathSegment(r.Name, false))...)
	}
	if r.ParameterNotFoundAction == nil {
		return append(errs, field.Required(p.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, optionalOneOf(r.ParameterNotFoundAction, p.Child("parameterNotFoundAction"), admissionv1.AllowAction, admissionv1.DenyAction)...)
}

func policyBindingTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to"),
		text("ParamRef", "ParamRef indicates the param resource which sets the configuration param"),
		ageColumn(),
	}, func(o *admissionv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
		ref := "<unset>"
		if r := o.Spec.ParamRef; r != nil {
			switch {
			case r.Name == "":
				ref = "*"
			case r.Namespace == "":
				ref = r.Name
			default:
				ref = r.Namespace + "/" + r.Name
			}
		}
		return []any{o.Name, o.Spec.PolicyName, ref, age(o.CreationTimestamp, now)}
	})
}
