// What is heard of an end that reads no more.

package tunneltest

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// RunHeardToTheEnd tests that a target that has said all and closes, without having read all that it
// was sent, is heard to the end by a client that goes on writing. It is for transports that
// tell whoever writes that nobody reads; yamux does so by a reset after a minute.
func RunHeardToTheEnd(t *testing.T, pair Make) {
	t.Helper()
	a, b := pair(t, tunnel.Options{})
	for range 3 {
		near, far := streams(t, a, b)
		client, front := TCPPair(t)
		var wg sync.WaitGroup
		spliced := make(chan error, 1)
		wg.Go(func() {
			_, err := tunnel.Splice(t.Context(), front, near)
			spliced <- err
		})
		want := bytes.Repeat([]byte("the last words "), 20_000)
		if _, err := client.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			_, _ = far.Write(want) // what is missing shows
			_ = far.Close()
		})
		wg.Go(func() { // until nothing takes it any more, or much more than there is room for
			for range 1000 {
				if _, err := client.Write(make([]byte, 16<<10)); err != nil {
					return
				}
			}
			_ = tunnel.CloseWrite(client)
		})
		if got, err := io.ReadAll(client); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes of %d came: %v", len(got), len(want), err)
		}
		_ = client.Close()
		if err := <-spliced; err != nil {
			t.Errorf("Splice: %v", err)
		}
		wg.Wait()
	}
}

// testAnswerBeforeReset: a target that answers and closes without having read all that it was sent
// resets its connection. A client hears the answer, and that it ended in a reset.
func testAnswerBeforeReset(t *testing.T, pair Make) {
	ctx, a, ln, serving := targets(t, pair)
	want := bytes.Repeat([]byte("too large, "), 1000)
	var wg sync.WaitGroup
	const clients = 8
	for range clients {
		client, front := TCPPair(t)
		wg.Go(func() {
			st, err := tunnel.Connect(ctx, a, "tcp", ln.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = tunnel.Splice(ctx, front, st) // the client notices
		})
		wg.Go(func() {
			_, _ = client.Write(make([]byte, 20_000)) // what is missing shows
			got, err := io.ReadAll(client)
			if !bytes.Equal(got, want) || err == nil {
				t.Errorf("%d bytes of %d came: %v", len(got), len(want), err)
			}
			_ = client.Close()
		})
	}
	for range clients {
		target, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadFull(target, make([]byte, 10)) // what is missing shows
		_, _ = target.Write(want)
		_ = target.Close()
	}
	finishes(t, "clients", wg.Wait)
	_ = a.Close()
	finishes(t, "serve", serving.Wait)
}

// targets listens on ln for what b, the peer of a, dials for a. Serving is done when a is closed.
func targets(t *testing.T, pair Make) (ctx context.Context, a tunnel.Session, ln net.Listener, serving *sync.WaitGroup) {
	t.Helper()
	a, b := pair(t, tunnel.Options{})
	ctx = within(t)
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	serving = new(sync.WaitGroup)
	serving.Go(func() {
		_ = ServeRequests(ctx, b, func(ctx context.Context, r *tunnel.Request) { // the opener notices
			_, _ = tunnel.Answer(ctx, r, new(net.Dialer).DialContext) // likewise
		})
	})
	return ctx, a, ln, serving
}
