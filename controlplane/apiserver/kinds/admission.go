// Rules for webhooks that are asked about requests.

package kinds

import (
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
)

// maxWebhookTimeout is the most seconds that a request may wait for a webhook.
const maxWebhookTimeout = 30

// ValidateValidatingWebhooks checks webhooks that only refuse.
func ValidateValidatingWebhooks(c *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
	return webhooks(c.Webhooks)
}

// ValidateMutatingWebhooks checks webhooks that change what they are asked about.
func ValidateMutatingWebhooks(c *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
	var errs field.ErrorList
	alike := make([]admissionv1.ValidatingWebhook, len(c.Webhooks))
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		alike[i] = admissionv1.ValidatingWebhook{
			Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
			NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
			TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
		}
		p := field.NewPath("webhooks").Index(i).Child("reinvocationPolicy")
		errs = append(errs, optionalOneOf(w.ReinvocationPolicy, p, admissionv1.NeverReinvocationPolicy, admissionv1.IfNeededReinvocationPolicy)...)
	}
	return append(errs, webhooks(alike)...)
}

func webhooks(all []admissionv1.ValidatingWebhook) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range all {
		w, p := &all[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, fullyQualified(w.Name, p.Child("name"))...)
		if seen[w.Name] {
			errs = append(errs, field.Duplicate(p.Child("name"), w.Name))
		}
		seen[w.Name] = true
		errs = append(errs, oneWebhook(w, p)...)
	}
	return errs
}

// fullyQualified wants a name of three parts or more, which is how webhooks of different
// makers are kept apart.
func fullyQualified(name string, p *field.Path) field.ErrorList {
	return validation.IsFullyQualifiedName(p, name)
}

func oneWebhook(w *admissionv1.ValidatingWebhook, p *field.Path) field.ErrorList {
	errs := webhookTarget(&w.ClientConfig, p.Child("clientConfig"))
	for i := range w.Rules {
		errs = append(errs, admissionRule(&w.Rules[i], p.Child("rules").Index(i))...)
	}
	errs = append(errs, reviewVersions(w.AdmissionReviewVersions, p.Child("admissionReviewVersions"))...)
	errs = append(errs, optionalOneOf(w.FailurePolicy, p.Child("failurePolicy"), admissionv1.Ignore, admissionv1.Fail)...)
	errs = append(errs, selection(w.MatchPolicy, w.NamespaceSelector, w.ObjectSelector, p)...)
	if w.SideEffects == nil {
		errs = append(errs, field.Required(p.Child("sideEffects"), "must specify one of None, NoneOnDryRun"))
	}
	errs = append(errs, optionalOneOf(w.SideEffects, p.Child("sideEffects"), admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun)...)
	if s := w.TimeoutSeconds; s != nil && (*s < 1 || *s > maxWebhookTimeout) {
		errs = append(errs, field.Invalid(p.Child("timeoutSeconds"), *s, "the timeout value must be between 1 and 30 seconds"))
	}
	return append(errs, matchConditions(w.MatchConditions, false, p.Child("matchConditions"))...)
}

// webhookTarget wants a URL or a service.
func webhookTarget(c *admissionv1.WebhookClientConfig, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case (c.URL == nil) == (c.Service == nil):
		errs = append(errs, field.Required(p, "exactly one of url or service is required"))
	case c.URL != nil:
		errs = append(errs, webhook.ValidateWebhookURL(p.Child("url"), *c.URL, true)...)
	default:
		port := int32(443)
		if c.Service.Port != nil {
			port = *c.Service.Port
		}
		errs = append(errs, webhook.ValidateWebhookService(p.Child("service"), c.Service.Namespace, c.Service.Name, c.Service.Path, port)...)
	}
	if len(c.CABundle) > 0 {
		errs = append(errs, webhook.ValidateCABundle(p.Child("caBundle"), c.CABundle)...)
	}
	return errs
}

// reviewVersions wants one that this server speaks, and none twice.
func reviewVersions(versions []string, p *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(p, "must specify one of v1, v1beta1")}
	}
	var errs field.ErrorList
	for i, v := range versions {
		errs = append(errs, messages(p.Index(i), v, validation.IsDNS1035Label(v))...)
		if slices.Contains(versions[:i], v) {
			errs = append(errs, field.Invalid(p.Index(i), v, "duplicate version"))
		}
	}
	if !slices.Contains(versions, "v1") && !slices.Contains(versions, "v1beta1") {
		errs = append(errs, field.Invalid(p, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
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
