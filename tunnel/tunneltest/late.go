// What the suite asks of targets that take their time: whoever waits loses nothing
// by it, and whoever does not costs nothing.

package tunneltest

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// answering answers all that is dialed over s until s is closed, by dial.
func answering(t *testing.T, s tunnel.Session, dial func(ctx context.Context) (net.Conn, error)) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := ServeRequests(context.Background(), s, func(ctx context.Context, r *tunnel.Request) {
			_, _ = tunnel.Answer(ctx, r, func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) })
		})
		if err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return &wg
}

// A dial that its opener gives up is given up by the far side as well, not only when
// the time is over for which the opener had been ready to wait.
func testGivenUp(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	dialing, ended := make(chan struct{}, 1), make(chan error, 1)
	serving := answering(t, b, func(ctx context.Context) (net.Conn, error) {
		dialing <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	})
	for name, early := range map[string]string{"silent": "", "with early data": strings.Repeat("x", 1900)} {
		ctx, cancel := context.WithCancel(within(t))
		var opener sync.WaitGroup
		started := make(chan struct{}) // closed when Start has returned
		opener.Go(func() {
			if early == "" {
				close(started) // Connect returns when it is given up
				if _, err := tunnel.Connect(ctx, a, "tcp", "silent:1"); !errors.Is(err, tunnel.Canceled) {
					t.Errorf("%s: connect: %v", name, err)
				}
				return
			}
			st, err := tunnel.Dial{Network: "tcp", Addr: "silent:1"}.Start(ctx, a, nil)
			if err == nil {
				_, err = io.WriteString(st, early)
			}
			close(started)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			<-ctx.Done()
			_ = tunnel.Abort(st)
		})
		finishes(t, "begin", func() { <-dialing; <-started })
		cancel()
		finishes(t, "give up", func() {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the far side's dial ended with %v", name, err)
			}
		})
		opener.Wait()
	}
	_ = a.Close()
	finishes(t, "serve", serving.Wait)
}

// Whoever waits for a target that takes its time has what it said meanwhile
// delivered, and can go on.
func testAnsweredLate(t *testing.T, pair Make) {
	a, b := pair(t, tunnel.Options{})
	serving := answering(t, b, func(context.Context) (net.Conn, error) {
		<-time.After(300 * time.Millisecond)
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(near, near) }() // ends with far
		return far, nil
	})
	for name, early := range map[string]string{"silent": "", "with early data": "hello, ", "with much of it": strings.Repeat("hello, ", 4000)} {
		st, err := tunnel.Dial{Network: "tcp", Addr: "slow:1"}.Start(within(t), a, nil)
		if err != nil {
			t.Fatal(err)
		}
		var writing sync.WaitGroup
		writing.Go(func() {
			if _, err := io.WriteString(st, early); err != nil {
				t.Errorf("%s: write: %v", name, err)
			}
			if early == "" { // not before there is an answer, as who speaks second
				<-time.After(400 * time.Millisecond)
			}
			if _, err := io.WriteString(st, "you"); err != nil {
				t.Errorf("%s: write: %v", name, err)
			}
		})
		want := early + "you"
		finishes(t, "echo", func() {
			got := make([]byte, len(want))
			if n, err := io.ReadFull(st, got); err != nil || string(got) != want {
				t.Errorf("%s: %d of %d bytes came back, %v", name, n, len(want), err)
			}
		})
		writing.Wait()
		_ = tunnel.Abort(st)
	}
	_ = a.Close()
	finishes(t, "serve", serving.Wait)
}
