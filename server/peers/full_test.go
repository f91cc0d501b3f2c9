// Test of a session between servers that has no stream left.

package peers

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel/qmux"
)

// TestFullLink: a dial through another server whose session with this one has no stream left goes
// on to the next server with the node. A spare one leaves the last streams.
func TestFullLink(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	a, b, c := f.servers["a"], f.servers["b"], f.servers["c"]
	c.join("n", echo)
	a.knows("n", 1)
	b.join("n", echo) // the newest session is asked first
	a.knows("n", 2)
	link := a.peers.owners("n")[0]
	if n := link.session.Link().MaxStreams; link.peer.ID != "b" || n != MaxStreams {
		t.Fatalf("first is %s, with %d streams", link.peer.ID, n)
	}
	link.session.(*qmux.Session).SetMaxStreams(8) // one is that of b's sessions
	open := func(dial func(context.Context, string, string) (net.Conn, error), atB, atC int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		conn, err := dial(ctx, "tcp", "n:1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if b.hub.Open() != atB || c.hub.Open() != atC {
			t.Fatalf("%d streams at b and %d at c, want %d and %d", b.hub.Open(), c.hub.Open(), atB, atC)
		}
	}
	for i := range 6 {
		open(a.hub.DialSpare, i+1, 0)
	}
	open(a.hub.DialSpare, 6, 1)
	open(a.hub.DialContext, 7, 1)
	open(a.hub.DialContext, 7, 2)
}
