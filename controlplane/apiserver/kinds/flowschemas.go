// The kind FlowSchema.

package kinds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/registry/rest"
)

func flowSchemas() Kind {
	return of[flowcontrolv1.FlowSchema, flowcontrolv1.FlowSchemaList](flowcontrolv1.SchemeGroupVersion, "FlowSchema", "flowschemas", "flowschema", Kind{
		cluster: true, status: true, generation: true,
		rules:    Rules{create(validateFlowSchema), anew(validateFlowSchema), anew(validateFlowSchemaStatus)},
		defaults: defaulting(defaultFlowSchema),
		table:    flowSchemaTable,
	})
}

func defaultFlowSchema(o *flowcontrolv1.FlowSchema) { set(&o.Spec.MatchingPrecedence, 1000) }

// flowVerbs are those that a flow schema's rules can name.
var flowVerbs = []string{"*", "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy"}

// validateFlowSchema checks a flow schema. The mandatory ones are as they are.
func validateFlowSchema(f *flowcontrolv1.FlowSchema) field.ErrorList {
	p, s := field.NewPath("spec"), &f.Spec
	for _, fixed := range bootstrap.MandatoryFlowSchemas {
		if f.Name == fixed.Name && !equal(f.Spec, fixed.Spec) {
			return field.ErrorList{field.Invalid(p, f.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", f.Name))}
		}
	}
	var errs field.ErrorList
	precedence := p.Child("matchingPrecedence")
	switch v := s.MatchingPrecedence; {
	case v <= 0:
		errs = append(errs, field.Invalid(precedence, v, "must be a positive value"))
	case v > flowcontrolv1.FlowSchemaMaxMatchingPrecedence:
		errs = append(errs, field.Invalid(precedence, v, fmt.Sprintf("must not be greater than %v", flowcontrolv1.FlowSchemaMaxMatchingPrecedence)))
	case v == 1 && f.Name != flowcontrolv1.FlowSchemaNameExempt:
		errs = append(errs, field.Invalid(precedence, v, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if d := s.DistinguisherMethod; d != nil {
		errs = append(errs, oneOf(d.Type, p.Child("distinguisherMethod", "type"),
			flowcontrolv1.FlowDistinguisherMethodByUserType, flowcontrolv1.FlowDistinguisherMethodByNamespaceType)...)
	}
	level := p.Child("priorityLevelConfiguration", "name")
	if name := s.PriorityLevelConfiguration.Name; name == "" {
		errs = append(errs, field.Required(level, "must reference a priority level"))
	} else {
		errs = append(errs, dnsSubdomain(name, level)...)
	}
	for i := range s.Rules {
		errs = append(errs, flowRules(&s.Rules[i], p.Child("rules").Index(i))...)
	}
	return errs
}

func flowRules(r *flowcontrolv1.PolicyRulesWithSubjects, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(p.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, flowSubject(&r.Subjects[i], p.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		errs = append(errs, field.Required(p, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		errs = append(errs, resourcePolicy(&r.ResourceRules[i], p.Child("resourceRules").Index(i))...)
	}
	for i := range r.NonResourceRules {
		errs = append(errs, nonResourcePolicy(&r.NonResourceRules[i], p.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

// flowSubject wants the one member that the kind names.
func flowSubject(s *flowcontrolv1.Subject, p *field.Path) field.ErrorList {
	members := []struct {
		kind flowcontrolv1.SubjectKind
		name string
		set  bool
	}{
		{flowcontrolv1.SubjectKindUser, "user", s.User != nil},
		{flowcontrolv1.SubjectKindGroup, "group", s.Group != nil},
		{flowcontrolv1.SubjectKindServiceAccount, "serviceAccount", s.ServiceAccount != nil},
	}
	var errs field.ErrorList
	known := false
	for _, m := range members {
		switch {
		case m.kind != s.Kind && m.set:
			errs = append(errs, field.Forbidden(p.Child(m.name), m.name+" is forbidden when subject kind is not '"+string(m.kind)+"'"))
		case m.kind == s.Kind && !m.set:
			errs = append(errs, field.Required(p.Child(m.name), m.name+" is required when subject kind is '"+string(m.kind)+"'"))
		}
		known = known || m.kind == s.Kind
	}
	if !known {
		return append(errs, oneOf(s.Kind, p.Child("kind"), flowcontrolv1.SubjectKindUser, flowcontrolv1.SubjectKindGroup, flowcontrolv1.SubjectKindServiceAccount)...)
	}
	if s.User != nil {
		errs = append(errs, required(s.User.Name, p.Child("user", "name"))...)
	}
	if s.Group != nil {
		errs = append(errs, required(s.Group.Name, p.Child("group", "name"))...)
	}
	if a := s.ServiceAccount; a != nil {
		errs = append(errs, required(a.Name, p.Child("serviceAccount", "name"))...)
		errs = append(errs, required(a.Namespace, p.Child("serviceAccount", "namespace"))...)
	}
	return errs
}

func resourcePolicy(r *flowcontrolv1.ResourcePolicyRule, p *field.Path) field.ErrorList {
	errs := flowRuleVerbs(r.Verbs, p.Child("verbs"))
	errs = append(errs, aloneOrNamed(r.APIGroups, p.Child("apiGroups"), "resource rules must supply at least one api group", "api groups")...)
	errs = append(errs, aloneOrNamed(r.Resources, p.Child("resources"), "resource rules must supply at least one resource", "resources")...)
	namespaces := p.Child("namespaces")
	if len(r.Namespaces) == 0 {
		if !r.ClusterScope {
			errs = append(errs, field.Required(namespaces, "resource rules that are not cluster scoped must supply at least one namespace"))
		}
		return errs
	}
	errs = append(errs, aloneOrNamed(r.Namespaces, namespaces, "", "namespaces")...)
	for i, ns := range r.Namespaces {
		if ns != flowcontrolv1.NamespaceEvery {
			errs = append(errs, messages(namespaces.Index(i), ns, apimachineryvalidation.ValidateNamespaceName(ns, false))...)
		}
	}
	return errs
}

func nonResourcePolicy(r *flowcontrolv1.NonResourcePolicyRule, p *field.Path) field.ErrorList {
	errs := flowRuleVerbs(r.Verbs, p.Child("verbs"))
	urls := p.Child("nonResourceURLs")
	errs = append(errs, aloneOrNamed(r.NonResourceURLs, urls, "nonResourceURLs must contain at least one value", "non-resource URLs")...)
	for i, u := range r.NonResourceURLs {
		if u == flowcontrolv1.NonResourceAll {
			continue
		}
		stem := strings.TrimSuffix(u, "/*")
		switch {
		case !strings.HasPrefix(u, "/"):
			errs = append(errs, field.Invalid(urls.Index(i), u, "must start with slash"))
		case strings.Contains(u, " "):
			errs = append(errs, field.Invalid(urls.Index(i), u, "must not contain white-space"))
		case strings.Contains(u, "//"):
			errs = append(errs, field.Invalid(urls.Index(i), u, "must not contain double slash"))
		case strings.Contains(stem, "*"):
			errs = append(errs, field.Invalid(urls.Index(i), u, "wildcard can only do suffix matching"))
		}
	}
	return errs
}

func flowRuleVerbs(verbs []string, p *field.Path) field.ErrorList {
	errs := aloneOrNamed(verbs, p, "verbs must contain at least one value", "verbs")
	if slices.ContainsFunc(verbs, func(v string) bool { return !slices.Contains(flowVerbs, v) }) {
		errs = append(errs, field.NotSupported(p, verbs, slices.Sorted(slices.Values(flowVerbs))))
	}
	return errs
}

// aloneOrNamed wants values, either a star alone or others.
func aloneOrNamed(values []string, p *field.Path, none, things string) field.ErrorList {
	switch {
	case len(values) == 0:
		return field.ErrorList{field.Required(p, none)}
	case len(values) > 1 && slices.Contains(values, "*"):
		return field.ErrorList{field.Invalid(p, values, "if '*' is present, must not specify other "+things)}
	}
	return nil
}

// validateFlowSchemaStatus checks a flow schema's status.
func validateFlowSchemaStatus(f *flowcontrolv1.FlowSchema) field.ErrorList {
	types := make([]string, len(f.Status.Conditions))
	for i, c := range f.Status.Conditions {
		types[i] = string(c.Type)
	}
	return conditionTypes(types)
}

func flowSchemaTable(gr schema.GroupResource) rest.TableConvertor {
	doc := flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("PriorityLevel", doc["priorityLevelConfiguration"]),
		integer("MatchingPrecedence", doc["matchingPrecedence"]),
		text("DistinguisherMethod", doc["distinguisherMethod"]),
		ageColumn(),
		text("MissingPL", "references a broken or non-existent PriorityLevelConfiguration"),
	}, func(o *flowcontrolv1.FlowSchema, now time.Time) []any {
		method, missing := none, "?"
		if d := o.Spec.DistinguisherMethod; d != nil {
			method = string(d.Type)
		}
		for _, c := range o.Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
				missing = string(c.Status)
			}
		}
		return []any{
			o.Name, o.Spec.PriorityLevelConfiguration.Name, int64(o.Spec.MatchingPrecedence), method, age(o.CreationTimestamp, now), missing,
		}
	})
}
