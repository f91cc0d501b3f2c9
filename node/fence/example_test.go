// Example: work that stops while another agent serves the node.

package fence_test

import (
	"context"
	"fmt"

	"github.com/hawser-project/hawser/node/fence"
)

// Work is begun again once the fence is down.
func ExampleFence_While() {
	var f fence.Fence
	ctx, cancel := context.WithCancel(context.Background())
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		f.While(ctx, func(ctx context.Context) {
			begun <- struct{}{}
			<-ctx.Done()
		})
	}()
	<-begun
	f.Set(true)
	fmt.Println("up:", f.Up())
	f.Set(false)
	<-begun
	fmt.Println("up:", f.Up())
	cancel()
	<-ended
	// Output:
	// up: true
	// up: false
}
