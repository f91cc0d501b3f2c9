// What the two kinds of webhook configurations have in common.

package kinds

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
)

// webhookTimeout is how many seconds a webhook has to answer.
const webhookTimeout = 10

func defaultWebhookTarget(c *admissionv1.WebhookClientConfig) {
	if c.Service != nil {
		setPtr(&c.Service.Port, 443)
	}
}

func defaultWebhookRules(rules []admissionv1.RuleWithOperations) {
	for i := range rules {
		setPtr(&rules[i].Scope, admissionv1.AllScopes)
	}
}

// maxWebhookTimeout is the most seconds that a request may wait for a webhook.
const maxWebhookTimeout = 30

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

// webhookTarget wants a URL or a service. Whether its caBundle is of any use is seen when it is called.
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
	return errs
}

// reviewVersions wants one that this server speaks, and none twice.
func reviewVersions(versions []string, p *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(p, "must specify one of v1, v1beta1")}
	}
	var errs field.ErrorList
	again := repeats[string]()
	for i, v := range versions {
		errs = append(errs, messages(p.Index(i), v, validation.IsDNS1035Label(v))...)
		if again(v) {
			errs = append(errs, field.Invalid(p.Index(i), v, "duplicate version"))
		}
	}
	if !slices.Contains(versions, "v1") && !slices.Contains(versions, "v1beta1") {
		errs = append(errs, field.Invalid(p, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}

func webhooksColumn() metav1.TableColumnDefinition {
	return integer("Webhooks", "Webhooks indicates the number of webhooks registered in this configuration")
}
