// Example: one line of a log.

package crilog_test

import (
	"fmt"

	"github.com/hawser-project/hawser/node/runtime/crilog"
)

// A line is read and written in the CRI's format.
func ExampleParse() {
	line, err := crilog.Parse([]byte("2026-01-02T15:04:05.000000000Z stderr P half a sente"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(line.Stream, line.Partial, string(line.Text))
	fmt.Print(string(line.Append(nil)))
	// Output:
	// stderr true half a sente
	// 2026-01-02T15:04:05.000000000Z stderr P half a sente
}
