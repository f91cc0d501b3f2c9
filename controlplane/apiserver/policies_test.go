package apiserver_test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// mapsPolicy is about config maps that are made.
func mapsPolicy(name string, validations ...admissionv1.Validation) *admissionv1.ValidatingAdmissionPolicy {
	return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: configMapRules()[0]}}},
		Validations:      validations,
	}}
}

// bindPolicy puts a policy into force in a namespace.
func bindPolicy(policy, ns string, action admissionv1.ValidationAction) *admissionv1.ValidatingAdmissionPolicyBinding {
	return &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: policy}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policy, ValidationActions: []admissionv1.ValidationAction{action},
		MatchResources: &admissionv1.MatchResources{NamespaceSelector: inNamespace(ns)},
	}}
}

func TestAdmissionPolicies(t *testing.T) {
	client, got, ns := startHooked(t, nil, nil)
	ctx, admission := t.Context(), client.AdmissionregistrationV1()
	// Its names may be as long as an object says.
	limit := mapsPolicy("short-names", admissionv1.Validation{
		Expression:        "size(object.metadata.name) <= variables.most",
		MessageExpression: "'at most ' + string(variables.most) + ' letters'",
	})
	limit.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	limit.Spec.Variables = []admissionv1.Variable{{Name: "most", Expression: "int(params.data.most)"}}
	made := must(admission.ValidatingAdmissionPolicies().Create(ctx, limit, metav1.CreateOptions{}))(t)
	if made.Generation != 1 || *made.Spec.FailurePolicy != admissionv1.Fail || *made.Spec.MatchConstraints.MatchPolicy != admissionv1.Equivalent {
		t.Errorf("without defaults: %+v", made)
	}
	must(client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"most": "2"}}, metav1.CreateOptions{}))(t)
	bound := bindPolicy("short-names", ns, admissionv1.Deny)
	bound.Spec.ParamRef = &admissionv1.ParamRef{Name: "limits", Namespace: "default", ParameterNotFoundAction: ptr.To(admissionv1.DenyAction)}
	must(admission.ValidatingAdmissionPolicyBindings().Create(ctx, bound, metav1.CreateOptions{}))(t)
	var err error
	until(t, "long names are refused for what the parameter says", func() bool {
		if err = refusedBad(t, client, ns); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return strings.Contains(err.Error(), "at most 2 letters")
	})
	if !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'short-names' with binding 'short-names' denied request") {
		t.Errorf("%v", err)
	}
	if _, err := makeMap(t, client, ns, "ok"); err != nil {
		t.Error(err)
	}
	// Another only warns.
	must(admission.ValidatingAdmissionPolicies().Create(ctx, mapsPolicy("labels", admissionv1.Validation{Expression: "has(object.metadata.labels)", Message: "no labels"}), metav1.CreateOptions{}))(t)
	must(admission.ValidatingAdmissionPolicyBindings().Create(ctx, bindPolicy("labels", ns, admissionv1.Warn), metav1.CreateOptions{}))(t)
	n := 0
	until(t, "there is a warning", func() bool {
		n++
		must(makeMap(t, client, ns, string(rune('a'+n%26))))(t)
		if err := client.CoreV1().ConfigMaps(ns).Delete(ctx, string(rune('a'+n%26)), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		return strings.Contains(got.take(), "no labels")
	})
	if _, err := makeMap(t, client, "default", "much-longer"); err != nil {
		t.Errorf("in another namespace: %v", err)
	}
}

// The kind of a policy's parameters may be defined after another policy had some.
func TestAdmissionPoliciesWithNewKindsOfParameters(t *testing.T) {
	in := must(start(t.TempDir()))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	ctx, admission := t.Context(), in.client.AdmissionregistrationV1()
	ns := must(in.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hooked"}}, metav1.CreateOptions{}))(t).Name
	enforce := func(p *admissionv1.ValidatingAdmissionPolicy, kind admissionv1.ParamKind, param string) {
		p.Spec.ParamKind = &kind
		must(admission.ValidatingAdmissionPolicies().Create(ctx, p, metav1.CreateOptions{}))(t)
		bound := bindPolicy(p.Name, ns, admissionv1.Deny)
		bound.Spec.ParamRef = &admissionv1.ParamRef{Name: param, Namespace: "default", ParameterNotFoundAction: ptr.To(admissionv1.DenyAction)}
		must(admission.ValidatingAdmissionPolicyBindings().Create(ctx, bound, metav1.CreateOptions{}))(t)
	}
	must(in.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}, metav1.CreateOptions{}))(t)
	enforce(mapsPolicy("first", admissionv1.Validation{Expression: "object.metadata.name != params.metadata.name", Message: "first says no"}), admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}, "bad")
	until(t, "the first is in force", func() bool { return strings.Contains(refusedBad(t, in.client, ns).Error(), "first says no") })

	gvr := define(t, in, "params.hawser.dev")
	must(objectsOf(t, in, gvr, "default").Create(ctx, widget(gvr, "worse", map[string]any{"size": "small"}), metav1.CreateOptions{}))(t)
	enforce(mapsPolicy("second", admissionv1.Validation{Expression: "object.metadata.name != params.metadata.name", Message: "second says no"}), admissionv1.ParamKind{APIVersion: gvr.GroupVersion().String(), Kind: "Widget"}, "worse")
	until(t, "the second is in force", func() bool {
		_, err := makeMap(t, in.client, ns, "worse")
		if err == nil {
			err = in.client.CoreV1().ConfigMaps(ns).Delete(ctx, "worse", metav1.DeleteOptions{})
		}
		return err != nil && strings.Contains(err.Error(), "second says no")
	})
	if _, err := makeMap(t, in.client, ns, "fine"); err != nil {
		t.Error(err)
	}
}

// What could never work is refused when it is made.
func TestAdmissionPoliciesAreChecked(t *testing.T) {
	admission := shared.client.AdmissionregistrationV1()
	for what, v := range map[string]admissionv1.Validation{
		"no expression":      {},
		"undeclared":         {Expression: "nobody.knows"},
		"Syntax error":       {Expression: "object."},
		"must evaluate to":   {Expression: "'text'"},
		"must not contain":   {Expression: "true", Message: "a\nb"},
		"messageExpression":  {Expression: "true", MessageExpression: "1"},
		"Unsupported value:": {Expression: "true", Reason: ptr.To(metav1.StatusReasonGone)},
	} {
		_, err := admission.ValidatingAdmissionPolicies().Create(t.Context(), mapsPolicy("broken", v), metav1.CreateOptions{})
		if what == "no expression" {
			what = "spec.validations[0].expression: Required value"
		}
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
