package rbac

// The authorizer, and the list of what a user may do.

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
)

// bySubject is the index of bindings by subject.
const bySubject = "subject"

// maxMissing bounds the missing roles in one error.
const maxMissing = 5

// ErrNotListed means that roles and bindings have not been listed yet. It is the answer of
// the API: clients try again after a second.
var ErrNotListed error = apierrors.NewTooManyRequests("roles and their bindings have not been listed yet", 1)

// An Authorizer allows what the roles bound to a user allow. All methods may be called at
// the same time, but Use before the others.
type Authorizer struct {
	roles           rbaclisters.RoleLister
	clusterRoles    rbaclisters.ClusterRoleLister
	bindings        cache.Indexer
	clusterBindings cache.Indexer
	synced          []cache.InformerSynced
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
)

// Use sets the informers. They need not run yet: until they have listed everything,
// nothing is allowed and clients are told to try again.
func (z *Authorizer) Use(f informers.SharedInformerFactory) error {
	v1 := f.Rbac().V1()
	bindings, clusterBindings := v1.RoleBindings().Informer(), v1.ClusterRoleBindings().Informer()
	for _, i := range []cache.SharedIndexInformer{bindings, clusterBindings} {
		if err := i.AddIndexers(cache.Indexers{bySubject: subjectsOf}); err != nil {
			return fmt.Errorf("rbac: index bindings: %w", err)
		}
	}
	z.roles, z.clusterRoles = v1.Roles().Lister(), v1.ClusterRoles().Lister()
	z.bindings, z.clusterBindings = bindings.GetIndexer(), clusterBindings.GetIndexer()
	z.synced = []cache.InformerSynced{
		bindings.HasSynced, clusterBindings.HasSynced, v1.Roles().Informer().HasSynced, v1.ClusterRoles().Informer().HasSynced,
	}
	return nil
}

// listed reports whether all four kinds have been listed.
func (z *Authorizer) listed() bool {
	for _, synced := range z.synced {
		if !synced() {
			return false
		}
	}
	return len(z.synced) > 0
}

// subjectsOf is the index function: the subjects of a binding, with its namespace as a
// prefix.
func subjectsOf(obj any) ([]string, error) {
	var subjects []rbacv1.Subject
	namespace := ""
	switch b := obj.(type) {
	case *rbacv1.RoleBinding:
		subjects, namespace = b.Subjects, b.Namespace
	case *rbacv1.ClusterRoleBinding:
		subjects = b.Subjects
	default:
		return nil, fmt.Errorf("not a binding: %T", obj)
	}
	keys := make([]string, 0, len(subjects))
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			keys = append(keys, userKey(namespace, s.Name))
		case rbacv1.GroupKind:
			keys = append(keys, groupKey(namespace, s.Name))
		case rbacv1.ServiceAccountKind:
			of := s.Namespace
			if of == "" {
				of = namespace
			}
			if of != "" {
				keys = append(keys, userKey(namespace, serviceaccount.MakeUsername(of, s.Name)))
			}
		}
	}
	return keys, nil
}

func userKey(namespace, name string) string  { return namespace + "/u/" + name }
func groupKey(namespace, name string) string { return namespace + "/g/" + name }

// Authorize implements authorizer.Authorizer. The reason names the binding, or the missing
// roles that are bound to the user. The error is ErrNotListed.
func (z *Authorizer) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	u := a.GetUser()
	if u == nil {
		return authorizer.DecisionNoOpinion, "no user", nil
	}
	var by *grant
	err := z.visit(u, a.GetNamespace(), func(g *grant, r *rbacv1.PolicyRule) bool {
		if allows(r, a) {
			by = g
		}
		return by == nil
	})
	if by != nil {
		return authorizer.DecisionAllow, "RBAC: allowed by " + by.String(), nil
	}
	if errors.Is(err, ErrNotListed) {
		return authorizer.DecisionNoOpinion, "", err
	}
	reason := ""
	if err != nil {
		reason = fmt.Sprintf("RBAC: %v", err)
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; rules have no conditions.
func (z *Authorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(z.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer.
func (z *Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver. If roles that are bound to the user do not
// exist, the list is incomplete and is returned with an error.
func (z *Authorizer) RulesFor(_ context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resource []authorizer.ResourceRuleInfo
	var other []authorizer.NonResourceRuleInfo
	rules, err := z.rules(u, namespace)
	for _, r := range rules {
		if len(r.Resources) > 0 {
			resource = append(resource, &authorizer.DefaultResourceRuleInfo{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			other = append(other, &authorizer.DefaultNonResourceRuleInfo{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resource, other, err != nil, err
}

// rules are all rules that are bound to a user, in one namespace and in all.
func (z *Authorizer) rules(u user.Info, namespace string) (all []rbacv1.PolicyRule, err error) {
	err = z.visit(u, namespace, func(_ *grant, r *rbacv1.PolicyRule) bool {
		all = append(all, *r)
		return true
	})
	return all, err
}

// A grant is a binding with the identity of its role.
type grant struct {
	namespace, name string // of the binding; no namespace for a ClusterRoleBinding
	ref             rbacv1.RoleRef
}

func (g *grant) String() string {
	kind, name := "ClusterRoleBinding", g.name
	if g.namespace != "" {
		kind, name = "RoleBinding", g.name+"/"+g.namespace
	}
	return fmt.Sprintf("%s %q of %s %q", kind, name, g.ref.Kind, g.ref.Name)
}

// visit calls next with the rules that are bound to a user until it returns false. The
// error names missing roles, which do not stop the visit.
func (z *Authorizer) visit(u user.Info, namespace string, next func(*grant, *rbacv1.PolicyRule) bool) error {
	if !z.listed() {
		return ErrNotListed
	}
	v := visitor{z: z, u: u, next: next, seen: make(map[string]bool)}
	done := v.in("", z.clusterBindings)
	if !done && namespace != "" {
		v.in(namespace, z.bindings)
	}
	if v.lost > maxMissing {
		v.missing = append(v.missing, fmt.Errorf("and %d more", v.lost-maxMissing))
	}
	return utilerrors.NewAggregate(v.missing)
}

// A visitor is one walk over the bindings of a user.
type visitor struct {
	z       *Authorizer
	u       user.Info
	next    func(*grant, *rbacv1.PolicyRule) bool
	seen    map[string]bool // visited bindings of this namespace
	missing []error
	lost    int // number of missing roles
}

// in visits the bindings of a namespace, and reports whether next has returned false.
func (v *visitor) in(namespace string, bindings cache.Indexer) (done bool) {
	clear(v.seen)
	if v.of(bindings, userKey(namespace, v.u.GetName())) {
		return true
	}
	for _, g := range v.u.GetGroups() {
		if v.of(bindings, groupKey(namespace, g)) {
			return true
		}
	}
	return false
}

func (v *visitor) of(bindings cache.Indexer, key string) (done bool) {
	found, err := bindings.ByIndex(bySubject, key)
	if err != nil {
		v.miss(err)
		return false
	}
	for _, obj := range found {
		var g grant
		switch b := obj.(type) {
		case *rbacv1.RoleBinding:
			g = grant{namespace: b.Namespace, name: b.Name, ref: b.RoleRef}
		case *rbacv1.ClusterRoleBinding:
			g = grant{name: b.Name, ref: b.RoleRef}
		}
		if v.seen[g.name] { // it names the user twice, or the user and a group
			continue
		}
		v.seen[g.name] = true
		rules, err := v.z.rulesOf(g.ref, g.namespace)
		if err != nil {
			v.miss(err)
			continue
		}
		for i := range rules {
			if !v.next(&g, &rules[i]) {
				return true
			}
		}
	}
	return false
}

func (v *visitor) miss(err error) {
	if v.lost++; v.lost <= maxMissing {
		v.missing = append(v.missing, err)
	}
}

// rulesOf are the rules of a role, which are shared with the cache.
func (z *Authorizer) rulesOf(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch ref.Kind {
	case "Role":
		r, err := z.roles.Roles(namespace).Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return r.Rules, nil
	case "ClusterRole":
		r, err := z.clusterRoles.Get(ref.Name)
		if err != nil {
			return nil, err
		}
		return r.Rules, nil
	default:
		return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
	}
}
