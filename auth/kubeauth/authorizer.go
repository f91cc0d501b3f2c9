package kubeauth

// The authorizer.

import (
	"context"
	"errors"
	pathpkg "path"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// An Authorizer allows what the package comment lists and has no opinion about the rest,
// which an API server without further authorizers refuses.
type Authorizer struct{ objects *Objects }

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// NewAuthorizer returns an Authorizer that decides about nodes by the objects of o.
func NewAuthorizer(o *Objects) *Authorizer { return &Authorizer{objects: o} }

// Authorize implements authorizer.Authorizer. The reason is for the user.
func (z *Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "no user", nil
	}
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	if allowedToAll(u, a) {
		return authorizer.DecisionAllow, "", nil
	}
	if !a.IsResourceRequest() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return z.resource(ctx, u, a)
}

// resource decides about API objects. An identity has one role only: a node that is also
// in the bootstrappers' group is a node.
func (z *Authorizer) resource(ctx context.Context, u user.Info, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if node, is := nodeOf(u); is {
		if node == "" {
			return authorizer.DecisionNoOpinion, "unknown node for user " + quote(u.GetName()), nil
		}
		return z.node(ctx, node, a)
	}
	if anyAllows(userRules[u.GetName()], a) {
		return authorizer.DecisionAllow, "", nil
	}
	if slices.Contains(u.GetGroups(), bootstrapperGroup) {
		if anyAllows(bootstrapRules, a) || slices.Contains(u.GetGroups(), JoinGroup) && anyAllows(joinRules, a) {
			return authorizer.DecisionAllow, "", nil
		}
		return z.ownRequest(ctx, u, a)
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; our decisions have
// no conditions.
func (z *Authorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(z.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer.
func (z *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// allowedToAll decides about requests that every authenticated user may make.
func allowedToAll(u user.Info, a authorizer.Attributes) bool {
	known := slices.Contains(u.GetGroups(), user.AllAuthenticated)
	if a.IsResourceRequest() {
		return known && anyAllows(selfRules, a)
	}
	switch a.GetVerb() {
	case "get", "head":
		return matchPath(publicPaths, a.GetPath()) || known && matchPath(discoveryPaths, a.GetPath()) ||
			slices.Contains(u.GetGroups(), serviceaccount.AllServiceAccountsGroup) && matchPath(openIDPaths, a.GetPath())
	default:
		return false
	}
}

// matchPath compares a path literally: a path that cleaning would change matches none of
// paths.
func matchPath(paths []string, path string) bool {
	c := pathpkg.Clean(path)
	tidy := c == path || c+"/" == path
	for _, p := range paths {
		if p == path {
			return true
		}
		if root, below := strings.CutSuffix(p, "*"); below && tidy && strings.HasPrefix(path, root) && len(path) > len(root) {
			return true
		}
	}
	return false
}

// nodeOf returns the node's name of u. A user with only the name or only the group of a
// node is no node; one with both and an empty name after the prefix is a node without a
// name.
func nodeOf(u user.Info) (name string, is bool) {
	name, ok := strings.CutPrefix(u.GetName(), nodeUserPrefix)
	if !ok || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	return name, true
}

// RulesFor implements authorizer.RuleResolver. The list for nodes and bootstrappers is
// incomplete, and is returned with an error about that: their other rights depend on the
// objects of the cluster.
func (z *Authorizer) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		all := []string{"*"}
		return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
			[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
	}
	paths := publicPaths
	var rules []rule
	if slices.Contains(u.GetGroups(), user.AllAuthenticated) {
		paths = slices.Concat(publicPaths, discoveryPaths)
		rules = selfRules
	}
	if slices.Contains(u.GetGroups(), serviceaccount.AllServiceAccountsGroup) {
		paths = slices.Concat(paths, openIDPaths)
	}
	incomplete := false
	if _, is := nodeOf(u); is {
		rules, incomplete = slices.Concat(rules, nodeRules), true
	} else {
		rules = slices.Concat(rules, userRules[u.GetName()])
		if slices.Contains(u.GetGroups(), bootstrapperGroup) {
			rules, incomplete = slices.Concat(rules, bootstrapRules), true
			if slices.Contains(u.GetGroups(), JoinGroup) {
				rules = slices.Concat(rules, joinRules)
			}
		}
	}
	var out []authorizer.ResourceRuleInfo
	for _, r := range rules {
		if r.namespace == "" || r.namespace == namespace {
			out = append(out, &authorizer.DefaultResourceRuleInfo{Verbs: r.verbs, APIGroups: r.groups, Resources: r.resources})
		}
	}
	return out, []authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{
		Verbs: []string{"get", "head"}, NonResourceURLs: paths,
	}}, incomplete, unlisted(incomplete)
}

// unlisted is the error with an incomplete list.
func unlisted(incomplete bool) error {
	if !incomplete {
		return nil
	}
	return errors.New("what depends on the objects in the cluster is not listed, such as a node's own pods and a bootstrapper's own requests")
}
