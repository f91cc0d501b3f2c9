// The kind ValidatingWebhookConfiguration.

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

func validatingWebhookConfigurations() Kind {
	return of[admissionv1.ValidatingWebhookConfiguration, admissionv1.ValidatingWebhookConfigurationList](admissionv1.SchemeGroupVersion, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "validatingwebhookconfiguration", Kind{
		category: "api-extensions", cluster: true, anyFinalizer: true, onCreate: creating(newValidatingWebhooks), onUpdate: updating(updateValidatingWebhooks),
		rules:    Rules{Create: create(validateValidatingWebhooks), Update: anew(validateValidatingWebhooks)},
		defaults: defaulting(defaultValidatingWebhooks),
		table:    validatingWebhooksTable,
	})
}

// A configuration of webhooks has no spec, so that its generation is counted by hand.

func newValidatingWebhooks(_ context.Context, c *admissionv1.ValidatingWebhookConfiguration) {
	c.Generation = 1
}

func updateValidatingWebhooks(_ context.Context, c, old *admissionv1.ValidatingWebhookConfiguration) {
	if !equality.Semantic.DeepEqual(c.Webhooks, old.Webhooks) {
		c.Generation = old.Generation + 1
	}
}

func defaultValidatingWebhooks(o *admissionv1.ValidatingWebhookConfiguration) {
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		setPtr(&w.FailurePolicy, admissionv1.Fail)
		setPtr(&w.TimeoutSeconds, webhookTimeout)
		defaultSelection(&w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
		defaultWebhookTarget(&w.ClientConfig)
		defaultWebhookRules(w.Rules)
	}
}

// validateValidatingWebhooks checks webhooks that only refuse.
func validateValidatingWebhooks(c *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
	return webhooks(c.Webhooks)
}

func validatingWebhooksTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{nameColumn(), webhooksColumn(), ageColumn()}, func(o *admissionv1.ValidatingWebhookConfiguration, now time.Time) []any {
		return []any{o.Name, int64(len(o.Webhooks)), age(o.CreationTimestamp, now)}
	})
}
