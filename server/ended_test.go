package server

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// Each ended stream and each failed dial is reported once: its caller, its target, its
// duration, its bytes and how it ended.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan Ended, 16)
		b := newTestHub(t, Config{Ended: func(e Ended) { ended <- e }})
		b.mustConnect(one("node-1"))
		b.hub.SetRoutes("node-1", prefixes("10.0.0.1")...)
		ctx := auth.WithCaller(t.Context(), auth.Caller{Name: "jane"})
		const addr = "10.0.0.1:80"
		dial := func(ctx context.Context, addr string) tunnel.Stream {
			t.Helper()
			c, err := b.hub.DialContext(ctx, "tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			return c.(tunnel.Stream)
		}
		talk := func(c tunnel.Stream) {
			t.Helper()
			if _, err := io.WriteString(c, "hello"); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(c); err != nil || string(got) != addr+"\nhello" {
				t.Errorf("%q, %v", got, err)
			}
		}
		check := func(what string, want Ended, code tunnel.Code) {
			t.Helper()
			e := <-ended
			if tunnel.CodeOf(e.Err) != code {
				t.Errorf("%s: ended by %v, want %v", what, e.Err, code)
			}
			if e.Began.IsZero() {
				t.Errorf("%s: no time", what)
			}
			if e.Began, e.Err = want.Began, nil; e != want {
				t.Errorf("%s:\n%+v, want\n%+v", what, e, want)
			}
		}
		carried := Ended{Took: time.Minute, Caller: "jane", Node: "node-1", Transport: "memory", Target: addr, ToNode: 5, FromNode: 17}
		c := dial(ctx, addr)
		talk(c)
		_, _ = c.Close(), c.Close()
		check("closed", carried, 0)
		c = dial(ctx, addr)
		talk(c)
		_, _ = tunnel.Abort(c), c.Close()
		check("aborted", carried, tunnel.Canceled)
		early, err := b.hub.DialEarly(ctx, "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		talk(early.(tunnel.Stream))
		_ = early.Close()
		check("early", carried, 0)

		if _, err := b.hub.DialContext(ctx, "tcp", "node-7:1"); err == nil {
			t.Error("reached a node that is not there")
		}
		check("no such node", Ended{Caller: "jane", Node: "node-7", Transport: "none", Target: "node-7:1"}, tunnel.NoNode)

		_ = dial(auth.WithCaller(ctx, auth.Caller{Own: true}), addr).Close()
		c = dial(t.Context(), addr)
		_ = b.last().Close()
		synctest.Wait()
		if _, err := io.ReadAll(c); err == nil {
			t.Error("a stream outlived its session")
		}
		_ = c.Close()
		e := <-ended // and none of the server's own
		if e.Caller != "" || e.Node != "node-1" || e.Err == nil {
			t.Errorf("cut off: %+v", e)
		}
		if len(ended) > 0 {
			t.Errorf("told of more: %+v", <-ended)
		}
	})
}

// BenchmarkConnUnaudited is the cost of a write without Config.Ended; compare with
// BenchmarkConnAudited.
func BenchmarkConnUnaudited(b *testing.B) { benchmarkConn(b, false) }

func BenchmarkConnAudited(b *testing.B) { benchmarkConn(b, true) }

func benchmarkConn(b *testing.B, on bool) {
	c := new(traffic).track(openerServer, nowhere{}, tunnel.Addr("n:1"))
	var w io.Writer = c
	if on {
		w = audited(c, Ended{}, func(Ended) {})
	}
	p := make([]byte, 1<<10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}

// nowhere discards all writes.
type nowhere struct{ tunnel.Stream }

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
