// Example: a file that is replaced.

package atomicfile_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

// A reader finds the old content or the new one.
func ExampleWrite() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	path := filepath.Join(dir, "token")
	for _, content := range []string{"old", "new"} {
		if err := atomicfile.Write(path, []byte(content), 0o600); err != nil {
			log.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	fmt.Println(string(content), err)
	// Output: new <nil>
}
