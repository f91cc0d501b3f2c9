// The kind MutatingWebhookConfiguration.

package kinds

import (
	"context"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func mutatingWebhookConfigurations() Kind {
	return of[admissionv1.MutatingWebhookConfiguration, admissionv1.MutatingWebhookConfigurationList](admissionv1.SchemeGroupVersion, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "mutatingwebhookconfiguration", Kind{
		category: "api-extensions", cluster: true, anyFinalizer: true, onCreate: creating(newMutatingWebhooks), onUpdate: updating(updateMutatingWebhooks),
		rules:    Rules{Create: create(validateMutatingWebhooks), Update: anew(validateMutatingWebhooks)},
		defaults: defaulting(defaultMutatingWebhooks),
		table:    mutatingWebhooksTable,
	})
}

// A configuration of webhooks has no spec, so that its generation is counted by hand.

func newMutatingWebhooks(_ context.Context, c *admissionv1.MutatingWebhookConfiguration) {
	c.Generation = 1
}

func updateMutatingWebhooks(_ context.Context, c, old *admissionv1.MutatingWebhookConfiguration) {
	if !equality.Semantic.DeepEqual(c.Webhooks, old.Webhooks) {
		c.Generation = old.Generation + 1
	}
}

func defaultMutatingWebhooks(o *admissionv1.MutatingWebhookConfiguration) {
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		setPtr(&w.FailurePolicy, admissionv1.Fail)
		setPtr(&w.TimeoutSeconds, webhookTimeout)
		setPtr(&w.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
		defaultSelection(&w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
		defaultWebhookTarget(&w.ClientConfig)
		defaultWebhookRules(w.Rules)
	}
}

// validateMutatingWebhooks checks webhooks that change what they are asked about.
func validateMutatingWebhooks(c *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
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

func mutatingWebhooksTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), webhooksColumn(), ageColumn()}, func(o *admissionv1.MutatingWebhookConfiguration, now time.Time) []any {
		return []any{o.Name, int64(len(o.Webhooks)), age(o.CreationTimestamp, now)}
	})
}
