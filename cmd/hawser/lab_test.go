// Tests of hawser lab.

package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/cmd/lab"
)

// TestLabPlanChangesNothing: a plan, and a script that names no node, leave the faults of another
// script as they are.
func TestLabPlanChangesNothing(t *testing.T) {
	if err := lab.CheckFaults(); err != nil {
		t.Skip("SKIPPED:", err)
	}
	dir := t.TempDir()
	l, err := lab.New(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	n, err := l.AddNode(t.Context(), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(l.HostIP(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := n.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"at 1s rebind node-1": "", "at 1s rebind node-9": `there is no node "node-9"`} {
		script, err := lab.ParseScript(text)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		clitest.Refused(t, runScript(t.Context(), &out, dir, script, want == ""), want)
		if want == "" && !strings.Contains(out.String(), "rebind") {
			t.Errorf("the plan: %q", out.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if c, err := n.Dial(ctx, "tcp", ln.Addr().String()); err == nil {
			_ = c.Close()
			t.Errorf("%s: the cut is healed", text)
		}
		cancel()
	}
}
