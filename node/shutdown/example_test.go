// Example: a machine without a D-Bus.

package shutdown_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-project/hawser/node/shutdown"
)

// The watcher logs that no shutdown will be noticed, and keeps trying.
func ExampleWatcher_Run() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	const bus = "DBUS_SYSTEM_BUS_ADDRESS"
	before := os.Getenv(bus)
	defer func() { _ = os.Setenv(bus, before) }() // only the name could be wrong
	if err = os.Setenv(bus, "unix:path="+filepath.Join(dir, "none")); err != nil {
		log.Fatal(err)
	}
	lines, w := io.Pipe()
	watcher, err := shutdown.New(shutdown.Config{
		Delay:  30 * time.Second,
		Begin:  func(ctx context.Context) { fmt.Println("ends the pods") },
		Cancel: func() { fmt.Println("admits pods again") },
		DropIn: filepath.Join(dir, "99-kubelet.conf"),
		Log:    slog.New(slog.NewTextHandler(w, nil)),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watcher.Run(ctx)
	}()
	line, err := bufio.NewReader(lines).ReadString('\n')
	fmt.Println(strings.Contains(line, "its shutdown does not wait for pods"), err)
	_ = lines.Close() // a log that nobody reads must not hold the watcher
	cancel()
	<-ended
	// Output: true <nil>
}
