// How many connections the sessions of a listener have beside the first of each.

package qmux

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A listener has no more connections beside the first of each session than it may. Bulk
// that gets none goes on where it is, and gets one when there is room again.
func TestConnectionsOfAListenerAreBounded(t *testing.T) {
	const sessions, most = 4, 2
	synctest.Test(t, func(t *testing.T) {
		never := func(int) (bool, bool) { return false, false }
		o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 4}}
		k := &cutter{cut: never, accepted: make(chan *Session, 1)}
		k.registry = newRegistry(o, func(tunnel.Peer) (string, error) { return "node", nil })
		beside := &budget{limit: most}
		k.registry.conf.beside = beside
		var all []*Session
		for range sessions {
			first, _ := k.dial(t.Context())
			d, err := dialOn(t.Context(), first, k.dial, o)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, d, <-k.accepted)
		}
		extra := func() (n int) {
			for i := 1; i < len(all); i += 2 {
				if all[i].Context().Err() == nil {
					n += max(0, all[i].Link().Connections-1)
				}
			}
			return n
		}
		check := func(when string, want int) {
			t.Helper()
			time.Sleep(2 * maxGrowBackoff) // the bubble's clock
			synctest.Wait()
			if n := extra(); n != want || beside.used.Load() != int64(n) {
				t.Errorf("%s: %d connections beside the first of each session, counted as %d, want %d", when, n, beside.used.Load(), want)
			}
		}
		check("idle", 0)
		stops := make([]context.CancelFunc, sessions)
		for i := range sessions {
			ctx, stop := context.WithCancel(t.Context())
			stops[i] = stop
			busy(t, ctx, all[2*i], all[2*i+1])
		}
		check("busy", most)
		for i := range sessions / 2 { // who has one, most likely
			stops[i]()
			_ = all[2*i].Close()
			<-all[2*i+1].Context().Done()
		}
		check("half are over", most)
		for _, stop := range stops {
			stop()
		}
		check("idle again", 0) // they were dropped
		for _, s := range all {
			_ = s.Close()
		}
		check("over", 0)
		k.carrying.Wait()
	})
}

// Connections that the accepting end has asked for are dropped once it does not use them any
// more, and give their places back.
func TestConnectionsAskedForAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 4}}
		n := newNetwork(o)
		beside := &budget{limit: 8}
		n.registry.conf.beside = beside
		d, a := n.pair(t, o)
		ctx, stop := context.WithCancel(t.Context())
		busy(t, ctx, a, d)
		time.Sleep(20 * time.Second)
		if d.Link().Connections < 2 {
			t.Fatal("bulk of the accepting end has no connection of its own")
		}
		stop()
		time.Sleep(2 * idleTimeout)
		if conns, used := d.Link().Connections, beside.used.Load(); conns != 1 || used != 0 {
			t.Errorf("%d connections, %d places are taken", conns, used)
		}
		n.close(t, d, a)
	})
}

// busy has a stream of d carry much, to a, until ctx is done.
func busy(t *testing.T, ctx context.Context, d, a *Session) {
	t.Helper()
	near, err := d.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	far, err := a.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for p := make([]byte, 64<<10); ctx.Err() == nil; time.Sleep(time.Second) {
			if _, err := near.Write(p); err != nil {
				break
			}
		}
		_ = near.Close()
	}()
	go func() {
		_, _ = io.Copy(io.Discard, far)
		_ = far.Close()
	}()
}
