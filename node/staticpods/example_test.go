// Example: a file that defines a pod.

package staticpods_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/node/staticpods"
)

// Another content is another pod. Without the file there is no pod.
func ExampleSource() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	src, err := staticpods.New(staticpods.Config{Path: dir, NodeName: "node-1"})
	if err != nil {
		log.Fatal(err)
	}
	file := filepath.Join(dir, "web.yaml")
	for _, program := range []string{"/bin/web", "/bin/web", "/bin/web2"} {
		manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: none, command: [" + program + "]}]}\n"
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			log.Fatal(err)
		}
		changed := src.Read() // Run does so regularly
		pods, complete := src.Pods()
		fmt.Println(changed, complete, pods[0].Name, pods[0].Spec.Containers[0].Command)
	}
	if err := os.Remove(file); err != nil {
		log.Fatal(err)
	}
	changed := src.Read()
	pods, complete := src.Pods()
	fmt.Println(changed, complete, len(pods))
	// Output:
	// true true web-node-1 [/bin/web]
	// false true web-node-1 [/bin/web]
	// true true web-node-1 [/bin/web2]
	// true true 0
}
