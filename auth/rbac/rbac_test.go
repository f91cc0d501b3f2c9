package rbac

// Tests of rules, of the subjects of bindings, and of the reasons.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask makes a request for a resource: "VERB GROUP/RESOURCE[/SUBRESOURCE] [NAMESPACE[/NAME]]".
func ask(t testing.TB, who user.Info, text string) authorizer.AttributesRecord {
	t.Helper()
	f := strings.Fields(text)
	if strings.HasPrefix(f[1], "/") && len(f) == 2 {
		return authorizer.AttributesRecord{User: who, Verb: f[0], Path: f[1]}
	}
	a := authorizer.AttributesRecord{User: who, Verb: f[0], ResourceRequest: true}
	parts := strings.SplitN(f[1], ":", 2)
	if len(parts) != 2 {
		t.Fatalf("%q has no group", text)
	}
	a.APIGroup = parts[0]
	a.Resource, a.Subresource, _ = strings.Cut(parts[1], "/")
	if len(f) > 2 {
		a.Namespace, a.Name, _ = strings.Cut(f[2], "/")
	}
	return a
}

func TestAllows(t *testing.T) {
	for _, tt := range []struct {
		rule    rbacv1.PolicyRule
		yes, no []string
	}{
		{
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}},
			[]string{"get :pods ns", "get :pods ns/p"},
			[]string{"list :pods ns", "get apps:pods ns", "get :pods/log ns/p", "get :secrets ns", "get /pods"},
		},
		{
			rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
			[]string{"get :pods ns", "made-up apps:deployments/scale ns/d"},
			[]string{"get /healthz"},
		},
		{
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"", "apps"}, Resources: []string{"*/scale", "pods/log"}},
			[]string{"get apps:deployments/scale ns/d", "get :pods/log ns/p"},
			[]string{"get apps:deployments ns/d", "get :pods ns/p", "get :pods/exec ns/p"},
		},
		{
			rbacv1.PolicyRule{Verbs: []string{"update"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"mine"}},
			[]string{"update :configmaps ns/mine"},
			[]string{"update :configmaps ns/other", "update :configmaps ns"},
		},
		{
			rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics", "/healthz/*"}},
			[]string{"get /metrics", "get /healthz/etcd", "get /healthz/"},
			[]string{"get /metrics/x", "get /healthz", "post /metrics", "get :metrics ns"},
		},
		{
			rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"*"}},
			[]string{"get /metrics", "get /"},
			[]string{"get :pods ns"},
		},
		{
			rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"*/"}},
			nil,
			[]string{"get :pods ns"},
		},
	} {
		for want, texts := range map[bool][]string{true: tt.yes, false: tt.no} {
			for _, text := range texts {
				if got := allows(&tt.rule, ask(t, nil, text)); got != want {
					t.Errorf("%s for %q: %t", text, tt.rule.String(), got)
				}
			}
		}
	}
}

// using is an Authorizer of objects.
func using(t testing.TB, objects ...runtime.Object) *Authorizer {
	t.Helper()
	f := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	z := &Authorizer{}
	if err := z.Use(f); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Start(ctx.Done())
	t.Cleanup(func() { cancel(); f.Shutdown() })
	f.WaitForCacheSync(ctx.Done())
	return z
}

func may(t testing.TB, z *Authorizer, who user.Info, text string) (bool, string) {
	t.Helper()
	decision, reason, err := z.Authorize(t.Context(), ask(t, who, text))
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return decision == authorizer.DecisionAllow, reason
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func bound(role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role + "-bound"}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

func boundIn(namespace, kind, role string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role + "-bound"}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
	}
}

func subject(kind, namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: kind, Namespace: namespace, Name: name}
}

var reads = on(core, read, "pods")

func TestAuthorize(t *testing.T) {
	z := using(t,
		clusterRole("reader", reads), clusterRole("noder", on(core, read, "nodes")),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "local"}, Rules: []rbacv1.PolicyRule{on(core, read, "secrets")}},
		bound("noder", subject("User", "", "ann"), subject("User", "", "ann"), subject("Group", "", "ops")),
		bound("gone", subject("User", "", "ann")),
		boundIn("a", "ClusterRole", "reader", subject("ServiceAccount", "b", "bot"), subject("ServiceAccount", "", "own")),
		boundIn("a", "Role", "local", subject("User", "", "ann")),
		boundIn("b", "Role", "local", subject("User", "", "ann")), // there is no such role in b
	)
	ann, ops := &user.DefaultInfo{Name: "ann"}, &user.DefaultInfo{Name: "joe", Groups: []string{"x", "ops"}}
	bot, own := &user.DefaultInfo{Name: "system:serviceaccount:b:bot"}, &user.DefaultInfo{Name: "system:serviceaccount:a:own"}
	for _, tt := range []struct {
		who  user.Info
		text string
		want bool
	}{
		{ann, "get :nodes", true},
		{ops, "list :nodes", true},
		{ann, "delete :nodes", false},
		{ann, "get :secrets a/s", true},
		{ann, "get :secrets b/s", false},
		{ann, "list :secrets", false},
		{bot, "get :pods a/p", true},
		{bot, "get :pods b/p", false},
		{bot, "list :pods", false},
		{own, "get :pods a/p", true},
		{&user.DefaultInfo{Name: "system:serviceaccount:a:bot"}, "get :pods a/p", false},
		{&user.DefaultInfo{Name: "ops"}, "get :nodes", false},
		{&user.DefaultInfo{Name: "x", Groups: []string{"ann"}}, "get :nodes", false},
		{&user.DefaultInfo{}, "get :nodes", false},
	} {
		if got, reason := may(t, z, tt.who, tt.text); got != tt.want {
			t.Errorf("%s %s: %t %s", tt.who.GetName(), tt.text, got, reason)
		}
	}
	if _, reason := may(t, z, ann, "get :nodes"); reason != `RBAC: allowed by ClusterRoleBinding "noder-bound" of ClusterRole "noder"` {
		t.Error(reason)
	}
	if _, reason := may(t, z, ann, "delete :nodes"); !strings.Contains(reason, `"gone" not found`) {
		t.Error(reason)
	}
	if decision, _, _ := z.Authorize(t.Context(), authorizer.AttributesRecord{}); decision != authorizer.DecisionNoOpinion {
		t.Error(decision)
	}
	resource, other, incomplete, err := z.RulesFor(t.Context(), ann, "a")
	if len(resource) != 2 || len(other) != 0 || !incomplete || err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("%d and %d rules, %t, %v", len(resource), len(other), incomplete, err)
	}
}

// Before roles have been listed nothing is allowed, and clients are told to try again.
func TestNotListed(t *testing.T) {
	z := &Authorizer{}
	decision, _, err := z.Authorize(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "ann"}, Verb: "get", ResourceRequest: true})
	after, ok := apierrors.SuggestsClientDelay(err)
	if decision != authorizer.DecisionNoOpinion || !errors.Is(err, ErrNotListed) || !apierrors.IsTooManyRequests(err) || !ok || after != 1 {
		t.Errorf("%v, %v", decision, err)
	}
}

// An answer names only a few of many missing roles.
func TestManyMissing(t *testing.T) {
	var all []runtime.Object
	for i := range 50 {
		all = append(all, bound(fmt.Sprintf("gone-%d", i), subject("User", "", "ann")))
	}
	_, reason := may(t, using(t, all...), &user.DefaultInfo{Name: "ann"}, "get :pods a")
	if strings.Count(reason, "not found") != maxMissing || !strings.Contains(reason, "45 more") {
		t.Error(reason)
	}
}

// BenchmarkAuthorize is a request of a user with one role among 1,000, each bound to another
// user.
func BenchmarkAuthorize(b *testing.B) {
	objects := []runtime.Object{clusterRole("view", ClusterRoles()[6].Rules...), bound("view", subject("User", "", "ann"))}
	for i := range 1000 {
		name := fmt.Sprintf("role-%d", i)
		objects = append(objects, clusterRole(name, reads), bound(name, subject("User", "", name)))
	}
	z := using(b, objects...)
	a := ask(b, &user.DefaultInfo{Name: "ann", Groups: []string{user.AllAuthenticated, "people"}}, "get :pods a/p")
	if decision, reason, _ := z.Authorize(b.Context(), a); decision != authorizer.DecisionAllow {
		b.Fatal(decision, reason)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = z.Authorize(b.Context(), a)
	}
}

// The default roles allow what their names say.
func TestPolicy(t *testing.T) {
	var objects []runtime.Object
	parts := map[string][]rbacv1.PolicyRule{}
	roles := ClusterRoles()
	for _, r := range roles {
		for _, to := range []string{"admin", "edit", "view"} {
			if r.Labels[aggregateTo+to] == "true" {
				parts[to] = append(parts[to], r.Rules...)
			}
		}
	}
	for i := range roles {
		r := roles[i].DeepCopy()
		switch r.Name { // as the controller would
		case "view":
			r.Rules = parts["view"]
		case "edit":
			r.Rules = slices.Concat(parts["edit"], parts["view"])
		case "admin":
			r.Rules = slices.Concat(parts["admin"], parts["edit"], parts["view"])
		}
		objects = append(objects, r)
	}
	for _, b := range ClusterRoleBindings() {
		objects = append(objects, &b)
	}
	users := map[string]user.Info{
		"apiserver": &user.DefaultInfo{Name: pki.KubeletClientUser, Groups: []string{pki.KubeletClientGroup, user.AllAuthenticated}},
		"nobody":    &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
	}
	for _, name := range []string{"view", "edit", "admin", "cluster-admin", "anybody"} {
		users[name] = &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
		if name != "anybody" {
			b := bound(name, subject("User", "", name))
			objects = append(objects, b)
		}
	}
	z := using(t, objects...)
	for text, want := range map[string]string{
		"get :pods/log ns/p":                              "view edit admin cluster-admin",
		"create :pods/exec ns/p":                          "edit admin cluster-admin",
		"update extensions:ingresses ns/i":                "edit admin cluster-admin",
		"get extensions:replicasets/status ns/r":          "view edit admin cluster-admin",
		"create resource.k8s.io:resourceclaims ns/c":      "edit admin cluster-admin",
		"get :pods/exec ns/p":                             "edit admin cluster-admin",
		"create :pods/portforward ns/p":                   "edit admin cluster-admin",
		"get :secrets ns/s":                               "edit admin cluster-admin",
		"list :secrets ns":                                "edit admin cluster-admin",
		"list :pods ns":                                   "view edit admin cluster-admin",
		"create :pods ns":                                 "edit admin cluster-admin",
		"create :serviceaccounts/token ns/a":              "edit admin cluster-admin",
		"create rbac.authorization.k8s.io:rolebindings n": "admin cluster-admin",
		"update :resourcequotas ns/q":                     "cluster-admin",
		// The requests of the API server to a kubelet.
		"get :nodes":            "apiserver cluster-admin",
		"get :nodes/proxy n":    "apiserver cluster-admin",
		"create :nodes/proxy n": "apiserver cluster-admin",
		"get :nodes/healthz n":  "apiserver cluster-admin",
		"get :nodes/stats n":    "apiserver cluster-admin",
		"update :nodes n":       "cluster-admin",
		"escalate rbac.authorization.k8s.io:roles ns/r": "cluster-admin",
		"get /metrics":   "cluster-admin",
		"get /version":   "apiserver anybody nobody view edit admin cluster-admin",
		"get /apis/apps": "apiserver anybody view edit admin cluster-admin",
		"create authorization.k8s.io:selfsubjectaccessreviews": "apiserver anybody view edit admin cluster-admin",
	} {
		for name, u := range users {
			if got, reason := may(t, z, u, text); got != slices.Contains(strings.Fields(want), name) {
				t.Errorf("%s %s: %t %s", name, text, got, reason)
			}
		}
	}
}
