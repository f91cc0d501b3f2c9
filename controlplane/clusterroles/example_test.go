// Example: a role that is made of others.

package clusterroles_test

import (
	"context"
	"fmt"
	"log"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/controlplane/clusterroles"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// The role "view" gets the rules of the roles that have the label.
func ExampleController_Run() {
	label := map[string]string{"to-view": "true"}
	view := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}}
	view.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: label}}}
	part := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "read-shops", Labels: label}}
	part.Rules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"shops"}}}
	client := fake.NewClientset(view, part) // in place of a client of the API server
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := clusterroles.New(loop.Deps{Client: client, Informers: f}, clusterroles.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	written, err := client.RbacV1().ClusterRoles().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	f.Start(ctx.Done())
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()
	for w := range written.ResultChan() {
		if role := w.Object.(*rbacv1.ClusterRole); role.Name == view.Name && len(role.Rules) > 0 {
			fmt.Println(role.Name, role.Rules[0].Verbs, role.Rules[0].Resources)
			break
		}
	}
	written.Stop()
	cancel()
	fmt.Println(<-ran)
	f.Shutdown()
	// Output:
	// view [get] [shops]
	// <nil>
}
