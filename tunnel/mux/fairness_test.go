// What streams cost one another: memory, turns, and what is left to send of those
// that were given up.

package mux_test

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/mux"
)

// eachFraming runs f in a bubble for each framing, on a session over a connection
// in memory that counts what is written to its dialing end.
func eachFraming(t *testing.T, o tunnel.Options, f func(t *testing.T, r *rig)) {
	t.Helper()
	for _, p := range protocols {
		t.Run(p.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, p, o)
				f(t, r)
				_, _ = r.dialer.Close(), r.accepter.Close()
				r.writers.Wait()
			})
		})
	}
}

type rig struct {
	link             *memnet.Conn
	meter            meter
	dialer, accepter *mux.Session
	writers          sync.WaitGroup
}

func newRig(t *testing.T, p carrier.Protocol, o tunnel.Options) *rig {
	a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	r := &rig{link: a}
	r.dialer, r.accepter = over(t, p, metered{a, &r.meter}, b, o)
	return r
}

// mark is what a meter looks for. Bulk is all zeros.
const mark = "a keystroke"

// A meter counts what is written, and how much of it came before the mark.
type meter struct{ written, marked atomic.Int64 }

type metered struct {
	net.Conn
	*meter
}

func (c metered) Write(p []byte) (int, error) {
	if i := bytes.Index(p, []byte(mark)); i >= 0 {
		c.marked.Store(c.written.Load() + int64(i))
	}
	c.written.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// bulk opens n streams and writes to each, until the session ends or the stream
// is given up.
func (r *rig) bulk(t *testing.T, n int) (near, far []tunnel.Stream) {
	t.Helper()
	for range n {
		a, b := open(t, r.dialer, r.accepter)
		near, far = append(near, a), append(far, b)
		r.writers.Go(func() {
			buf := make([]byte, 32<<10)
			for {
				if _, err := a.Write(buf); err != nil {
					return
				}
			}
		})
	}
	return near, far
}

// 1,000 streams whose readers have stalled cost what they may, and their
// neighbours nothing.
func TestStalledStreamsAreBounded(t *testing.T) {
	const n = 1000
	eachFraming(t, tunnel.Options{MaxStreams: n + 1}, func(t *testing.T, r *rig) {
		used := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapInuse
		}
		before := used()
		r.bulk(t, n)
		synctest.Wait() // every window is full
		const want = n*mux.Least + mux.Budget
		bytes, blocks := r.accepter.Unread()
		if bytes < n*mux.Least || bytes > want || blocks > 2*bytes {
			t.Errorf("%d bytes in blocks of %d lie unread, want %d at most", bytes, blocks, want)
		}
		// The writers' own buffers, and what goroutines and streams are.
		if cost := int64(used() - before); cost > 2*want+n*(32<<10) {
			t.Errorf("that takes %d MiB", cost>>20)
		} else {
			t.Logf("%d MiB lie unread, and take %d", bytes>>20, cost>>20)
		}
		near, far := open(t, r.dialer, r.accepter)
		r.writers.Go(func() {
			_, _ = near.Write(make([]byte, 8<<20)) // the reader counts
			_ = near.CloseWrite()
		})
		if got, err := io.Copy(io.Discard, far); got != 8<<20 || err != nil {
			t.Errorf("their neighbour got %d bytes, %v", got, err)
		}
	})
}

// What windows have had from the budget comes back.
func TestBudgetComesBack(t *testing.T) {
	eachFraming(t, tunnel.Options{}, func(t *testing.T, r *rig) {
		for range 2 {
			near, far := r.bulk(t, 360) // more than there is a first addition for
			for _, st := range far[200:] {
				_, _ = io.CopyN(io.Discard, st, 128<<10)
			}
			for i := range near {
				_, _ = tunnel.Abort(near[i]), far[i].Close()
			}
			synctest.Wait()
			if a, b := r.dialer.Books(), r.accepter.Books(); a != 0 || b != 0 {
				t.Fatalf("left on the books: %d and %d", a, b)
			}
		}
	})
}

// A window grows where it is in the way, and nowhere else.
func TestWindowsGrow(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pause time.Duration // for each 128 KiB that are read
		want  int
	}{
		{"reader at full speed", 0, mux.Most},
		{"slow reader", time.Second, mux.Least + mux.First},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachFraming(t, tunnel.Options{}, func(t *testing.T, r *rig) {
				_, far := r.bulk(t, 1)
				for range 128 {
					time.Sleep(tc.pause) // the bubble's clock
					if _, err := io.CopyN(io.Discard, far[0], 128<<10); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if n, _ := r.accepter.Unread(); n > tc.want || n < tc.want/2 {
					t.Errorf("%d bytes lie unread, want the window of %d", n, tc.want)
				}
			})
		})
	}
}

// Readers that were quick and stall leave their neighbours windows that fill a path.
func TestLargeWindowsLeaveRoom(t *testing.T) {
	eachFraming(t, tunnel.Options{}, func(t *testing.T, r *rig) {
		const greedy = 16
		_, far := r.bulk(t, greedy)
		for _, st := range far {
			if _, err := io.CopyN(io.Discard, st, 2*mux.Most); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		before, _ := r.accepter.Unread()
		if most := mux.Budget + greedy*mux.Least; before > most {
			t.Errorf("%d bytes lie unread, of %d that there may be", before, most)
		}
		_, one := r.bulk(t, 1)
		if _, err := io.CopyN(io.Discard, one[0], 2*mux.Most); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if all, _ := r.accepter.Unread(); all-before < mux.Fair/2 {
			t.Errorf("a window of %d is left for another, want %d", all-before, mux.Fair)
		}
	})
}

// Streams that are given up take along what they had still to send: the next one
// does not wait for it.
func TestAbortedStreamsAreNotSent(t *testing.T) {
	for _, from := range []string{"writer", "reader"} {
		t.Run("by the "+from, func(t *testing.T) {
			eachFraming(t, tunnel.Options{}, func(t *testing.T, r *rig) {
				const n = 16
				near, far := r.bulk(t, n)
				for _, st := range far { // the windows are large
					_, _ = io.CopyN(io.Discard, st, 2<<20)
				}
				synctest.Wait()
				for _, st := range far { // and have room
					_, _ = io.CopyN(io.Discard, st, 1<<20)
				}
				r.link.Stall(true)
				synctest.Wait()
				ends := near
				if from == "reader" {
					ends = far
				}
				for _, st := range ends {
					_ = tunnel.Abort(st)
				}
				before := r.meter.written.Load()
				r.writers.Go(func() {
					next, err := r.dialer.Open(t.Context())
					if err != nil {
						t.Errorf("open: %v", err)
						return
					}
					_, _ = io.WriteString(next, mark) // the reader notices
				})
				synctest.Wait()
				r.link.Stall(false)
				st, err := r.accepter.Accept(t.Context())
				if err == nil {
					_, err = io.ReadFull(st, make([]byte, len(mark)))
				}
				if err != nil {
					t.Fatal(err)
				}
				// What the outbox and its writer held, and more only until the
				// peer's resets come.
				if sent := r.meter.marked.Load() - before; sent < 0 || sent > 3*mux.OutCap {
					t.Errorf("%d bytes went before the next stream's first", sent)
				}
			})
		})
	}
}

// A keystroke does not wait for its turn behind bulk, nor does a stream that is
// being opened.
func TestLittleGoesFirst(t *testing.T) {
	eachFraming(t, tunnel.Options{}, func(t *testing.T, r *rig) {
		keys, echo := open(t, r.dialer, r.accepter)
		_, far := r.bulk(t, 64)
		for _, st := range far {
			r.writers.Go(func() { _, _ = io.Copy(io.Discard, st) })
		}
		r.link.Stall(true)
		synctest.Wait() // all of them wait for their turn
		r.writers.Go(func() { _, _ = io.WriteString(keys, mark) })
		synctest.Wait()
		before := r.meter.written.Load()
		r.link.Stall(false)
		if _, err := io.ReadFull(echo, make([]byte, len(mark))); err != nil {
			t.Fatal(err)
		}
		if sent := r.meter.marked.Load() - before; sent < 0 || sent > 2*mux.OutCap {
			t.Errorf("%d bytes of bulk went before a keystroke", sent)
		}
	})
}
