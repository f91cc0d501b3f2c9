// Tests of dials into nodes whose agents are being restarted.

package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// again is the hello of the agent's next process.
func again(node string) tunnel.Hello { return tunnel.Hello{Node: node, Instance: 2, Sequence: 1} }

// leave has the agent announce that it leaves, and end after that time.
func (x *testAgent) leave(t *testing.T, after time.Duration) {
	t.Helper()
	if err := x.control.Drain(t.Context(), tunnel.Draining, "agent is stopping"); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if after == 0 {
		<-x.gone
	}
	time.Sleep(after) // the bubble's clock
	_ = x.session.Close()
	synctest.Wait()
}

// TestDialWaitsForRestart: a dial to a node whose agent is leaving or has left goes to the
// agent's next process, as soon as that is connected.
func TestDialWaitsForRestart(t *testing.T) {
	for name, dials := range map[string]func(*testHub) error{
		"a dial": func(b *testHub) error { _, err := b.ask("n:1"); return err },
		"an early dial": func(b *testHub) error {
			c, err := b.hub.DialEarly(b.t.Context(), "tcp", "n:1")
			if err == nil {
				_, err = c.Read(make([]byte, 1))
				_ = c.Close()
			}
			return err
		},
	} {
		for when, before := range map[string]bool{"before the agent has left": true, "after that": false} {
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newTestHub(t, Config{})
					x := b.mustConnect(one("n"))
					held, err := b.hub.DialContext(t.Context(), "tcp", "n:9") // else it would be closed at once
					if err != nil {
						t.Fatal(err)
					}
					defer held.Close()
					var took time.Duration
					var wg sync.WaitGroup
					dial := func() {
						wg.Go(func() {
							began := time.Now()
							err = dials(b)
							took = time.Since(began)
						})
						synctest.Wait()
					}
					if err := x.control.Drain(b.t.Context(), tunnel.Draining, "agent is stopping"); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if before {
						dial()
					}
					time.Sleep(4 * time.Second) // the bubble's clock
					_ = x.session.Close()
					synctest.Wait()
					if !before {
						dial()
					}
					if n := b.metric("dials_waiting"); n != 1 {
						t.Errorf("%v dials wait, want 1", n)
					}
					b.mustConnect(one("other")) // is no change of n
					time.Sleep(2 * time.Second)
					b.mustConnect(again("n"))
					wg.Wait()
					want := 2 * time.Second
					if before {
						want += 4 * time.Second
					}
					if err != nil || took != want {
						t.Errorf("%v after %v, want it after %v", err, took, want)
					}
					if n, waits := b.metric("dials_total"), b.metric("dials_waiting"); n != 2 || waits != 0 {
						t.Errorf("%v dials counted, %v wait; want 2 and 0", n, waits)
					}
				})
			})
		}
	}
}

// TestDialUnderRestart: a dial that the agent refuses because it is stopping, or that ends
// with its session, did not reach a target, and goes to the agent's next process.
func TestDialUnderRestart(t *testing.T) {
	for name, answer := range map[string]func(context.Context, *tunnel.Request){
		"refused": func(_ context.Context, r *tunnel.Request) {
			_ = r.Reject(tunnel.Draining, "the node's agent is stopping") // the dialer gets the error
		},
		"lost": func(ctx context.Context, _ *tunnel.Request) { <-ctx.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestHub(t, Config{})
				x, err := b.connect(one("n"), answer)
				if err != nil {
					t.Fatal(err)
				}
				var (
					got string
					wg  sync.WaitGroup
				)
				wg.Go(func() { got, err = b.ask("n:1") })
				synctest.Wait()
				x.leave(t, time.Second)
				b.mustConnect(again("n"))
				wg.Wait()
				if err != nil || got != "n:1" {
					t.Errorf("%q, %v", got, err)
				}
			})
		})
	}
}

// TestDialWaitsNoLonger: the ends of the wait, and nodes for which there is none.
func TestDialWaitsNoLonger(t *testing.T) {
	away := tunnel.NoNode
	for _, tc := range []struct {
		name    string
		config  Config
		timeout time.Duration // of the caller; negative: canceled after that time
		then    func(*testHub, *testAgent)
		meant   func(*testHub, *testAgent) // two seconds after the start of the dial
		want    tunnel.Code
		text    string
		after   time.Duration
	}{
		{name: "nobody comes", then: left, want: tunnel.Draining, text: "dial n:1: node n is not connected: its agent has just left", after: defaultRestartPatience},
		{name: "the agent stays", then: leaving, want: tunnel.Draining, text: "dial n:1: node n is leaving", after: defaultRestartPatience},
		{name: "no patience", config: Config{RestartPatience: -1}, then: left, want: away, text: "dial n:1: node n is not connected"},
		{name: "the caller has less", then: left, timeout: 3 * time.Second, want: tunnel.Draining, after: 3 * time.Second},
		{name: "the caller gives up", then: left, timeout: -3 * time.Second, want: tunnel.Canceled, after: 3 * time.Second},
		{name: "it left long ago", then: func(b *testHub, x *testAgent) { left(b, x); time.Sleep(defaultRestartPatience) }, want: away},
		{name: "it did not say that it leaves", then: func(_ *testHub, x *testAgent) { _ = x.session.Close(); synctest.Wait() }, want: away},
		{name: "it was removed before", then: func(b *testHub, x *testAgent) { left(b, x); b.hub.Forget("n") }, want: away},
		{name: "it is removed", then: left, meant: func(b *testHub, _ *testAgent) { b.hub.Forget("n") }, want: away, after: 2 * time.Second},
		{name: "it is revoked", then: leaving, meant: func(b *testHub, _ *testAgent) {
			b.hub.End("n", func(tunnel.Peer) bool { return true }, tunnel.Revoked)
		}, want: away, after: 2 * time.Second},
		{name: "another server forgets it", then: left, meant: func(b *testHub, _ *testAgent) {
			b.hub.Forget("n")
			b.hub.Learn("n")
		}, want: away, after: 2 * time.Second},
		{name: "the server stops", then: left, meant: func(b *testHub, _ *testAgent) { go func() { _ = b.stop() }() }, want: tunnel.Draining, text: "dial n:1: " + textLeaving, after: 2 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestHub(t, tc.config)
				x := b.mustConnect(one("n"))
				tc.then(b, x)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, tc.timeout)
					defer cancel()
				} else if tc.timeout < 0 {
					time.AfterFunc(-tc.timeout, cancel)
				}
				began := time.Now()
				if tc.meant != nil {
					time.AfterFunc(2*time.Second, func() { tc.meant(b, x) })
				}
				_, err := b.hub.DialContext(ctx, "tcp", "n:1")
				if took := time.Since(began); tunnel.CodeOf(err) != tc.want || tc.text != "" && err.Error() != tc.text || took != tc.after {
					t.Errorf("%v after %v, want %v after %v", err, took, tc.want, tc.after)
				}
				if n := b.metric("dials_waiting"); n != 0 {
					t.Errorf("%v dials wait", n)
				}
			})
		})
	}
}

// left makes the agent leave.
func left(b *testHub, x *testAgent) { x.leave(b.t, 0) }

// leaving makes the agent announce that it leaves, and stay because of a stream.
func leaving(b *testHub, x *testAgent) {
	c, err := b.hub.DialContext(b.t.Context(), "tcp", "n:9")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	if err := x.control.Drain(b.t.Context(), tunnel.Draining, "agent is stopping"); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

// TestBoundOfWaitingDials: above a number of waiting dials to one node, dials to it fail at
// once, and those to another node wait.
func TestBoundOfWaitingDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		left(b, b.mustConnect(one("n")))
		left(b, b.mustConnect(one("m")))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		dial := func(addr string) {
			wg.Go(func() {
				if _, err := b.hub.DialContext(ctx, "tcp", addr); !errors.Is(err, tunnel.Canceled) {
					t.Errorf("%v", err)
				}
			})
		}
		for range maxAwaitingNode {
			dial("n:1")
		}
		synctest.Wait()
		began := time.Now()
		_, err := b.hub.DialContext(ctx, "tcp", "n:1")
		if !errors.Is(err, tunnel.Draining) || time.Since(began) != 0 {
			t.Errorf("one too many: %v after %v", err, time.Since(began))
		}
		dial("m:1")
		synctest.Wait()
		if n := b.metric("dials_waiting"); n != maxAwaitingNode+1 {
			t.Errorf("%v dials wait", n)
		}
		cancel()
		wg.Wait()
		if r := &b.hub.registry; r.awaiting != 0 || len(r.awaited) != 0 {
			t.Errorf("%d dials wait for %d nodes", r.awaiting, len(r.awaited))
		}
	})
}

// TestDialHereWaitsForNobody: a dial of another server does not wait, because that server
// may get the node sooner.
func TestDialHereWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		left(b, b.mustConnect(one("n")))
		began := time.Now()
		_, err := b.hub.DialHere(t.Context(), "n", tunnel.Dial{Network: "tcp", Addr: "n:1"})
		if !errors.Is(err, tunnel.Draining) || !strings.Contains(err.Error(), "has just left") || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestRestartToAnotherServer: the dial waits until another server has the node, and goes
// there.
func TestRestartToAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &other{has: true, err: &tunnel.DialError{Addr: "n:1", Code: tunnel.Draining, Text: "node n is leaving"}}
		b := newTestHub(t, Config{Elsewhere: o.dial})
		var (
			got string
			err error
			wg  sync.WaitGroup
		)
		began := time.Now()
		wg.Go(func() { got, err = b.ask("n:1") })
		time.Sleep(3 * time.Second) // the bubble's clock
		synctest.Wait()
		o.err = nil
		b.hub.Learn("n", Observation{Node: "n", Change: Change{State: Attached}})
		wg.Wait()
		if err != nil || got != "elsewhere" || time.Since(began) != 3*time.Second {
			t.Errorf("%q, %v after %v", got, err, time.Since(began))
		}
	})
}
