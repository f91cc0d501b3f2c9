package rbac

// Matching requests and rules.

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// allows reports whether a rule allows a request.
func allows(r *rbacv1.PolicyRule, a authorizer.Attributes) bool {
	if !has(r.Verbs, rbacv1.VerbAll, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(r.NonResourceURLs, func(u string) bool { return pathMatches(u, a.GetPath()) })
	}
	return has(r.APIGroups, rbacv1.APIGroupAll, a.GetAPIGroup()) &&
		slices.ContainsFunc(r.Resources, func(have string) bool { return resourceMatches(have, a) }) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.GetName()))
}

func has(all []string, any, want string) bool {
	return slices.ContainsFunc(all, func(s string) bool { return s == any || s == want })
}

// resourceMatches accepts "pods", "pods/log", "*/log" and "*".
func resourceMatches(have string, a authorizer.Attributes) bool {
	if have == rbacv1.ResourceAll {
		return true
	}
	main, sub, _ := strings.Cut(have, "/")
	return sub == a.GetSubresource() && (main == a.GetResource() || main == "*" && sub != "")
}

// pathMatches accepts "/healthz", "/healthz/*" and "*".
func pathMatches(have, path string) bool {
	root, below := strings.CutSuffix(have, "*")
	return have == path || below && strings.HasPrefix(path, root)
}
