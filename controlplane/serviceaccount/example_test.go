// Example: a namespace gets its service account.

package serviceaccount_test

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/serviceaccount"
)

// The controller makes the account in each namespace that is active.
func ExampleController_Run() {
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	client := fake.NewClientset(shop) // in place of a client of the API server
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := serviceaccount.New(loop.Deps{Client: client, Informers: f}, serviceaccount.Config{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	written, err := client.CoreV1().ServiceAccounts("shop").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	f.Start(ctx.Done())
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()
	w := <-written.ResultChan()
	account := w.Object.(*corev1.ServiceAccount)
	fmt.Println(w.Type, account.Namespace, account.Name)
	written.Stop()
	cancel()
	fmt.Println(<-ran)
	f.Shutdown()
	// Output:
	// ADDED shop default
	// <nil>
}
