package controlplane

// A test of what a policy's status says of its expressions, against a real API server.

import (
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// Expressions are checked against the types that a policy is about, and again when it is
// changed.
func TestPolicyStatus(t *testing.T) {
	c := workload{startCluster(t)}
	policies := c.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy := func(name, resource, expression string) *admissionv1.ValidatingAdmissionPolicy {
		return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: expression, MessageExpression: "'of ' + object.metadata.name"}},
		}}
	}
	made := func(p *admissionv1.ValidatingAdmissionPolicy) {
		t.Helper()
		if _, err := policies.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// says is the generation that was checked, and the fields that are warned about.
	says := func(name string) func() string {
		return func() string {
			p, err := policies.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("%d of %d:", p.Status.ObservedGeneration, p.Generation)
			if p.Status.TypeChecking == nil {
				return text + " nothing"
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				text += " " + w.FieldRef + " " + w.Warning
			}
			return text
		}
	}
	const warning = "1 of 1: spec.validations[0].expression apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'nonsense'\n" +
		" | object.spec.nonsense > 1\n | ...........^\n"
	made(policy("bad", "deployments", "object.spec.nonsense > 1"))
	c.becomes(warning, says("bad"))
	made(policy("good", "deployments", "object.spec.replicas > 1"))
	c.becomes("1 of 1:", says("good"))
	made(policy("unknown", "nonsenses", "object.spec.nonsense > 1"))
	c.becomes("1 of 1:", says("unknown"))
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p, err := policies.Get(t.Context(), "bad", metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Spec.Validations[0].Expression = "object.spec.replicas < 9"
		_, err = policies.Update(t.Context(), p, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	c.becomes("2 of 2:", says("bad"))
}
