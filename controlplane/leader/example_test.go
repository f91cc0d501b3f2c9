// Example: a process that leads until it is stopped.

package leader_test

import (
	"context"
	"fmt"
	"log"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/controlplane/leader"
)

// The Lease has a holder while the process leads. Afterwards it is free.
func ExampleElector_Run() {
	client := fake.NewClientset() // in place of a client of the API server
	e, err := leader.New(leader.Config{Client: client, Identity: "server-1"})
	if err != nil {
		log.Fatal(err)
	}
	holder := func() string {
		lease, missing := client.CoordinationV1().Leases(leader.DefaultNamespace).Get(context.Background(), leader.DefaultName, metav1.GetOptions{})
		if missing != nil {
			log.Fatal(missing)
		}
		return *lease.Spec.HolderIdentity
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = e.Run(ctx, func(ctx context.Context) error {
		fmt.Printf("leads: %q\n", holder())
		cancel() // the process is asked to stop
		<-ctx.Done()
		return nil
	})
	fmt.Println("ended:", err)
	fmt.Printf("left: %q\n", holder())
	// Output:
	// leads: "server-1"
	// ended: <nil>
	// left: ""
}
