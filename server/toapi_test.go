package server

// Tests of the streams that agents open to the API server.

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// toAPI has the connections that reached the API server.
type toAPI struct{ conns chan net.Conn }

func (a toAPI) take(_ context.Context, c net.Conn) error { a.conns <- c; return nil }

// TestStreamsOfOneNode: a node has a bounded number of streams to the API server, in all its
// sessions together. Other nodes have theirs, and one that ends makes room.
func TestStreamsOfOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := toAPI{make(chan net.Conn, 1<<14)}
		b := newTestHub(t, Config{API: api.take})
		connect := func(x *testAgent) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := tunnel.Connect(ctx, x.session, "tcp", APIServer)
			return err
		}
		b.streams = 1 << 11
		first := b.mustConnect(tunnel.Hello{Node: "a", Instance: 1, Sequence: 1})
		for range maxAPIStreams - 10 {
			if err := connect(first); err != nil {
				t.Fatal(err)
			}
		}
		moved := b.mustConnect(tunnel.Hello{Node: "a", Instance: 1, Sequence: 2, Meta: tunnel.Meta{keepsKey: "1"}})
		for range 10 {
			if err := connect(moved); err != nil {
				t.Fatal(err)
			}
		}
		for _, x := range []*testAgent{first, moved} {
			if err := connect(x); !errors.Is(err, tunnel.Busy) {
				t.Errorf("one more: %v", err)
			}
		}
		if err := connect(b.mustConnect(one("b"))); err != nil {
			t.Errorf("of another node: %v", err)
		}
		synctest.Wait() // an agent is answered before the API server has the connection
		if n := len(api.conns); n != maxAPIStreams+1 {
			t.Errorf("%d connections", n)
		}
		_ = (<-api.conns).Close()
		if err := connect(moved); err != nil {
			t.Errorf("after one has ended: %v", err)
		}
		if err := connect(moved); !errors.Is(err, tunnel.Busy) {
			t.Errorf("and one more: %v", err)
		}
		synctest.Wait()
		_ = first.session.Close()
		_ = moved.session.Close()
		for len(api.conns) > 0 {
			_ = (<-api.conns).Close() // as an API server does
		}
		synctest.Wait()
		if n := len(b.hub.toAPI.open); n != 0 {
			t.Errorf("%d nodes have streams", n)
		}
	})
}

// TestStreamsWhileWaiting: the streams of a session whose agent has not answered reach the API
// server once it has, and not before.
func TestStreamsWhileWaiting(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			api := toAPI{make(chan net.Conn, 10)}
			b := newTestHub(t, Config{API: api.take})
			b.mustConnect(tunnel.Hello{Node: "a", Instance: 1, Sequence: 1})
			s, err := b.dial("a")
			if err != nil {
				t.Fatal(err)
			}
			control, _, err := tunnel.Greet(t.Context(), s, tunnel.Hello{Node: "a", Instance: 2, Sequence: 1})
			if err != nil {
				t.Fatal(err)
			}
			connected := make(chan error, 1)
			go func() {
				_, err := tunnel.Connect(t.Context(), s, "tcp", APIServer)
				connected <- err
			}()
			<-time.After(time.Second)
			if len(connected) > 0 || len(api.conns) > 0 {
				t.Fatalf("answered before the agent has: %d connections", len(api.conns))
			}
			if answers {
				go func() { _ = control.Run(t.Context(), nil) }()
			}
			if err := <-connected; (err == nil) != answers {
				t.Errorf("the agent answers %t: %v", answers, err)
			}
			synctest.Wait()
			if n := len(api.conns); (n == 1) != answers {
				t.Errorf("the agent answers %t: %d connections", answers, n)
			}
			_ = s.Close()
			for len(api.conns) > 0 {
				_ = (<-api.conns).Close()
			}
			synctest.Wait()
			if n := len(b.hub.toAPI.open); n != 0 {
				t.Errorf("%d nodes have streams", n)
			}
		})
	}
}

// TestStreamThatTheAPIServerRefuses: it counts no more.
func TestStreamThatTheAPIServerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{API: func(context.Context, net.Conn) error { return errors.New("it ends") }})
		x := b.mustConnect(one("a"))
		for range 2 * maxAPIStreams {
			st, err := tunnel.Connect(t.Context(), x.session, "tcp", APIServer) // it may be reset at once
			if errors.Is(err, tunnel.Busy) {
				t.Fatal(err)
			}
			if err == nil {
				_ = st.Close()
			}
		}
		synctest.Wait()
		if n := len(b.hub.toAPI.open); n != 0 {
			t.Errorf("%d nodes have streams", n)
		}
	})
}
