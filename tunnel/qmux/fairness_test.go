// What streams cost one another: turns, windows, and what is left to send of those that
// were given up.

package qmux

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A link is a session on one connection in memory, which can be stalled. What the
// dialing end writes is counted.
type link struct {
	conn             *memnet.Conn
	meter            meter
	dialer, accepter *Session
	writers          sync.WaitGroup
}

// newLink makes a link whose accepting end has its own intake, if it is given one.
func newLink(t testing.TB, o tunnel.Options, intake *tunnel.Intake) *link {
	t.Helper()
	l := new(link)
	near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	l.conn = near
	dialing, accepting := o, o
	if intake != nil {
		dialing.Intake, accepting.Intake = tunnel.NewIntake(0), intake
	}
	d, a := joinedOf(t, metered{near, &l.meter}, far, dialing, accepting)
	l.dialer, l.accepter = d.(*Session), a.(*Session)
	return l
}

func (l *link) end() {
	_, _ = l.dialer.Close(), l.accepter.Close()
	l.writers.Wait()
}

// kinds are the options of sessions that know the extension, and of those that do not.
var kinds = map[string]tunnel.LinkOptions{"extended": {}, "plain": {DetachWindow: -1}}

// eachKind runs f in a bubble for each kind of session.
func eachKind(t *testing.T, o tunnel.Options, f func(t *testing.T, o tunnel.Options)) {
	t.Helper()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			o.Link = kind
			synctest.Test(t, func(t *testing.T) { f(t, o) })
		})
	}
}

// eachLink is eachKind on a link.
func eachLink(t *testing.T, o tunnel.Options, f func(t *testing.T, l *link)) {
	t.Helper()
	eachKind(t, o, func(t *testing.T, o tunnel.Options) {
		l := newLink(t, o, nil)
		defer l.end()
		f(t, l)
	})
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

// CloseWrite ends our direction.
func (c metered) CloseWrite() error { return tunnel.CloseWrite(c.Conn) }

// pair opens a stream and accepts it.
func pair(t testing.TB, from, to *Session) (near, far tunnel.Stream) {
	t.Helper()
	near, err := from.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = to.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	return near, far
}

// bulk opens n streams and writes to each, or has it read from somewhere, until the
// session ends or the stream is given up.
func (l *link) bulk(t *testing.T, n int) (near, far []tunnel.Stream) {
	t.Helper()
	for i := range n {
		a, b := pair(t, l.dialer, l.accepter)
		near, far = append(near, a), append(far, b)
		l.writers.Go(func() {
			if i%2 == 1 {
				_, _ = io.Copy(a, zeros{})
				return
			}
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

// zeros is an endless source.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// carries sends n bytes over a new stream, and has them read.
func (l *link) carries(t *testing.T, n int) {
	t.Helper()
	near, far := pair(t, l.dialer, l.accepter)
	l.writers.Go(func() {
		_, _ = near.Write(make([]byte, n)) // the reader counts
		_ = near.CloseWrite()
	})
	if got, err := io.Copy(io.Discard, far); got != int64(n) || err != nil {
		t.Errorf("a neighbour got %d bytes, %v", got, err)
	}
	_, _ = near.Close(), far.Close()
}

// unreadBytes is how many bytes lie unread on a session's streams, and how large the
// blocks are that they lie in.
func (s *Session) unreadBytes() (bytes, blocks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.streams {
		for _, piece := range st.in.pieces {
			bytes += piece.to - piece.from
		}
	}
	return bytes, s.unread
}

// idles waits until everything that was to be said has been.
func idles() {
	time.Sleep(time.Second) // the bubble's clock
	synctest.Wait()
}

// isEmpty fails the test if an end holds something of streams.
func (l *link) isEmpty(t *testing.T) {
	t.Helper()
	for name, s := range map[string]*Session{"dialer": l.dialer, "accepter": l.accepter} {
		if n := s.streamCount(); n != 0 || !s.holdsNothing() {
			_, blocks := s.unreadBytes()
			t.Errorf("%s holds %d streams, %d bytes unread, %d to send again", name, n, blocks, s.Link().Queued)
		}
		s.mu.Lock()
		for _, c := range s.conns {
			if n := []int{len(c.small), len(c.bulk), len(c.controlStreams), len(c.streamDone), c.inFlight, c.owners}; slices.Max(n) != 0 {
				t.Errorf("%s has %v in the books of a connection", name, n)
			}
		}
		if n := len(s.acceptQueue) + s.open; n != 0 {
			t.Errorf("%s has %d in its books", name, n)
		}
		s.mu.Unlock()
	}
}

// 1,000 streams whose readers have stalled cost what they may, and their neighbours
// nothing.
func TestStalledStreamsAreBounded(t *testing.T) {
	const n = 1000
	eachLink(t, tunnel.Options{MaxStreams: n + 1}, func(t *testing.T, l *link) {
		used := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapInuse
		}
		before := used()
		l.bulk(t, n)
		idles() // every window is full
		const want = n*initialWindow + windowBudget
		bytes, blocks := l.accepter.unreadBytes()
		if bytes < n*initialWindow || bytes > want || blocks > 2*bytes {
			t.Errorf("%d bytes in blocks of %d lie unread, want %d at most", bytes, blocks, want)
		}
		if kept := l.dialer.Link().Queued; kept > defaultMaxRetained {
			t.Errorf("%d bytes are kept to be sent, want %d at most", kept, defaultMaxRetained)
		}
		// The writers' own buffers, and what goroutines and streams are.
		if cost := int64(used() - before); cost > 2*want+n*(32<<10) {
			t.Errorf("that takes %d MiB", cost>>20)
		} else {
			t.Logf("%d MiB lie unread, and take %d", bytes>>20, cost>>20)
		}
		began := time.Now()
		l.carries(t, 8<<20)
		if took := time.Since(began); took > time.Second {
			t.Errorf("their neighbour's 8 MiB took %v on a path that takes no time", took)
		}
	})
}

// A window grows where it is in the way, and nowhere else.
func TestWindowsGrow(t *testing.T) {
	for name, tt := range map[string]struct {
		pause time.Duration // for each 128 KiB that are read
		want  int
	}{
		"reader at full speed": {0, maxWindow},
		"slow reader":          {time.Second, initialWindow + extraWindow},
	} {
		t.Run(name, func(t *testing.T) {
			eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
				_, far := l.bulk(t, 1)
				for range 256 {
					time.Sleep(tt.pause) // the bubble's clock
					if _, err := io.CopyN(io.Discard, far[0], 128<<10); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if n, _ := l.accepter.unreadBytes(); n > tt.want || n < tt.want/2 {
					t.Errorf("%d bytes lie unread, want the window of %d", n, tt.want)
				}
			})
		})
	}
}

// Readers that were quick and stall leave their neighbours windows that fill a path.
func TestLargeWindowsLeaveRoom(t *testing.T) {
	eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
		const greedy = 16
		_, far := l.bulk(t, greedy)
		for _, st := range far {
			if _, err := io.CopyN(io.Discard, st, 2*maxWindow); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		before, _ := l.accepter.unreadBytes()
		if most := windowBudget + greedy*initialWindow; before > most {
			t.Errorf("%d bytes lie unread, of %d that there may be", before, most)
		}
		_, one := l.bulk(t, 1)
		if _, err := io.CopyN(io.Discard, one[0], 2*maxWindow); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if all, _ := l.accepter.unreadBytes(); all-before < fairWindow/2 {
			t.Errorf("a window of %d is left for another, want %d", all-before, fairWindow)
		}
	})
}

// Streams that are given up take with them what they had still to send.
func TestAbortedStreamsAreNotSent(t *testing.T) {
	for _, from := range []string{"writer", "reader"} {
		t.Run("by the "+from, func(t *testing.T) {
			eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
				const n = 16
				near, far := l.bulk(t, n)
				for _, st := range far { // the windows are large
					_, _ = io.CopyN(io.Discard, st, 2<<20)
				}
				synctest.Wait()
				l.conn.Stall(true)
				for _, st := range far { // and have room
					_, _ = io.CopyN(io.Discard, st, 1<<20)
				}
				synctest.Wait()
				ends := near
				if from == "reader" {
					ends = far
				}
				for _, st := range ends {
					_ = tunnel.Abort(st)
				}
				before := l.meter.written.Load()
				if from == "reader" { // whose say comes first
					l.conn.StallReads(false)
					synctest.Wait()
				}
				l.conn.Stall(false)
				l.carries(t, 1000)
				idles()
				// A turn that had been taken, which ends with the record that makes it
				// large enough, and the resets. The reader's say comes behind credit that
				// it gave before: of that the path takes 64 KiB while it is stalled.
				sent, most := l.meter.written.Load()-before, int64(turnSize+20<<10)
				if from == "reader" {
					most += 64 << 10
				}
				t.Logf("%d bytes", sent)
				if sent > most {
					t.Errorf("%d bytes were sent of streams that were given up", sent)
				}
				for i := range near {
					_, _ = near[i].Close(), far[i].Close()
				}
				idles()
				l.isEmpty(t)
			})
		})
	}
}

// Streams that were given up while they waited for their turn hold up nobody.
func TestAbortedStreamsHoldUpNobody(t *testing.T) {
	eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
		filler, full := pair(t, l.dialer, l.accepter)
		keys, echo := pair(t, l.dialer, l.accepter)
		var given []tunnel.Stream
		for range 100 {
			near, _ := pair(t, l.dialer, l.accepter)
			given = append(given, near)
		}
		idles()
		l.conn.Stall(true)
		_, _ = filler.Write(make([]byte, 100<<10)) // the path holds 64 KiB
		synctest.Wait()
		for _, st := range given {
			_, _ = io.WriteString(st, "x")
			_ = tunnel.Abort(st)
		}
		_, _ = io.WriteString(keys, mark) // the reader notices
		began := time.Now()
		l.conn.Stall(false)
		if _, err := io.ReadFull(echo, make([]byte, len(mark))); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("a keystroke waited for %v", took)
		}
		_, _ = filler.Close(), full.Close()
	})
}

// A keystroke does not wait for its turn behind bulk, nor does a stream that is being
// opened.
func TestLittleGoesFirst(t *testing.T) {
	eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
		keys, echo := pair(t, l.dialer, l.accepter)
		_, far := l.bulk(t, 64)
		for _, st := range far {
			l.writers.Go(func() { _, _ = io.Copy(io.Discard, st) })
		}
		for _, opened := range []bool{false, true} {
			l.conn.Stall(true)
			synctest.Wait() // all of them wait for their turn
			from := keys
			if opened {
				var err error
				if from, err = l.dialer.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.WriteString(from, mark); err != nil {
				t.Fatal(err)
			}
			before := l.meter.written.Load()
			l.conn.Stall(false)
			to := echo
			if opened {
				var err error
				if to, err = l.accepter.Accept(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.ReadFull(to, make([]byte, len(mark))); err != nil {
				t.Fatal(err)
			}
			if sent := l.meter.marked.Load() - before; sent < 0 || sent > turnSize+4<<10 {
				t.Errorf("%d bytes of bulk went before a keystroke", sent)
			}
		}
	})
}

// However much little there is to be sent, bulk has its turns.
func TestBulkNeverStarves(t *testing.T) {
	const much, enough, size = 4 << 20, 64 << 20, smallWrite / 2
	eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
		ctx, done := context.WithCancel(t.Context())
		var all atomic.Int64
		for range 64 {
			near, far := pair(t, l.dialer, l.accepter)
			l.writers.Go(func() {
				defer far.Close()
				for p := make([]byte, size); ; {
					if _, err := io.ReadFull(far, p); err != nil {
						return
					}
					_, _ = far.Write(p[:1]) // or near.Read fails
				}
			})
			l.writers.Go(func() {
				defer near.Close()
				for p := make([]byte, size); ctx.Err() == nil; {
					if all.Add(size) > enough {
						t.Errorf("%d bytes of little went before %d of bulk", enough, much)
						done()
					}
					_, _ = near.Write(p) // or Read fails
					if _, err := near.Read(p[:1]); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		l.carries(t, much)
		done()
		l.writers.Wait()
		t.Logf("%d KiB of little went beside %d of bulk", all.Load()>>10, much>>10)
	})
}
