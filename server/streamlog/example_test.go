// Example: the line of one stream.

package streamlog_test

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/streamlog"
)

// Config.Ended of a hub is the log's Ended; here the log is told of one stream directly.
func Example() {
	l, err := streamlog.New(streamlog.Config{Out: os.Stdout})
	if err != nil {
		log.Fatal(err)
	}
	l.Ended(server.Ended{
		Began: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC), Took: 1500 * time.Millisecond,
		Caller: "admin", Node: "node-1", Transport: "qmux", Target: "node-1:10250", ToNode: 120, FromNode: 4096,
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l.Run(ctx) // writes what waits, and returns since ctx is done
	// Output:
	// {"time":"2026-11-28T12:00:00Z","user":"admin","node":"node-1","target":"node-1:10250","transport":"qmux","seconds":1.5,"bytesToNode":120,"bytesFromNode":4096,"result":"ok"}
}
