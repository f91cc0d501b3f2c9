// Expressions (CEL) of webhooks and policies.

package kinds

import (
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// variables declares those of a policy. Of two of one name the last counts.
func (c *compiler) variables(all []admissionv1.Variable, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range all {
		v, at := &all[i], p.Index(i)
		if msgs := validation.IsCIdentifier(v.Name); len(msgs) > 0 {
			errs = append(errs, messages(at.Child("name"), v.Name, msgs)...)
			continue
		}
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
	switch text := strings.TrimSpace(v.Message); {
	case v.Message != "" && text == "":
		errs = append(errs, younger(field.Invalid(p.Child("message"), v.Message, "must be non-empty if specified"))...)
	case strings.ContainsAny(text, "\r\n"):
		errs = append(errs, field.Invalid(p.Child("message"), v.Message, "must not contain line breaks"))
	}
	if at := p.Child("messageExpression"); v.MessageExpression != "" && strings.TrimSpace(v.MessageExpression) == "" {
		errs = append(errs, field.Invalid(at, v.MessageExpression, "must be non-empty if specified"))
	} else if v.MessageExpression != "" {
		plain := &compiler{Compiler: c.Compiler, names: cel.OptionalVariableDeclarations{HasParams: c.names.HasParams}}
		errs = append(errs, plain.check(&validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, at)...)
	}
	return append(errs, younger(optionalOneOf(v.Reason, p.Child("reason"), metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)...)
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
