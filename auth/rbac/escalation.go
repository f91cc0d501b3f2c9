package rbac

// The admission plugin that prevents users from granting rights that they do not have.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// maxUncovered bounds the missing rules in one refusal.
const maxUncovered = 20

// everything is required of a user who makes an aggregated role: the rules of future roles
// are not known.
var everything = []rbacv1.PolicyRule{
	{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	{NonResourceURLs: []string{"*"}, Verbs: []string{"*"}},
}

// An escalation is the plugin Escalation.
type escalation struct {
	*admission.Handler
	rbac   *Authorizer
	authz  authorizer.Authorizer
	client kubernetes.Interface
}

var (
	_ admission.ValidationInterface          = (*escalation)(nil)
	_ initializer.WantsAuthorizer            = (*escalation)(nil)
	_ initializer.WantsExternalKubeClientSet = (*escalation)(nil)
	_ admission.InitializationValidator      = (*escalation)(nil)
)

// Escalation refuses to write a rule to a role, or to bind a role, unless the user has the
// rights of the rules by z. Exceptions are the group system:masters, users who may
// "escalate" the role, users who may "bind" it, and writes that change owners and
// finalizers only.
func Escalation(z *Authorizer) admission.Interface {
	return &escalation{Handler: admission.NewHandler(admission.Create, admission.Update), rbac: z}
}

func (e *escalation) SetAuthorizer(a authorizer.Authorizer)                { e.authz = a }
func (e *escalation) SetExternalKubeClientSet(client kubernetes.Interface) { e.client = client }

func (e *escalation) ValidateInitialization() error {
	if e.authz == nil || e.client == nil {
		return errors.New("rbac: escalation needs an authorizer and a client")
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (e *escalation) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetKind().Group != rbacv1.GroupName || slices.Contains(a.GetUserInfo().GetGroups(), user.SystemPrivilegedGroup) {
		return nil
	}
	if onlyCollected(a.GetObject(), a.GetOldObject()) {
		return nil
	}
	switch is := a.GetObject().(type) {
	case *rbacv1.Role:
		return e.rules(ctx, a, "roles", is.Rules)
	case *rbacv1.ClusterRole:
		was, _ := a.GetOldObject().(*rbacv1.ClusterRole)
		if is.AggregationRule != nil || was != nil && was.AggregationRule != nil {
			return e.rules(ctx, a, "clusterroles", everything)
		}
		return e.rules(ctx, a, "clusterroles", is.Rules)
	case *rbacv1.RoleBinding:
		return e.binding(ctx, a, is.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return e.binding(ctx, a, is.RoleRef)
	}
	return nil
}

// onlyCollected reports whether a write changes only what a garbage collector changes.
// Labels are not among that: a label can make a role a part of others.
func onlyCollected(is, was runtime.Object) bool {
	if is == nil || was == nil {
		return false
	}
	before := was.DeepCopyObject()
	to, ok := before.(metav1.Object)
	from, ok2 := is.(metav1.Object)
	if !ok || !ok2 {
		return false
	}
	to.SetOwnerReferences(from.GetOwnerReferences())
	to.SetFinalizers(from.GetFinalizers())
	to.SetManagedFields(from.GetManagedFields())
	return equality.Semantic.DeepEqual(before, is)
}

// rules refuses rules in a role unless the user has their rights, or may escalate that
// role.
func (e *escalation) rules(ctx context.Context, a admission.Attributes, resource string, rules []rbacv1.PolicyRule) error {
	if e.may(ctx, a, "escalate", resource, a.GetName()) {
		return nil
	}
	return e.covers(a, rules)
}

// binding refuses to bind a role unless the user has its rights, or may bind it.
func (e *escalation) binding(ctx context.Context, a admission.Attributes, ref rbacv1.RoleRef) error {
	resource := map[string]string{"Role": "roles", "ClusterRole": "clusterroles"}[ref.Kind]
	if e.may(ctx, a, "bind", resource, ref.Name) {
		return nil
	}
	// Roles are read from the store, so that a new one can be bound at once.
	var rules []rbacv1.PolicyRule
	switch ref.Kind {
	case "Role":
		r, err := e.client.RbacV1().Roles(a.GetNamespace()).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return lookup(err)
		}
		rules = r.Rules
	case "ClusterRole":
		r, err := e.client.RbacV1().ClusterRoles().Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return lookup(err)
		}
		rules = r.Rules
	}
	return e.covers(a, rules)
}

// lookup is the error for a binding whose role cannot be read.
func lookup(err error) error {
	if apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewInternalError(fmt.Errorf("read the role of the binding: %w", err))
}

// may calls all authorizers.
func (e *escalation) may(ctx context.Context, a admission.Attributes, verb, resource, name string) bool {
	decision, _, err := e.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, Namespace: a.GetNamespace(), Name: name,
		APIGroup: rbacv1.GroupName, APIVersion: "*", Resource: resource, ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}

// covers refuses rules whose rights the user does not have.
func (e *escalation) covers(a admission.Attributes, rules []rbacv1.PolicyRule) error {
	u := a.GetUserInfo()
	own, err := e.rbac.rules(u, a.GetNamespace())
	if errors.Is(err, ErrNotListed) {
		return err
	}
	ok, without := validation.Covers(own, rules)
	if ok {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "user %q (groups=%q) is attempting to grant RBAC permissions not currently held:", u.GetName(), u.GetGroups())
	for i := range without {
		if i == maxUncovered {
			fmt.Fprintf(&b, "\nand %d more", len(without)-i)
			break
		}
		b.WriteString("\n" + text(&without[i]))
	}
	if err != nil {
		fmt.Fprintf(&b, "; resolution errors: %v", err)
	}
	return admission.NewForbidden(a, errors.New(b.String()))
}

// text is a rule in one line.
func text(r *rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name string
		list []string
	}{
		{"APIGroups", r.APIGroups},
		{"Resources", r.Resources},
		{"ResourceNames", r.ResourceNames},
		{"NonResourceURLs", r.NonResourceURLs},
		{"Verbs", r.Verbs},
	} {
		if len(p.list) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%q", p.name, p.list))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
