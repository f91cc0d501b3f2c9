// What webhooks and policies match: operations, resources, selectors.

package kinds

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func defaultMatchResources(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	defaultSelection(&m.MatchPolicy, &m.NamespaceSelector, &m.ObjectSelector)
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			setPtr(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}

func defaultSelection(match **admissionv1.MatchPolicyType, namespaces, objects **metav1.LabelSelector) {
	setPtr(match, admissionv1.Equivalent)
	setPtr(namespaces, metav1.LabelSelector{})
	setPtr(objects, metav1.LabelSelector{})
}

func selection(match *admissionv1.MatchPolicyType, namespaces, objects *metav1.LabelSelector, p *field.Path) field.ErrorList {
	errs := optionalOneOf(match, p.Child("matchPolicy"), admissionv1.Exact, admissionv1.Equivalent)
	if namespaces != nil {
		errs = append(errs, labelSelector(namespaces, p.Child("namespaceSelector"))...)
	}
	if objects != nil {
		errs = append(errs, labelSelector(objects, p.Child("objectSelector"))...)
	}
	return errs
}

// admissionRule checks which requests are meant. An asterisk among others is a mistake.
func admissionRule(r *admissionv1.RuleWithOperations, p *field.Path) field.ErrorList {
	operations := make([]string, len(r.Operations))
	var errs field.ErrorList
	for i, o := range r.Operations {
		operations[i] = string(o)
		errs = append(errs, oneOf(o, p.Child("operations").Index(i), admissionv1.OperationAll, admissionv1.Create, admissionv1.Update, admissionv1.Delete, admissionv1.Connect)...)
	}
	for name, values := range map[string][]string{"operations": operations, "apiGroups": r.APIGroups, "apiVersions": r.APIVersions} {
		if len(values) == 0 {
			errs = append(errs, field.Required(p.Child(name), ""))
		}
		if len(values) > 1 && slices.Contains(values, "*") {
			errs = append(errs, field.Invalid(p.Child(name), values, "if '*' is present, must not specify others"))
		}
	}
	for i, v := range r.APIVersions {
		errs = append(errs, required(v, p.Child("apiVersions").Index(i))...)
	}
	errs = append(errs, optionalOneOf(r.Scope, p.Child("scope"), admissionv1.ClusterScope, admissionv1.NamespacedScope, admissionv1.AllScopes)...)
	return append(errs, ruleResources(r.Resources, p.Child("resources"))...)
}

// ruleResources checks RESOURCE, RESOURCE/SUBRESOURCE and asterisks for either.
func ruleResources(resources []string, p *field.Path) field.ErrorList {
	if len(resources) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	for i, r := range resources {
		if r == "" {
			errs = append(errs, field.Required(p.Index(i), ""))
		}
		if r == "*/*" && len(resources) > 1 {
			errs = append(errs, field.Invalid(p, resources, "if '*/*' is present, must not specify other resources"))
		}
		resource, sub, _ := strings.Cut(r, "/")
		for j, other := range resources {
			before, after, _ := strings.Cut(other, "/")
			wider := before == "*" && after == sub || after == "*" && before == resource
			if j != i && wider {
				errs = append(errs, field.Invalid(p.Index(i), r, "if '"+other+"' is present, must not specify "+r))
			}
		}
	}
	return errs
}

func matchResources(m *admissionv1.MatchResources, p *field.Path) field.ErrorList {
	errs := selection(m.MatchPolicy, m.NamespaceSelector, m.ObjectSelector, p)
	for name, rules := range map[string][]admissionv1.NamedRuleWithOperations{"resourceRules": m.ResourceRules, "excludeResourceRules": m.ExcludeResourceRules} {
		for i := range rules {
			at := p.Child(name).Index(i)
			errs = append(errs, admissionRule(&rules[i].RuleWithOperations, at)...)
			again := repeats[string]()
			for j, n := range rules[i].ResourceNames {
				errs = append(errs, messages(at.Child("resourceNames").Index(j), n, pathSegment(n, false))...)
				if again(n) {
					errs = append(errs, field.Duplicate(at.Child("resourceNames").Index(j), n))
				}
			}
		}
	}
	return errs
}
