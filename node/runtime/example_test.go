// Example: the life of one container.

package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// The status of a container is kept until the container is removed.
func ExampleRuntime() {
	var rt runtime.Runtime = memory.New(memory.Options{}) // a node has a *process.Runtime
	ctx := context.Background()
	pod := runtime.PodID{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}, UID: "1"}
	if _, err := rt.EnsureSandbox(ctx, runtime.Sandbox{Pod: pod}); err != nil {
		log.Fatal(err)
	}
	id, err := rt.Start(ctx, runtime.Container{Pod: pod, Name: "main", Argv: []string{"/bin/web"}})
	if err != nil {
		log.Fatal(err)
	}
	show := func(step string) {
		list, failed := rt.Containers(ctx)
		if failed != nil {
			log.Fatal(failed)
		}
		fmt.Print(step)
		for _, c := range list {
			fmt.Print(" ", c.Pod, " ", c.Name, " ", c.State)
		}
		fmt.Println()
	}
	show("started:")
	if err = rt.Stop(ctx, id, 30*time.Second); err != nil {
		log.Fatal(err)
	}
	show("stopped:")
	_, err = rt.Exec(ctx, id, []string{"/bin/sh"}, runtime.Stdio{})
	fmt.Println("exec:", errors.Is(err, runtime.ErrNotRunning))
	if err = errors.Join(rt.Remove(ctx, id), rt.RemoveSandbox(ctx, pod)); err != nil {
		log.Fatal(err)
	}
	show("removed:")
	// Output:
	// started: shop/web main running
	// stopped: shop/web main exited
	// exec: true
	// removed:
}
