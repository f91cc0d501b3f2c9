package server

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

type traceKey struct{}

// Config.Dialed is called once for each dial, with its context, also for one whose outcome
// is known only after the dial has returned.
func TestDialedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []Dialed
		b := newTestHub(t, Config{Dialed: func(ctx context.Context, d Dialed) {
			if ctx.Value(traceKey{}) != d.Addr {
				t.Errorf("%s: the context is another's", d.Addr)
			}
			if d.Began.After(time.Now()) || d.Took < 0 {
				t.Errorf("%s: began %v, took %v", d.Addr, d.Began, d.Took)
			}
			d.Began, d.Took, d.Transport = time.Time{}, 0, ""
			told = append(told, d)
		}})
		b.mustConnect(one("n"))
		with := func(addr string) context.Context { return context.WithValue(t.Context(), traceKey{}, addr) }
		c, err := b.hub.DialContext(with("n:1"), "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		if c, err = b.hub.DialEarly(with("n:2"), "tcp", "n:2"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, len("n:2"))); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		_ = c.Close()
		if _, err := b.hub.DialEarly(with("m:1"), "tcp", "m:1"); err == nil {
			t.Error("a node that is not there was reached")
		}
		synctest.Wait()
		want := []Dialed{{Addr: "n:1", Node: "n", Code: "ok"}, {Addr: "n:2", Node: "n", Code: "ok"}, {Addr: "m:1", Node: "m", Code: "no_node"}}
		if len(told) != len(want) {
			t.Fatalf("told %+v", told)
		}
		for i := range want {
			if told[i] != want[i] {
				t.Errorf("told %+v, want %+v", told[i], want[i])
			}
		}
	})
}

// BenchmarkDialed is the cost of a dial without and with Config.Dialed.
func BenchmarkDialed(b *testing.B) {
	for name, f := range map[string]func(context.Context, Dialed){"nobody": nil, "somebody": func(context.Context, Dialed) {}} {
		b.Run(name, func(b *testing.B) {
			h, err := New(Config{Dialed: f, Listeners: []tunnel.Listener{new(tunneltest.Exchange).Listen("hub")}})
			if err != nil {
				b.Fatal(err)
			}
			w, began := way{transport: "qmux", node: "n"}, time.Now()
			b.ReportAllocs()
			for b.Loop() {
				h.dialed(b.Context(), w, "n:1", began, nil)
			}
		})
	}
}
