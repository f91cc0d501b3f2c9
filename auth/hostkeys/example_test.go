// Example: a key is compared, then pinned.

package hostkeys_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/hawser-project/hawser/auth/hostkeys"
)

// An administrator pins a node's key once the node itself shows the same fingerprint.
func Example() {
	keys, err := hostkeys.Scan(context.Background(), "192.0.2.1:22", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("compare with ssh-keygen -lf on the node:", keys[0].Fingerprint())
	file, err := hostkeys.Open("/var/lib/hawser/ssh_known_hosts", slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	if err := file.Pin("node-1", keys[0]); err != nil {
		log.Fatal(err)
	}
}
