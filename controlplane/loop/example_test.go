// Example: a queue that retries.

package loop_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A key whose Reconcile fails is tried again with back-off.
func ExampleQueue() {
	ctx, cancel := context.WithCancel(context.Background())
	tries := 0
	q := loop.NewQueue(loop.Config[string]{
		Name: "example", MinDelay: time.Millisecond, Workers: 1,
		Do: func(_ context.Context, key string) (again time.Duration, err error) {
			tries++
			fmt.Println(key, tries)
			if tries < 3 {
				return 0, errors.New("the API server cannot be reached")
			}
			cancel()
			return 0, nil
		},
	})
	q.Add("shop/web")
	q.Add("shop/web") // the queue has it already
	fmt.Println(loop.Together(ctx, q.Run))
	// Output:
	// shop/web 1
	// shop/web 2
	// shop/web 3
	// <nil>
}
