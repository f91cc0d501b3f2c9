package process

// How exec'd commands and attachments end: their last output, and a caller that goes.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

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

// TestExecHangUp: a command with a terminal whose caller is gone is told so before it is killed, and
// what is left of its process group is killed with it.
func TestExecHangUp(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		id := g.idle("c")
		file := "/tmp/hung-up" // in the container
		if iso == None {
			file = filepath.Join(t.TempDir(), "hung-up")
		}
		for _, tt := range []struct{ name, script, then string }{
			{"trap", "trap 'sleep 0.2; echo >" + file + "; exit' HUP; echo ready; while :; do sleep 0.05; done", "until test -e " + file},
			{"ignored", "trap '' TERM HUP PIPE; sleep 12345 & echo ready; wait", `while ps | grep -q "sleep [1]2345"`},
			{"ignored by a child", "(trap '' HUP; exec sleep 12346) & sleep 0.2; echo ready; wait", `while ps | grep -q "sleep [1]2346"`},
		} {
			t.Run(tt.name, func(t *testing.T) {
				ctx, cancel := context.WithCancel(g.ctx)
				defer cancel()
				_, err := g.Exec(ctx, id, []string{"sh", "-c", tt.script}, runtime.Stdio{Out: &until{text: "ready\r\n", found: cancel}, TTY: true})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("err %v", err)
				}
				script := `ps() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '; }; ` + tt.then + "; do sleep 0.01; done"
				var out bytes.Buffer
				if code, err := g.Exec(g.ctx, id, []string{"timeout", "10", "sh", "-c", script}, runtime.Stdio{Err: &out}); err != nil || code != 0 {
					t.Errorf("code %d, err %v, %q", code, err, out.String())
				}
			})
		}
	})
}

// Clients whose input has ended count while they have output to read.
func TestAttachLimitBesideSlow(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	c := g.container("c", "(while :; do echo tick; sleep 0.05; done) & read x; seq 20000; echo all; wait")
	c.Stdin = true
	id := g.start(c)
	open := make(chan struct{})
	ctx, cancel := context.WithCancel(g.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer close(open)
	var all []*io.PipeWriter
	for range maxAttached {
		in, keys := io.Pipe()
		all = append(all, keys)
		slow := &blockingWriter{open: open, started: make(chan struct{})}
		wg.Go(func() { _ = g.Attach(ctx, id, runtime.Stdio{In: in, Out: slow}) })
		<-slow.started
	}
	_, _ = io.WriteString(all[0], "go\n")
	g.waitLog(id, "\nall\n")
	for _, keys := range all {
		_ = keys.Close()
	}
	for range 20 { // they leave one by one, if they do
		if err := g.Attach(g.ctx, id, runtime.Stdio{In: strings.NewReader("")}); err == nil || !strings.Contains(err.Error(), "too many clients") {
			t.Fatalf("one too many: %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
}
