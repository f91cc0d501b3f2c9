// Defaults of what decides about requests: webhooks and policies.

package defaults

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// webhookTimeout is how many seconds a webhook has to answer.
const webhookTimeout = 10

func validatingWebhooks(o *admissionv1.ValidatingWebhookConfiguration) {
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		setPtr(&w.FailurePolicy, admissionv1.Fail)
		setPtr(&w.TimeoutSeconds, webhookTimeout)
		selection(&w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
		webhookTarget(&w.ClientConfig)
		webhookRules(w.Rules)
	}
}

func mutatingWebhooks(o *admissionv1.MutatingWebhookConfiguration) {
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		setPtr(&w.FailurePolicy, admissionv1.Fail)
		setPtr(&w.TimeoutSeconds, webhookTimeout)
		setPtr(&w.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
		selection(&w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector)
		webhookTarget(&w.ClientConfig)
		webhookRules(w.Rules)
	}
}

func admissionPolicy(o *admissionv1.ValidatingAdmissionPolicy) {
	setPtr(&o.Spec.FailurePolicy, admissionv1.Fail)
	matchResources(o.Spec.MatchConstraints)
}

func admissionPolicyBinding(o *admissionv1.ValidatingAdmissionPolicyBinding) {
	matchResources(o.Spec.MatchResources)
}

func matchResources(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	selection(&m.MatchPolicy, &m.NamespaceSelector, &m.ObjectSelector)
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			setPtr(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}

func selection(match **admissionv1.MatchPolicyType, namespaces, objects **metav1.LabelSelector) {
	setPtr(match, admissionv1.Equivalent)
	setPtr(namespaces, metav1.LabelSelector{})
	setPtr(objects, metav1.LabelSelector{})
}

func webhookTarget(c *admissionv1.WebhookClientConfig) {
	if c.Service != nil {
		setPtr(&c.Service.Port, 443)
	}
}

func webhookRules(rules []admissionv1.RuleWithOperations) {
	for i := range rules {
		setPtr(&rules[i].Scope, admissionv1.AllScopes)
	}
}
