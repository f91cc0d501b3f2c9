// Example: a directory for keys.

package privatedir_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	"github.com/hawser-project/hawser/auth/privatedir"
)

// A directory that others may enter is refused, and not changed.
func Example() {
	tmp, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // nothing depends on it
	dir := filepath.Join(tmp, "state", "keys")
	fmt.Println(errors.Is(privatedir.Check(dir), fs.ErrNotExist))
	fmt.Println(privatedir.Make(dir), privatedir.Check(dir))
	if err := os.Chmod(dir, 0o755); err != nil {
		log.Fatal(err)
	}
	fmt.Println(privatedir.Make(dir) != nil)
	// Output:
	// true
	// <nil> <nil>
	// true
}
