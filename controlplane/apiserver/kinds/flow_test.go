package kinds

import (
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
)

func TestFlowSchema(t *testing.T) {
	t.Parallel()
	type fs = *flowcontrolv1.FlowSchema
	schema := func() fs {
		return defaulted[flowcontrolv1.FlowSchema](t, `{metadata: {name: f}, spec: {
			priorityLevelConfiguration: {name: l}, distinguisherMethod: {type: ByUser}, rules: [{
				subjects: [{kind: User, user: {name: u}}, {kind: Group, group: {name: g}}, {kind: ServiceAccount, serviceAccount: {namespace: n, name: "*"}}],
				resourceRules: [{verbs: [get, list], apiGroups: ["", apps], resources: [pods], namespaces: ["*"]}, {verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true}],
				nonResourceRules: [{verbs: [get], nonResourceURLs: [/healthz, /apis/*]}, {verbs: ["*"], nonResourceURLs: ["*"]}]}]}}`)
	}
	rule := func(f fs) *flowcontrolv1.PolicyRulesWithSubjects { return &f.Spec.Rules[0] }
	mutate(t, schema, validateFlowSchema, []mutation[fs]{
		{"no precedence", func(f fs) { f.Spec.MatchingPrecedence = 0 }, bad("spec.matchingPrecedence: Invalid value: 0: must be a positive value")},
		{"high precedence", func(f fs) { f.Spec.MatchingPrecedence = 10001 }, bad("spec.matchingPrecedence: Invalid value: 10001: must not be greater than 10000")},
		{"the exempt's precedence", func(f fs) { f.Spec.MatchingPrecedence = 1 }, bad("spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt'")},
		{"the mandatory one's name", func(f fs) { f.Name = "catch-all" }, bad("spec: Invalid value")},
		{"no level", func(f fs) { f.Spec.PriorityLevelConfiguration.Name = "" }, bad("spec.priorityLevelConfiguration.name: Required value: must reference a priority level")},
		{"level", func(f fs) { f.Spec.PriorityLevelConfiguration.Name = "A" }, bad("spec.priorityLevelConfiguration.name: Invalid value")},
		{"method", func(f fs) { f.Spec.DistinguisherMethod.Type = "x" }, bad("spec.distinguisherMethod.type: Unsupported value")},
		{"no method", func(f fs) { f.Spec.DistinguisherMethod = nil }, nil},
		{"no rules", func(f fs) { f.Spec.Rules = nil }, nil},
		{"nobody", func(f fs) { rule(f).Subjects = nil }, bad("spec.rules[0].subjects: Required value: subjects must contain at least one value")},
		{"nothing", func(f fs) { rule(f).ResourceRules, rule(f).NonResourceRules = nil, nil }, bad("spec.rules[0]: Required value: at least one of")},
		{"kind of subject", func(f fs) { rule(f).Subjects[0].Kind = "x" }, bad("spec.rules[0].subjects[0].kind: Unsupported value", "spec.rules[0].subjects[0].user: Forbidden")},
		{"another's member", func(f fs) { rule(f).Subjects[0].Kind = "Group" }, bad("spec.rules[0].subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'", "spec.rules[0].subjects[0].group: Required value: group is required when subject kind is 'Group'")},
		{"nameless", func(f fs) {
			rule(f).Subjects[0].User.Name, rule(f).Subjects[1].Group.Name, rule(f).Subjects[2].ServiceAccount.Name = "", "", ""
			rule(f).Subjects[2].ServiceAccount.Namespace = ""
		}, bad("spec.rules[0].subjects[0].user.name: Required", "spec.rules[0].subjects[1].group.name: Required", "spec.rules[0].subjects[2].serviceAccount.name: Required", "spec.rules[0].subjects[2].serviceAccount.namespace: Required")},
		{"no verbs", func(f fs) { rule(f).ResourceRules[0].Verbs = nil }, bad("spec.rules[0].resourceRules[0].verbs: Required")},
		{"star and verb", func(f fs) { rule(f).ResourceRules[0].Verbs = []string{"*", "get"} }, bad("spec.rules[0].resourceRules[0].verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify other verbs")},
		{"odd verb", func(f fs) { rule(f).NonResourceRules[0].Verbs = []string{"read"} }, bad("spec.rules[0].nonResourceRules[0].verbs: Unsupported value")},
		{"no groups", func(f fs) { rule(f).ResourceRules[0].APIGroups = nil }, bad("spec.rules[0].resourceRules[0].apiGroups: Required")},
		{"no resources", func(f fs) { rule(f).ResourceRules[0].Resources = nil }, bad("spec.rules[0].resourceRules[0].resources: Required")},
		{"no namespaces", func(f fs) { rule(f).ResourceRules[0].Namespaces = nil }, bad("spec.rules[0].resourceRules[0].namespaces: Required value: resource rules that are not cluster scoped")},
		{"odd namespace", func(f fs) { rule(f).ResourceRules[0].Namespaces = []string{"A"} }, bad("spec.rules[0].resourceRules[0].namespaces[0]: Invalid value")},
		{"no URLs", func(f fs) { rule(f).NonResourceRules[0].NonResourceURLs = nil }, bad("spec.rules[0].nonResourceRules[0].nonResourceURLs: Required")},
		{"odd URLs", func(f fs) {
			rule(f).NonResourceRules[0].NonResourceURLs = []string{"a", "/a b", "/a//b", "/a*", "/*/b", "/*"}
		}, bad("spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value", "spec.rules[0].nonResourceRules[0].nonResourceURLs[1]: Invalid value", "spec.rules[0].nonResourceRules[0].nonResourceURLs[2]: Invalid value",
			"spec.rules[0].nonResourceRules[0].nonResourceURLs[3]: Invalid value", "spec.rules[0].nonResourceRules[0].nonResourceURLs[4]: Invalid value")},
	})
	mutate(t, schema, validateFlowSchemaStatus, []mutation[fs]{
		{"twice", func(f fs) { f.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: "a"}, {Type: "a"}} }, bad("status.conditions[1].type: Duplicate value")},
		{"none", func(f fs) { f.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{}} }, bad("status.conditions[0].type: Required value")},
	})
}

func TestPriorityLevel(t *testing.T) {
	t.Parallel()
	type level = *flowcontrolv1.PriorityLevelConfiguration
	limited := func() level {
		return defaulted[flowcontrolv1.PriorityLevelConfiguration](t, `{metadata: {name: l}, spec: {type: Limited, limited: {limitResponse: {type: Queue, queuing: {}}}}}`)
	}
	q := func(l level) *flowcontrolv1.QueuingConfiguration { return l.Spec.Limited.LimitResponse.Queuing }
	mutate(t, limited, validatePriorityLevel, []mutation[level]{
		{"type", func(l level) { l.Spec.Type = "x" }, bad("spec.type: Unsupported value")},
		{"exempt by type", func(l level) { l.Spec.Type = "Exempt" }, bad("spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if and only if name is 'exempt'")},
		{"exempt by name", func(l level) { l.Name = "exempt" }, bad("spec.type: Invalid value")},
		{"the mandatory one's name", func(l level) { l.Name = "catch-all" }, bad("spec: Invalid value")},
		{"both", func(l level) { l.Spec.Exempt = &flowcontrolv1.ExemptPriorityLevelConfiguration{} }, bad("spec.exempt: Forbidden: must be nil if the type is Limited")},
		{"neither", func(l level) { l.Spec.Limited = nil }, bad("spec.limited: Required value")},
		{"shares", func(l level) {
			l.Spec.Limited.NominalConcurrencyShares, l.Spec.Limited.LendablePercent, l.Spec.Limited.BorrowingLimitPercent = ptr(int32(-1)), ptr(int32(101)), ptr(int32(-1))
		}, bad("spec.limited.nominalConcurrencyShares: Invalid value", "spec.limited.lendablePercent: Invalid value", "spec.limited.borrowingLimitPercent: Invalid value")},
		{"response", func(l level) { l.Spec.Limited.LimitResponse.Type = "x" }, bad("spec.limited.limitResponse.type: Unsupported value")},
		{"reject with queues", func(l level) { l.Spec.Limited.LimitResponse.Type = "Reject" }, bad("spec.limited.limitResponse.queuing: Forbidden")},
		{"queue without", func(l level) { l.Spec.Limited.LimitResponse.Queuing = nil }, bad("spec.limited.limitResponse.queuing: Required value")},
		{"numbers", func(l level) { q(l).Queues, q(l).HandSize, q(l).QueueLengthLimit = 0, -1, 0 }, bad("spec.limited.limitResponse.queuing.queues", "spec.limited.limitResponse.queuing.handSize", "spec.limited.limitResponse.queuing.queueLengthLimit")},
		{"too many queues", func(l level) { q(l).Queues = maxQueues + 1 }, bad("spec.limited.limitResponse.queuing.queues: Invalid value")},
		{"hand", func(l level) { q(l).HandSize = 65 }, bad("spec.limited.limitResponse.queuing.handSize: Invalid value: 65: should not be greater than queues (64)")},
		{"entropy", func(l level) { q(l).Queues, q(l).HandSize = 512, 8 }, bad("spec.limited.limitResponse.queuing.handSize: Invalid value: 8: required entropy bits")},
	})
	exempt := func() level { return bootstrap.MandatoryPriorityLevelConfigurationExempt.DeepCopy() }
	mutate(t, exempt, validatePriorityLevel, []mutation[level]{
		{"lends", func(l level) { l.Spec.Exempt.LendablePercent = ptr(int32(50)) }, nil},
		{"lends too much", func(l level) { l.Spec.Exempt.LendablePercent = ptr(int32(101)) }, bad("spec.exempt.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive")},
		{"limited too", func(l level) { l.Spec.Limited = limited().Spec.Limited }, bad("spec.limited: Forbidden: must be nil if the type is not Limited")},
	})
	mutate(t, limited, validatePriorityLevelStatus, []mutation[level]{
		{"twice", func(l level) {
			l.Status.Conditions = []flowcontrolv1.PriorityLevelConfigurationCondition{{Type: "a"}, {Type: "a"}}
		}, bad("status.conditions[1].type: Duplicate value")},
	})
}

// The objects that every cluster has pass their own rules.
func TestBootstrapFlowControl(t *testing.T) {
	t.Parallel()
	for _, list := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas} {
		for _, f := range list {
			check(t, validateFlowSchema(f))
		}
	}
	for _, list := range [][]*flowcontrolv1.PriorityLevelConfiguration{bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations} {
		for _, l := range list {
			check(t, validatePriorityLevel(l))
		}
	}
}
