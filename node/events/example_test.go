// Example: an event that is repeated.

package events_test

import (
	"context"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/node/events"
)

// Repetitions are counted in one object.
func Example() {
	core := fake.NewClientset().CoreV1() // in place of a client of the API server
	ctx, cancel := context.WithCancel(context.Background())
	written, err := core.Events("shop").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	r := events.New(events.Config{Host: "node-1", Sink: func(namespace string) events.Sink { return core.Events(namespace) }})
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	pod := corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web", UID: "1"}
	for range 2 {
		r.Event(pod, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container")
		w := <-written.ResultChan()
		e := w.Object.(*corev1.Event)
		fmt.Println(w.Type, e.InvolvedObject.Name, e.Reason, e.Count, e.Source.Host)
	}
	written.Stop()
	cancel()
	fmt.Println(<-ran)
	// Output:
	// ADDED web BackOff 1 node-1
	// MODIFIED web BackOff 2 node-1
	// <nil>
}
