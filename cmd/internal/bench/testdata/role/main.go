// Command role plays a role of a comparison, as hawser bench serve does. The tests build it
// without the race detector, which makes a process that measures cost ten times as much.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hawser-project/hawser/cmd/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := bench.Serve(ctx, os.Args[1], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
