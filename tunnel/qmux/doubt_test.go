// Connections that are not to be doubted.

package qmux

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A connection on which something is said now and then, and acknowledged in time, is
// not doubted, however long the pauses are: what is owed is owed since it was sent.
func TestNowAndThenIsNotDoubted(t *testing.T) {
	for _, pause := range []time.Duration{910 * time.Millisecond, time.Second, 1050 * time.Millisecond, 1930 * time.Millisecond, 3 * time.Second, 13 * time.Second} {
		for name, size := range map[string]int{"keystrokes": 1, "bulk": 100 << 10} {
			t.Run(pause.String()+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := tunnel.Options{Link: tunnel.LinkOptions{Connections: 1}}
					k := &cutter{cut: func(int) (bool, bool) { return false, false }, accepted: make(chan *Session, 1)}
					k.delays = []time.Duration{40 * time.Millisecond}
					k.registry = newRegistry(o, func(tunnel.Peer) (string, error) { return "node", nil })
					first, _ := k.dial(t.Context())
					d, err := dialOn(t.Context(), first, k.dial, o)
					if err != nil {
						t.Fatal(err)
					}
					a := <-k.accepted
					near, err := d.Open(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					far, err := a.Accept(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					said, heard := make([]byte, size), make([]byte, size)
					for range 50 {
						time.Sleep(pause) // the bubble's clock
						for _, way := range []struct{ from, to tunnel.Stream }{{near, far}, {far, near}} {
							go func() { _, _ = way.from.Write(said) }() // the reader notices
							if _, err := io.ReadFull(way.to, heard); err != nil {
								t.Fatal(err)
							}
						}
					}
					if k.made != 1 || d.Link().Resumes != 0 {
						t.Errorf("%d connections were made, one of which was wanted: %+v", k.made, d.Link())
					}
					_, _ = d.Close(), a.Close()
					k.carrying.Wait()
				})
			})
		}
	}
}
