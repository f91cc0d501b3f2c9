package process

// How exec'd commands end: their last output, and a caller that goes.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/hawser-project/hawser/node/runtime"
)

// TestExecDrain: who asks for it gets the output of processes that outlive the command, until the
// last has closed its output or the caller is gone.
func TestExecDrain(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		id := g.idle("c")
		var out, errw bytes.Buffer
		argv := []string{"sh", "-c", "(sleep 0.3; echo late; echo later >&2) & echo early; exit 3"}
		code, err := g.Exec(g.ctx, id, argv, runtime.Stdio{Out: &out, Err: &errw, Drain: true})
		if err != nil || code != 3 || out.String() != "early\nlate\n" || errw.String() != "later\n" {
			t.Errorf("code %d, err %v, out %q, err %q", code, err, out.String(), errw.String())
		}
		// The command has ended when its background process says so.
		outlived := `(while kill -0 $$; do sleep 0.01; done 2>/dev/null; echo alone; trap '' TERM; exec sleep 1000) & exit 0`
		ctx, cancel := context.WithCancel(g.ctx)
		defer cancel()
		_, err = g.Exec(ctx, id, []string{"sh", "-c", outlived}, runtime.Stdio{Out: &until{text: "alone\n", found: cancel}, Err: io.Discard, Drain: true})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("caller gone: %v", err)
		}
		gone := errors.New("gone")
		_, err = g.Exec(g.ctx, id, []string{"sh", "-c", outlived}, runtime.Stdio{Out: failing{gone}, Err: io.Discard, Drain: true})
		if !errors.Is(err, gone) {
			t.Errorf("broken output: %v", err)
		}
		// The end of the container is the end of the output.
		out.Reset()
		ended := &until{text: "alone\n", found: func() {
			if err := g.Stop(g.ctx, id, 0); err != nil {
				t.Error(err)
			}
		}}
		if code, err = g.Exec(g.ctx, id, []string{"sh", "-c", outlived}, runtime.Stdio{Out: ended, Drain: true}); err != nil || code != 0 {
			t.Errorf("container ended: code %d, err %v", code, err)
		}
	})
}
