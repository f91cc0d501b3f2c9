// Example: a container that ends by itself.

package memory_test

import (
	"context"
	"fmt"
	"log"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// A test ends a container, and the user of the runtime is told.
func ExampleRuntime_Exit() {
	rt := memory.New(memory.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	pod := runtime.PodID{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}, UID: "1"}
	if _, err := rt.EnsureSandbox(ctx, runtime.Sandbox{Pod: pod}); err != nil {
		log.Fatal(err)
	}
	if _, err := rt.Start(ctx, runtime.Container{Pod: pod, Name: "main", Argv: []string{"/bin/web"}}); err != nil {
		log.Fatal(err)
	}
	changed, ended := make(chan runtime.PodID), make(chan error, 1)
	go func() { ended <- rt.Watch(ctx, changed) }()
	fmt.Println("has containers:", <-changed)
	fmt.Println("running:", rt.Exit("web", "main", 3))
	fmt.Println("changed:", <-changed)
	list, err := rt.Containers(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(list[0].State, list[0].ExitCode)
	cancel()
	<-ended
	fmt.Println(rt.Calls(), rt.Violations())
	// Output:
	// has containers: shop/web
	// running: true
	// changed: shop/web
	// exited 3
	// [start web/main#0] <nil>
}
