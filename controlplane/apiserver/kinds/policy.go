// Rules for policies written in CEL, and for the bindings of them.

package kinds

import (
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
)

const (
	maxMatchConditions  = 64
	maxAuditAnnotations = 20
	maxPolicyMessage    = 5 * 1024
)

// expressions is what expressions may name. It takes megabytes, so it is made when the
// first one is checked.
var expressions = sync.OnceValue(func() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
})

// A compiler checks the expressions of one object.
type compiler struct {
	cel.Compiler
	declared *cel.CompositedCompiler // nil if there are no variables
	names    cel.OptionalVariableDeclarations
}

// check compiles one expression.
func (c *compiler) check(e cel.ExpressionAccessor, p *field.Path) field.ErrorList {
	text := e.GetExpression()
	if strings.TrimSpace(text) == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return refused(c.CompileCELExpression(e, c.names, environment.NewExpressions), p, text)
}

func refused(r cel.CompilationResult, p *field.Path, text string) field.ErrorList {
	if r.Error == nil {
		return nil
	}
	return field.ErrorList{field.Invalid(p, text, r.Error.Error())}
}

// matchConditions checks the conditions of a webhook.
func matchConditions(all []admissionv1.MatchCondition, params bool, p *field.Path) field.ErrorList {
	if len(all) == 0 {
		return nil
	}
	c := &compiler{Compiler: cel.NewCompiler(expressions()), names: cel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}}
	return c.conditions(all, p)
}

func (c *compiler) conditions(all []admissionv1.MatchCondition, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(all) > maxMatchConditions {
		errs = append(errs, field.TooMany(p, len(all), maxMatchConditions))
	}
	seen := map[string]bool{}
	for i := range all {
		m, at := &all[i], p.Index(i)
		errs = append(errs, required(m.Name, at.Child("name"))...)
		if m.Name != "" {
			errs = append(errs, qualifiedName(m.Name, at.Child("name"))...)
		}
		if seen[m.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), m.Name))
		}
		seen[m.Name] = true
		errs = append(errs, c.check((*matchconditions.MatchCondition)(m), at.Child("expression"))...)
	}
	return errs
}

// ValidateAdmissionPolicy checks a policy and compiles its expressions.
func ValidateAdmissionPolicy(o *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
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

func (c *compiler) variables(all []admissionv1.Variable, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range all {
		v, at := &all[i], p.Index(i)
		if msgs := validation.IsCIdentifier(v.Name); len(msgs) > 0 {
			errs = append(errs, messages(at.Child("name"), v.Name, msgs)...)
			continue
		}
		if seen[v.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), v.Name))
			continue
		}
		seen[v.Name] = true
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(at.Child("expression"), ""))
			continue
		}
		r := c.declared.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, c.names, environment.NewExpressions)
		errs = append(errs, refused(r, at.Child("expression"), v.Expression)...)
	}
	return errs
}

// rule checks one condition of a policy and what is said when it does not hold.
func (c *compiler) rule(v *admissionv1.Validation, p *field.Path) field.ErrorList {
	errs := c.check(&validating.ValidationCondition{Expression: v.Expression}, p.Child("expression"))
	if len(v.Message) > maxPolicyMessage {
		errs = append(errs, field.TooLong(p.Child("message"), "", maxPolicyMessage))
	}
	if v.Message != "" && strings.ContainsAny(strings.TrimSpace(v.Message), "\r\n") {
		errs = append(errs, field.Invalid(p.Child("message"), v.Message, "must not contain line breaks"))
	}
	if strings.ContainsAny(v.Expression, "\r\n") && v.Message == "" && v.MessageExpression == "" {
		errs = append(errs, field.Required(p.Child("message"), "message must be specified if expression contains line breaks"))
	}
	if v.MessageExpression != "" {
		plain := &compiler{Compiler: c.Compiler, names: cel.OptionalVariableDeclarations{HasParams: c.names.HasParams}}
		errs = append(errs, plain.check(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, p.Child("messageExpression"))...)
	}
	return append(errs, optionalOneOf(v.Reason, p.Child("reason"), metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonUnauthorized)...)
}

func (c *compiler) annotations(all []admissionv1.AuditAnnotation, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(all) > maxAuditAnnotations {
		errs = append(errs, field.TooMany(p, len(all), maxAuditAnnotations))
	}
	seen := map[string]bool{}
	for i := range all {
		a, at := &all[i], p.Index(i)
		errs = append(errs, qualifiedName(a.Key, at.Child("key"))...)
		if seen[a.Key] {
			errs = append(errs, field.Duplicate(at.Child("key"), a.Key))
		}
		seen[a.Key] = true
		errs = append(errs, c.check(&validating.AuditAnnotationCondition{ValueExpression: a.ValueExpression}, at.Child("valueExpression"))...)
	}
	return errs
}

func matchResources(m *admissionv1.MatchResources, p *field.Path) field.ErrorList {
	errs := selection(m.MatchPolicy, m.NamespaceSelector, m.ObjectSelector, p)
	for name, rules := range map[string][]admissionv1.NamedRuleWithOperations{"resourceRules": m.ResourceRules, "excludeResourceRules": m.ExcludeResourceRules} {
		for i := range rules {
			at := p.Child(name).Index(i)
			errs = append(errs, admissionRule(&rules[i].RuleWithOperations, at)...)
			for j, n := range rules[i].ResourceNames {
				errs = append(errs, messages(at.Child("resourceNames").Index(j), n, pathSegment(n, false))...)
				if slices.Contains(rules[i].ResourceNames[:j], n) {
					errs = append(errs, field.Duplicate(at.Child("resourceNames").Index(j), n))
				}
			}
		}
	}
	return errs
}

// ValidateAdmissionPolicyBinding checks what puts a policy into force.
func ValidateAdmissionPolicyBinding(b *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
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
	for i, a := range s.ValidationActions {
		errs = append(errs, oneOf(a, actions.Index(i), admissionv1.Deny, admissionv1.Warn, admissionv1.Audit)...)
		if slices.Contains(s.ValidationActions[:i], a) {
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
