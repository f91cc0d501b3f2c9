// The kind ValidatingAdmissionPolicy.

package kinds

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/registry/rest"
)

func validatingAdmissionPolicies() Kind {
	return of[admissionv1.ValidatingAdmissionPolicy, admissionv1.ValidatingAdmissionPolicyList](admissionv1.SchemeGroupVersion, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "validatingadmissionpolicy", Kind{
		category: "api-extensions", cluster: true, status: true, generation: true, anyFinalizer: true,
		rules:    Rules{Create: create(validateAdmissionPolicy), Update: anew(validateAdmissionPolicy)},
		defaults: defaulting(defaultAdmissionPolicy),
		table:    policyTable,
	})
}

func defaultAdmissionPolicy(o *admissionv1.ValidatingAdmissionPolicy) {
	setPtr(&o.Spec.FailurePolicy, admissionv1.Fail)
	defaultMatchResources(o.Spec.MatchConstraints)
}

// validateAdmissionPolicy checks a policy and compiles its expressions.
func validateAdmissionPolicy(o *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	s, p := &o.Spec, field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, optionalOneOf(s.FailurePolicy, p.Child("failurePolicy"), admissionv1.Ignore, admissionv1.Fail)...)
	if k := s.ParamKind; k != nil {
		errs = append(errs, paramKind(k, p.Child("paramKind"))...)
	}
	if s.MatchConstraints == nil {
		errs = append(errs, field.Required(p.Child("matchConstraints"), ""))
	} else {
		errs = append(errs, matchResources(s.MatchConstraints, p.Child("matchConstraints"))...)
		if len(s.MatchConstraints.ResourceRules) == 0 {
			errs = append(errs, field.Required(p.Child("matchConstraints", "resourceRules"), ""))
		}
	}
	declared, err := cel.NewCompositedCompiler(expressions())
	if err != nil {
		return append(errs, field.InternalError(p, err))
	}
	c := &compiler{Compiler: declared, declared: declared, names: cel.OptionalVariableDeclarations{HasParams: s.ParamKind != nil, HasAuthorizer: true}}
	errs = append(errs, c.variables(s.Variables, p.Child("variables"))...)
	errs = append(errs, c.conditions(s.MatchConditions, p.Child("matchConditions"))...)
	if len(s.Validations) == 0 && len(s.AuditAnnotations) == 0 {
		errs = append(errs, field.Required(p.Child("validations"), "validations or auditAnnotations must contain at least one item"))
	}
	for i := range s.Validations {
		errs = append(errs, c.rule(&s.Validations[i], p.Child("validations").Index(i))...)
	}
	return append(errs, c.annotations(s.AuditAnnotations, p.Child("auditAnnotations"))...)
}

func paramKind(k *admissionv1.ParamKind, p *field.Path) field.ErrorList {
	errs := append(required(k.Kind, p.Child("kind")), required(k.APIVersion, p.Child("apiVersion"))...)
	if gv, err := schema.ParseGroupVersion(k.APIVersion); err != nil || k.APIVersion != "" && gv.Version == "" {
		errs = append(errs, field.Invalid(p.Child("apiVersion"), k.APIVersion, "want GROUP/VERSION"))
	}
	return errs
}

func policyTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		integer("Validations", "Validations indicates the number of validation rules defined in this configuration"),
		text("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy"),
		ageColumn(),
	}, func(o *admissionv1.ValidatingAdmissionPolicy, now time.Time) []any {
		kind := "<unset>"
		if k := o.Spec.ParamKind; k != nil {
			kind = k.APIVersion + "/" + k.Kind
		}
		return []any{o.Name, int64(len(o.Spec.Validations)), kind, age(o.CreationTimestamp, now)}
	})
}
