// Example: a pod that is bound to the node.

package pods_test

import (
	"context"
	"fmt"
	"log"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node/events"
	"github.com/hawser-project/hawser/node/pods"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// The runner starts the containers and writes the status.
func ExampleRunner_Run() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}}
	pod.Spec = corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main", Image: "none", Command: []string{"/bin/web"}}}}
	client := fake.NewSimpleClientset(pod)
	api, rt := apiclienttest.From(client), memory.New(memory.Options{SandboxIPs: []string{"192.0.2.1"}})
	r, err := pods.New(pods.Config{
		NodeName: "node-1", API: api, Runtime: rt, Dir: dir,
		Events: events.New(events.Config{Host: "node-1", Sink: func(namespace string) events.Sink { return api.Events(namespace) }}),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	written, err := api.Pods("shop").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	for w := range written.ResultChan() {
		if s := w.Object.(*corev1.Pod).Status; s.Phase == corev1.PodRunning {
			fmt.Println(s.Phase, s.PodIP)
			break
		}
	}
	written.Stop()
	cancel()
	fmt.Println(<-ran, rt.Calls())
	// Output:
	// Running 192.0.2.1
	// <nil> [start web/main#0]
}
