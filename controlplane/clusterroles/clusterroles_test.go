package clusterroles

// Tests of what becomes of a role that is made of others, in fake time.

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// part is a ClusterRole of one rule a verb.
func part(name string, labels map[string]string, verbs ...string) *rbacv1.ClusterRole {
	r := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	for _, v := range verbs {
		r.Rules = append(r.Rules, rbacv1.PolicyRule{Verbs: []string{v}, APIGroups: []string{""}, Resources: []string{"pods"}})
	}
	return r
}

func TestAggregation(t *testing.T) {
	to := func(names ...string) map[string]string {
		labels := map[string]string{}
		for _, n := range names {
			labels["to-"+n] = "true"
		}
		return labels
	}
	whole := func(name string, verbs ...string) *rbacv1.ClusterRole {
		r := part(name, to("view", "all"), verbs...) // it selects itself, too
		r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: to(name)}, {MatchLabels: to("more")}}}
		return r
	}
	synctest.Test(t, func(t *testing.T) {
		broken := whole("broken", "keep")
		broken.Labels = nil
		broken.AggregationRule.ClusterRoleSelectors[0].MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Nonsense"}}
		client, _, err := apitest.New(
			whole("view", "stale"), broken, part("b", to("view"), "get", "list"), part("a", to("view", "more"), "watch", "get"), part("other", nil, "delete"),
		)
		if err != nil {
			t.Fatal(err)
		}
		_, stop := apitest.Start(t, client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: client, Informers: f}, Config{})
		})
		defer stop()
		roles := client.RbacV1().ClusterRoles()
		has := func(name, want string) {
			t.Helper()
			<-time.After(time.Second)
			synctest.Wait()
			r, err := roles.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, rule := range r.Rules {
				got += fmt.Sprint(rule.Verbs)
			}
			if got != want {
				t.Errorf("%s has %s, want %s", name, got, want)
			}
		}
		has("view", "[watch][get][list]")
		has("broken", "[keep]")
		has("other", "[delete]")
		update := func(r *rbacv1.ClusterRole) {
			t.Helper()
			was, err := roles.Get(t.Context(), r.Name, metav1.GetOptions{})
			if err == nil {
				was.Labels, was.Rules, was.AggregationRule = r.Labels, r.Rules, r.AggregationRule
				_, err = roles.Update(t.Context(), was, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := roles.Create(t.Context(), part("c", to("view"), "patch"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		has("view", "[watch][get][list][patch]")
		update(part("b", nil, "get", "list"))
		has("view", "[watch][get][patch]")
		if err := roles.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		has("view", "[patch]")
		update(whole("view", "delete"))
		has("view", "[patch]") // what somebody writes into it does not stay
	})
}
