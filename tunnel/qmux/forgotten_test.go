// All connections forgotten at once, at any moment, on a clock of the test's.

package qmux

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// What moves goes on within four seconds when every connection of the session is
// forgotten at once. Two of them may be a pause of its own.
func TestAllForgotten(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testAllForgotten(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func testAllForgotten(t *testing.T, random *rand.Rand) {
	const most = 4 * time.Second
	n := newNetwork(tunnel.Options{})
	d, a := n.pairBy(t, tunnel.Options{}, func(ctx context.Context) (secured, error) {
		c, err := n.dial(ctx)
		if err != nil {
			return nil, err
		}
		return endless{c}, nil
	})
	flows := make([]*flow, 1+random.IntN(4))
	for i := range flows {
		from, to := d, a
		if random.IntN(2) == 0 {
			from, to = a, d
		}
		size, pause := 1+random.IntN(100), time.Duration(1+random.IntN(1900))*time.Millisecond
		if random.IntN(2) == 0 {
			size, pause = 20<<10, time.Duration(200+random.IntN(300))*time.Millisecond
		}
		w, r := opened(t, from, to)
		flows[i] = startFlow(w, r, size, pause)
	}
	for range 8 {
		time.Sleep(5*time.Second + time.Duration(random.IntN(5000))*time.Millisecond)
		n.stall()
		forgotten := time.Now()
		time.Sleep(most)
		synctest.Wait()
		for i, f := range flows {
			if !f.last.Load().After(forgotten) {
				t.Errorf("flow %d of %d stands still: %+v %+v", i, len(flows), d.Link(), a.Link())
			}
		}
	}
	for _, f := range flows {
		f.stop()
	}
	n.close(t, d, a)
}

// A flow is a stream that somebody writes now and then and somebody reads.
type flow struct {
	last atomic.Pointer[time.Time] // when something came
	stop func()
}

func startFlow(w, r tunnel.Stream, size int, pause time.Duration) *flow {
	f, over := &flow{}, make(chan struct{}, 2)
	note := func() { now := time.Now(); f.last.Store(&now) }
	note()
	go func() {
		defer func() { over <- struct{}{} }()
		for p := make([]byte, size); ; time.Sleep(pause) {
			if _, err := w.Write(p); err != nil {
				return
			}
		}
	}()
	go func() {
		defer func() { over <- struct{}{} }()
		for p := make([]byte, 64<<10); ; note() {
			if _, err := r.Read(p); err != nil {
				return
			}
		}
	}()
	f.stop = func() { _, _ = w.Close(), r.Close(); <-over; <-over }
	return f
}

// An endless connection cannot half-close: to wait for who writes to it takes a mutex,
// and with that no bubble's clock goes on.
type endless struct{ secured }

func (endless) CloseWrite() error { return nil }
