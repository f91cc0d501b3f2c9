// Example: a node gets its range of addresses.

package nodeipam_test

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/nodeipam"
)

// A block that another node has is not given away.
func ExampleController_Run() {
	named := func(name, block string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if block != "" {
			n.Spec = corev1.NodeSpec{PodCIDR: block, PodCIDRs: []string{block}}
		}
		return n
	}
	client := fake.NewClientset(named("node-1", "10.0.0.0/24"), named("node-2", "")) // in place of a client of the API server
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := nodeipam.New(loop.Deps{Client: client, Informers: f}, nodeipam.Config{Allocate: true, ClusterCIDR: "10.0.0.0/22"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	written, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	f.Start(ctx.Done())
	ran := make(chan error, 1)
	go func() { ran <- c.Run(ctx) }()
	for w := range written.ResultChan() {
		if n := w.Object.(*corev1.Node); n.Name == "node-2" && n.Spec.PodCIDR != "" {
			fmt.Println(n.Name, n.Spec.PodCIDRs)
			break
		}
	}
	written.Stop()
	cancel()
	fmt.Println(<-ran)
	f.Shutdown()
	// Output:
	// node-2 [10.0.1.0/24]
	// <nil>
}
