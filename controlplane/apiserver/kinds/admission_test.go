package kinds

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// decoded is an object from YAML.
func decoded[T any](t *testing.T, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

// refusedFor fails unless errs are about the given fields; none means that all is well.
func refusedFor(t *testing.T, what string, errs field.ErrorList, fields string) {
	t.Helper()
	for f := range strings.FieldsSeq(fields) {
		found := false
		for _, e := range errs {
			found = found || e.Field == f
		}
		if !found {
			t.Errorf("%s: nothing about %s in %v", what, f, errs)
		}
	}
	if fields == "" && len(errs) > 0 {
		t.Errorf("%s: %v", what, errs)
	}
}

func TestWebhooks(t *testing.T) {
	const good = `name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://a.b/c"}`
	const rule = `operations: [CREATE], apiGroups: [""], apiVersions: [v1]`
	for webhook, fields := range map[string]string{
		good: "",
		`name: a.b.c, sideEffects: NoneOnDryRun, admissionReviewVersions: [v2, v1beta1], timeoutSeconds: 30, clientConfig: {service: {name: s, namespace: n, path: /x}}`: "",
		good + `, rules: [{` + rule + `, resources: ["pods", "pods/log", "*/scale"], scope: Namespaced}]`:                                                                "",
		good + `, matchConditions: [{name: x, expression: "object.metadata.name != ''"}]`:                                                                                "",
		`name: a.b.c, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://a.b/c", caBundle: Cg==}`:                                            "",
		``: "webhooks[0].name webhooks[0].clientConfig webhooks[0].sideEffects webhooks[0].admissionReviewVersions",
		`name: short, sideEffects: Some, admissionReviewVersions: [v2], clientConfig: {url: "http://a.b/c"}`:               "webhooks[0].name webhooks[0].sideEffects webhooks[0].admissionReviewVersions webhooks[0].clientConfig.url",
		`name: a.b.c, sideEffects: None, admissionReviewVersions: [v1, v1], clientConfig: {url: "https://a", service: {}}`: "webhooks[0].admissionReviewVersions[1] webhooks[0].clientConfig",
		good + `, timeoutSeconds: 31, failurePolicy: Maybe, matchPolicy: Near`:                                             "webhooks[0].timeoutSeconds webhooks[0].failurePolicy webhooks[0].matchPolicy",
		good + `, rules: [{}]`: "webhooks[0].rules[0].operations webhooks[0].rules[0].apiGroups webhooks[0].rules[0].apiVersions webhooks[0].rules[0].resources",
		good + `, rules: [{operations: [CREATE, "*"], apiGroups: ["*", a], apiVersions: [""], resources: ["*/*", pods], scope: All}]`: "webhooks[0].rules[0].operations webhooks[0].rules[0].apiGroups webhooks[0].rules[0].apiVersions[0] webhooks[0].rules[0].resources webhooks[0].rules[0].scope",
		good + `, rules: [{` + rule + `, resources: ["*", pods]}]`:                                                                    "webhooks[0].rules[0].resources[1]",
		good + `, rules: [{` + rule + `, resources: ["pods/*", "pods/log"]}]`:                                                         "webhooks[0].rules[0].resources[1]",
		good + `, matchConditions: [{name: x, expression: "1"}, {name: x, expression: "a b"}]`:                                        "webhooks[0].matchConditions[0].expression webhooks[0].matchConditions[1].name webhooks[0].matchConditions[1].expression",
		good + `, namespaceSelector: {matchLabels: {"a b": c}}`:                                                                       "webhooks[0].namespaceSelector.matchLabels",
	} {
		text := "webhooks: [{" + webhook + "}]"
		refusedFor(t, webhook, validateValidatingWebhooks(decoded[admissionv1.ValidatingWebhookConfiguration](t, text)), fields)
		refusedFor(t, webhook, validateMutatingWebhooks(decoded[admissionv1.MutatingWebhookConfiguration](t, text)), fields)
	}
	twice := "webhooks: [{" + good + "}, {" + good + ", reinvocationPolicy: Often}]"
	refusedFor(t, "twice", validateMutatingWebhooks(decoded[admissionv1.MutatingWebhookConfiguration](t, twice)), "webhooks[1].name webhooks[1].reinvocationPolicy")
}

func TestAdmissionPolicies(t *testing.T) {
	const match = `matchConstraints: {resourceRules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods], resourceNames: [x]}]}`
	for spec, fields := range map[string]string{
		match + `, validations: [{expression: "object.metadata.name != ''", message: m, reason: Invalid}]`: "",
		match + `, paramKind: {apiVersion: v1, kind: ConfigMap}, variables: [{name: v, expression: "params.data.v"}],
			validations: [{expression: "variables.v == 'a'", messageExpression: "string(variables.v)"}], auditAnnotations: [{key: k, valueExpression: "'x'"}]`: "",
		``: "spec.matchConstraints spec.validations",
		`matchConstraints: {}, paramKind: {apiVersion: a/b/c}, validations: [{expression: ""}]`:                                                                                           "spec.matchConstraints.resourceRules spec.paramKind.kind spec.paramKind.apiVersion spec.validations[0].expression",
		match + `, validations: [{expression: "params.x"}], failurePolicy: Maybe`:                                                                                                         "spec.validations[0].expression spec.failurePolicy",
		match + `, validations: [{expression: "true\n", message: "a\nb", reason: Gone}]`:                                                                                                  "spec.validations[0].message spec.validations[0].reason",
		match + `, validations: [{expression: "true\n&& true"}]`:                                                                                                                          "",
		match + `, validations: [{expression: "true", message: "` + long(6000) + `"}]`:                                                                                                    "",
		match + `, validations: [{expression: "true", message: "  ", messageExpression: " ", reason: Unauthorized}]`:                                                                      "spec.validations[0].message spec.validations[0].messageExpression spec.validations[0].reason",
		match + `, variables: [{name: v, expression: "1"}, {name: v, expression: "'a'"}], validations: [{expression: "variables.v == 'a'"}]`:                                              "",
		match + `, variables: [{name: "a b", expression: "1"}, {name: v, expression: ""}, {name: w, expression: "x y"}, {name: w, expression: "1"}], validations: [{expression: "true"}]`: "spec.variables[0].name spec.variables[1].expression spec.variables[2].expression",
		match + `, auditAnnotations: [{key: k, valueExpression: "1"}, {key: k, valueExpression: "'x'"}]`:                                                                                  "spec.auditAnnotations[0].valueExpression spec.auditAnnotations[1].key",
	} {
		refusedFor(t, spec, validateAdmissionPolicy(decoded[admissionv1.ValidatingAdmissionPolicy](t, "spec: {"+spec+"}")), fields)
	}
	for spec, fields := range map[string]string{
		`policyName: p, validationActions: [Deny, Audit]`: "",
		`policyName: p, validationActions: [Warn], paramRef: {name: x, parameterNotFoundAction: Allow}, matchResources: {namespaceSelector: {}}`: "",
		``: "spec.policyName spec.validationActions",
		`policyName: P, validationActions: [Deny, Warn, Deny, Tell], paramRef: {}`:                                                               "spec.policyName spec.validationActions spec.validationActions[2] spec.validationActions[3] spec.paramRef spec.paramRef.parameterNotFoundAction",
		`policyName: p, validationActions: [Deny], paramRef: {name: a/b, parameterNotFoundAction: Maybe}, matchResources: {resourceRules: [{}]}`: "spec.paramRef.name spec.paramRef.parameterNotFoundAction spec.matchResources.resourceRules[0].operations",
	} {
		refusedFor(t, spec, validateAdmissionPolicyBinding(decoded[admissionv1.ValidatingAdmissionPolicyBinding](t, "spec: {"+spec+"}")), fields)
	}
}
