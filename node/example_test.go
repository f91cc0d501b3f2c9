// Example: a node registers itself.

package node_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// The node creates its object, with labels and a status.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	api := apiclienttest.From(fake.NewSimpleClientset())
	n, err := node.New(node.Config{
		Name: "node-1", API: api, Runtime: memory.New(memory.Options{}), DataDir: dir, Version: "v1.37.2",
		Labels: map[string]string{"example.com/rack": "7"}, IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	written, err := api.Nodes.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- n.Run(ctx) }()
	created := (<-written.ResultChan()).Object.(*corev1.Node)
	fmt.Println(created.Name, created.Labels["example.com/rack"], created.Status.Addresses[0].Address)
	for _, c := range created.Status.Conditions {
		if c.Type == corev1.NodeReady {
			fmt.Println(c.Type, c.Status)
		}
	}
	written.Stop()
	cancel()
	fmt.Println(<-ran)
	// Output:
	// node-1 7 192.0.2.1
	// Ready True
	// <nil>
}
