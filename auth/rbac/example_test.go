// Example: a user with the role "view" in one namespace.

package rbac_test

import (
	"context"
	"fmt"
	"log"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/rbac"
)

// Rules only allow. What no rule allows gets no opinion, and the API server refuses it.
func ExampleAuthorizer_Authorize() {
	client := fake.NewClientset(
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "view"},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "readers"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "ann"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		})
	f := informers.NewSharedInformerFactory(client, 0)
	var z rbac.Authorizer
	if err := z.Use(f); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	for _, namespace := range []string{"shop", "bank"} {
		decision, reason, err := z.Authorize(ctx, authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "ann"}, Verb: "get", Namespace: namespace, Resource: "pods", ResourceRequest: true,
		})
		fmt.Println(namespace, decision == authorizer.DecisionAllow, reason, err)
	}
	cancel()
	f.Shutdown()
	// Output:
	// shop true RBAC: allowed by RoleBinding "readers/shop" of ClusterRole "view" <nil>
	// bank false  <nil>
}
