package rbac

// Tests of writing rules, and of the default roles.

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// write is a request that changes was to is; was is nil for a create.
func write(is, was runtime.Object, kind, namespace, name string, u user.Info) admission.Attributes {
	gvk := rbacv1.SchemeGroupVersion.WithKind(kind)
	op := admission.Create
	if was != nil {
		op = admission.Update
	}
	return admission.NewAttributesRecord(is, was, gvk, namespace, name, rbacv1.SchemeGroupVersion.WithResource(strings.ToLower(kind)+"s"), "", op, nil, false, u)
}

func TestEscalation(t *testing.T) {
	secret := on(core, read, "secrets")
	named := func(name string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: []string{"bind"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles"}, ResourceNames: []string{name}}
	}
	objects := []runtime.Object{
		clusterRole("reader", reads), clusterRole("secrets", secret), clusterRole("binder", named("secrets")),
		clusterRole("escalator", on(rbacv1.GroupName, []string{"escalate"}, "clusterroles")),
		clusterRole("all", on("*", []string{"*"}, "*"), at([]string{"*"}, "*")),
		bound("all", subject("User", "", "root")),
		bound("reader", subject("User", "", "ann"), subject("User", "", "bob"), subject("User", "", "eve")),
		bound("binder", subject("User", "", "bob")), bound("escalator", subject("User", "", "eve")),
		boundIn("a", "ClusterRole", "secrets", subject("User", "", "ann")),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "secrets"}, Rules: []rbacv1.PolicyRule{secret}},
	}
	z := using(t, objects...)
	plugin := Escalation(z).(*escalation)
	if plugin.ValidateInitialization() == nil {
		t.Error("it needs no authorizer")
	}
	initializer.New(fake.NewClientset(objects...), nil, nil, z, nil, nil, nil, nil).Initialize(plugin)
	if err := plugin.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	role := func(ns string, rules ...rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "new"}, Rules: rules}
	}
	aggregated := clusterRole("new")
	aggregated.AggregationRule = &rbacv1.AggregationRule{}
	filled := aggregated.DeepCopy()
	filled.Rules = []rbacv1.PolicyRule{secret}
	labelled := clusterRole("new", secret)
	labelled.Labels = map[string]string{"x": "y"}
	owned := clusterRole("new", secret)
	owned.OwnerReferences = []metav1.OwnerReference{{Name: "x"}}
	other := bound("secrets", subject("User", "", "mallory"))
	relabelled := other.DeepCopy()
	relabelled.Labels = map[string]string{"x": "y"}
	for _, tt := range []struct {
		name     string
		is, was  runtime.Object
		kind, ns string
		may      string // the users who may
	}{
		{"a role of what one has", role("b", reads), nil, "Role", "b", "root ann bob eve"},
		{"a role of more", role("b", secret), nil, "Role", "b", "root"},
		{"a role of what one has there", role("a", secret), nil, "Role", "a", "root ann"},
		{"a role that grows", role("b", reads, secret), role("b", reads), "Role", "b", "root"},
		{"a role that shrinks to what one has", role("b", reads), role("b", reads, secret), "Role", "b", "root ann bob eve"},
		{"a cluster role of more", clusterRole("new", secret), nil, "ClusterRole", "", "root eve"},
		{"a label, which may make it a part of others", labelled, clusterRole("new", secret), "ClusterRole", "", "root eve"},
		{"only owners change", owned, clusterRole("new", secret), "ClusterRole", "", "root ann bob eve"},
		{"a role made of roles", aggregated, nil, "ClusterRole", "", "root eve"},
		{"a role made of roles is filled in", filled, aggregated, "ClusterRole", "", "root eve"},
		{"paths", clusterRole("new", at([]string{"get"}, "/metrics")), nil, "ClusterRole", "", "root eve"},
		{"a binding of what one has", bound("reader", subject("User", "", "x")), nil, "ClusterRoleBinding", "", "root ann bob eve"},
		{"a binding of more", other, nil, "ClusterRoleBinding", "", "root bob"},
		{"the labels of a binding", relabelled, other, "ClusterRoleBinding", "", "root bob"},
		{"one more subject", bound("secrets", subject("User", "", "mallory"), subject("User", "", "x")), other, "ClusterRoleBinding", "", "root bob"},
		{"a binding in a namespace", boundIn("b", "ClusterRole", "secrets", subject("User", "", "x")), nil, "RoleBinding", "b", "root bob"},
		{"a binding in one's own namespace", boundIn("a", "ClusterRole", "secrets", subject("User", "", "x")), nil, "RoleBinding", "a", "root ann bob"},
		{"a binding of a role", boundIn("a", "Role", "secrets", subject("User", "", "x")), nil, "RoleBinding", "a", "root ann"},
		{"a binding of no role", bound("nothing", subject("User", "", "x")), nil, "ClusterRoleBinding", "", "root"},
	} {
		for _, name := range []string{"root", "ann", "bob", "eve"} {
			err := plugin.Validate(t.Context(), write(tt.is, tt.was, tt.kind, tt.ns, "new", &user.DefaultInfo{Name: name}), nil)
			if want := strings.Contains(tt.may, name); (err == nil) != want {
				t.Errorf("%s by %s: %v", tt.name, name, err)
			}
			if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
				t.Errorf("%s by %s: %v", tt.name, name, err)
			}
		}
	}
	err := plugin.Validate(t.Context(), write(role("b", secret), nil, "Role", "b", "new", &user.DefaultInfo{Name: "ann"}), nil)
	if want := `{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say %s", err, want)
	}
	masters := &user.DefaultInfo{Name: "x", Groups: []string{user.SystemPrivilegedGroup}}
	if err := plugin.Validate(t.Context(), write(clusterRole("new", everything...), nil, "ClusterRole", "", "new", masters), nil); err != nil {
		t.Error(err)
	}
}

// Missing roles are made, missing rules are added, and additions of users stay, as do roles
// that must not be changed.
func TestReconcile(t *testing.T) {
	less, more, kept := role("system:discovery"), role("system:basic-user", reads), role("system:kube-dns")
	kept.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	client := fake.NewClientset(&less, &more, &kept)
	for range 2 {
		if err := Reconcile(t.Context(), client); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range ClusterRoles() {
		got, err := client.RbacV1().ClusterRoles().Get(t.Context(), want.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ok, without := validation.Covers(got.Rules, want.Rules); ok == (want.Name == kept.Name) {
			t.Errorf("%s lacks %v", want.Name, without)
		}
	}
	if got, err := client.RbacV1().ClusterRoles().Get(t.Context(), more.Name, metav1.GetOptions{}); err != nil || !slices.ContainsFunc(got.Rules, func(r rbacv1.PolicyRule) bool { return r.String() == reads.String() }) {
		t.Errorf("what somebody added to %s is gone: %v, %v", more.Name, got, err)
	}
	for _, want := range ClusterRoleBindings() {
		if _, err := client.RbacV1().ClusterRoleBindings().Get(t.Context(), want.Name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	client.ClearActions()
	if err := Reconcile(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "update" || a.GetVerb() == "create" {
			t.Errorf("a third time writes: %v", a)
		}
	}
}
