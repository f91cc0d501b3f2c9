package controlplane

// A test of quotas against a real API server with real roles: somebody who may do much,
// but not in the same namespace.

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/hawser-project/hawser/auth/pki"
)

// someone is alice, who may edit namespace a, and write quotas in namespace b.
func (c workload) someone() *kubernetes.Clientset {
	ctx := c.t.Context()
	must := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}}
	for _, ns := range []string{"a", "b"} {
		_, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		must(err)
	}
	_, err := c.admin.RbacV1().RoleBindings("a").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
	}, metav1.CreateOptions{})
	must(err)
	_, err = c.admin.RbacV1().Roles("b").Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "quotas"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"resourcequotas"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{})
	must(err)
	_, err = c.admin.RbacV1().RoleBindings("b").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "quotas"},
	}, metav1.CreateOptions{})
	must(err)
	conf := c.as(c.keys, pki.Admin)
	conf.Impersonate.UserName = "alice"
	alice := c.client(conf)
	c.becomes("", func() string {
		_, err := alice.CoreV1().Pods("a").List(ctx, metav1.ListOptions{})
		_, also := alice.CoreV1().ResourceQuotas("b").List(ctx, metav1.ListOptions{})
		if err == nil {
			err = also
		}
		return text(err)
	})
	return alice
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// used is what a quota has in use of a resource.
func (c workload) used(ns, quota string, name corev1.ResourceName) string {
	q, err := c.admin.CoreV1().ResourceQuotas(ns).Get(c.t.Context(), quota, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	used, ok := q.Status.Used[name]
	if !ok {
		return "unknown"
	}
	return used.String()
}

func quotaOf(name string, hard map[corev1.ResourceName]string) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for r, amount := range hard {
		q.Spec.Hard[r] = resource.MustParse(amount)
	}
	return q
}

func TestResourceQuotas(t *testing.T) {
	c := workload{startCluster(t)}
	ctx, alice := t.Context(), c.someone()
	// A namespace has one config map from the beginning: the authority.
	q, err := c.admin.CoreV1().ResourceQuotas("a").Create(ctx, quotaOf("q", map[corev1.ResourceName]string{"pods": "1", "configmaps": "2", "count/secrets": "1"}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = alice.CoreV1().ResourceQuotas("b").Create(ctx, quotaOf("q", map[corev1.ResourceName]string{"pods": "9", "configmaps": "9"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("0 1 0", func() string {
		return strings.Join([]string{c.used("a", "q", "pods"), c.used("a", "q", "configmaps"), c.used("a", "q", "count/secrets")}, " ")
	})
	c.becomes("0", func() string { return c.used("b", "q", "pods") })
	c.notHers(t, alice, q)
	pod := func(name string) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podTemplate(nil, corev1.RestartPolicyNever).Spec}
		p.Spec.NodeName = "" // nor is there one
		_, err := alice.CoreV1().Pods("a").Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	config := func(name string) error {
		_, err := alice.CoreV1().ConfigMaps("a").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	c.becomes("", func() string { return text(pod("p0")) }) // the server may still hold the status for unknown
	if err := pod("p1"); !apierrors.IsForbidden(err) || !strings.Contains(text(err), "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1") {
		t.Errorf("a pod too many: %v", err)
	}
	if err := config("m0"); err != nil {
		t.Error(err)
	}
	if err := config("m1"); !apierrors.IsForbidden(err) {
		t.Errorf("a config map too many: %v", err)
	}
	// What ends or goes gives room to the next.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p, err := c.admin.CoreV1().Pods("a").Get(ctx, "p0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Status.Phase = corev1.PodSucceeded
		_, err = c.admin.CoreV1().Pods("a").UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c.becomes("", func() string { return text(pod("p1")) })
	if err := alice.CoreV1().ConfigMaps("a").Delete(ctx, "m0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("", func() string { return text(config("m1")) })
	c.becomes("1 2", func() string { return c.used("a", "q", "pods") + " " + c.used("a", "q", "configmaps") })
}

// notHers: a quota of hers in one namespace does not let her touch that of another, nor
// the status of either.
func (c workload) notHers(t *testing.T, alice *kubernetes.Clientset, q *corev1.ResourceQuota) {
	ctx := t.Context()
	q = q.DeepCopy()
	q.ResourceVersion = ""
	if _, err := alice.CoreV1().ResourceQuotas("a").Update(ctx, q, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a quota: %v", err)
	}
	if err := alice.CoreV1().ResourceQuotas("a").Delete(ctx, "q", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a quota: %v", err)
	}
	for _, ns := range []string{"a", "b"} {
		if _, err := alice.CoreV1().ResourceQuotas(ns).UpdateStatus(ctx, q, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the status of one in %s: %v", ns, err)
		}
	}
}
