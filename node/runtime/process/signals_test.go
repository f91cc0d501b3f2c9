package process

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/node/runtime"
)

// TestSignalsOfProcessOne: who signals process 1 of a container means its command, such as a server
// that reads its configuration anew. The command alone gets the signal, and the container goes on.
func TestSignalsOfProcessOne(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		if iso == None {
			return // process 1 is the machine's
		}
		g := newRig(t, Config{Isolation: iso})
		names := []string{"HUP", "INT", "QUIT", "ABRT", "USR1", "USR2", "WINCH"}
		var script strings.Builder
		for _, name := range names {
			fmt.Fprintf(&script, "trap 'echo got %s' %s; ", name, name)
		}
		// A child that gets one too is ended by it.
		script.WriteString("sleep 1000 & child=$!; echo started; while kill -0 $child; do sleep 0.02; done; echo lost a child")
		id := g.start(g.container("c", script.String()))
		g.waitLog(id, "started")
		for _, name := range names {
			if code, err := g.Exec(g.ctx, id, []string{"sh", "-c", "kill -" + name + " 1"}, runtime.Stdio{}); err != nil || code != 0 {
				t.Errorf("kill -%s: %d, %v", name, code, err)
			}
			g.waitLog(id, "got "+name)
		}
		if log := g.log(id); strings.Contains(log, "lost a child") {
			t.Errorf("log %q", log)
		}
	})
}
