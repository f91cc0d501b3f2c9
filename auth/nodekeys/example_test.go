// Example: two machines want the name of one node.

package nodekeys_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// The first key takes the name, and the keeper admits no other key.
func Example() {
	client := fake.NewClientset() // in place of a client of the API server
	f := informers.NewSharedInformerFactory(client, 0)
	keeper, err := nodekeys.New(nodekeys.Config{Client: client, Nodes: f.Core().V1().Nodes().Informer()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Start(ctx.Done())
	ran := make(chan error, 1)
	go func() { ran <- keeper.Run(ctx) }()
	<-keeper.Ready()

	book := nodekeys.NewBook(client)                                                                    // the approver of certificates has one
	first, second := nodekeys.Key(sha256.Sum256([]byte("1"))), nodekeys.Key(sha256.Sum256([]byte("2"))) // KeyOf makes them of certificates
	for _, key := range []nodekeys.Key{first, second} {
		err := book.Claim(ctx, "node-1", key, "")
		var held *nodekeys.HeldError
		fmt.Println("claim:", err == nil, errors.As(err, &held))
		err = keeper.Admit(ctx, "node-1", key)
		var refused *nodekeys.RefusedError
		fmt.Println("admit:", err == nil, errors.As(err, &refused))
	}
	cancel()
	fmt.Println(<-ran)
	f.Shutdown()
	// Output:
	// claim: true false
	// admit: true false
	// claim: false true
	// admit: false true
	// <nil>
}
