// What is easy to get wrong: time, connections that stall, and ends that look like others.

package qmux

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// bothWays runs f in a bubble for each kind of session, with the streams opened from
// either end.
func bothWays(t *testing.T, f func(t *testing.T, l *link, opener, answerer *Session)) {
	t.Helper()
	for _, d := range []string{"from the dialer", "from the accepter"} {
		t.Run(d, func(t *testing.T) {
			eachLink(t, tunnel.Options{}, func(t *testing.T, l *link) {
				if d == "from the dialer" {
					f(t, l, l.dialer, l.accepter)
				} else {
					f(t, l, l.accepter, l.dialer)
				}
			})
		})
	}
}

// A session that lives is ended by no timer, and nor are its streams: neither one that is
// idle, nor a half-closed one, nor one that waits for a reader.
func TestNoTimerEndsAnything(t *testing.T) {
	bothWays(t, func(t *testing.T, _ *link, opener, answerer *Session) {
		idle, farIdle := pair(t, opener, answerer)
		half, farHalf := pair(t, opener, answerer)
		full, farFull := pair(t, opener, answerer)
		if err := half.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		var writing sync.WaitGroup
		writing.Go(func() {
			if _, err := full.Write(make([]byte, 1<<20)); err != nil {
				t.Errorf("write that waits for a reader: %v", err)
			}
			_ = full.CloseWrite()
		})
		for range 24 {
			time.Sleep(time.Hour) // the bubble's clock
			if _, err := farHalf.Write([]byte("tick")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(half, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := io.Copy(io.Discard, farFull); n != 1<<20 || err != nil {
			t.Errorf("after a day: %d bytes, %v", n, err)
		}
		writing.Wait()
		_, _ = io.WriteString(idle, mark) // the reader notices
		if _, err := io.ReadFull(farIdle, make([]byte, len(mark))); err != nil {
			t.Error(err)
		}
		for _, st := range []tunnel.Stream{idle, farIdle, half, farHalf, full, farFull} {
			_ = st.Close()
		}
	})
}

// A road is connections in memory that can all be stalled; while they are, nobody gets
// another.
type road struct {
	registry *registry
	accepted chan *Session

	mu      sync.Mutex // guards the following
	stalled bool
	conns   []*memnet.Conn
}

func (r *road) dial(context.Context) (secured, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stalled {
		return nil, tunnel.Unreachable
	}
	near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	r.conns = append(r.conns, near)
	go func() {
		if s, err := r.registry.acceptOwn(context.Background(), bare{newBatch(far)}); err == nil && s != nil {
			r.accepted <- s
		}
	}()
	return bare{newBatch(near)}, nil
}

func (r *road) stall(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalled = on
	for _, c := range r.conns {
		c.Stall(on)
	}
}

// A path that stalls for an hour ends nothing whose window is longer, whatever was going
// on, whether the connections that had stalled go on or are given up meanwhile.
func TestStallEndsNothing(t *testing.T) {
	for _, stall := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 18 * time.Second, time.Minute, time.Hour} {
		t.Run(stall.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: 2 * time.Hour}}
				r := &road{accepted: make(chan *Session, 1), registry: newRegistry(o, func(tunnel.Peer) (string, error) { return "node", nil })}
				first, _ := r.dial(t.Context())
				d, err := dialOn(t.Context(), first, r.dial, o)
				if err != nil {
					t.Fatal(err)
				}
				a := <-r.accepted
				var talking sync.WaitGroup
				for _, ends := range [][2]*Session{{d, a}, {a, d}} {
					near, far := pair(t, ends[0], ends[1])
					talking.Go(func() {
						if _, err := near.Write(make([]byte, 3<<20)); err != nil {
							t.Errorf("write over the stall: %v", err)
						}
						_ = near.CloseWrite()
					})
					if _, err := io.ReadFull(far, make([]byte, 1<<20)); err != nil {
						t.Fatal(err)
					}
					talking.Go(func() {
						time.Sleep(time.Millisecond)
						if n, err := io.Copy(io.Discard, far); n != 2<<20 || err != nil {
							t.Errorf("after the stall: %d bytes, %v", n, err)
						}
						_, _ = near.Close(), far.Close()
					})
				}
				r.stall(true)
				time.Sleep(stall) // the bubble's clock
				r.stall(false)
				talking.Wait()
				_, _ = d.Close(), a.Close()
			})
		})
	}
}

// A deadline is kept, even if it is the connection that does not move. The bytes that
// were counted arrive when it does, and no others.
func TestWriteDeadlineOnStalledConnection(t *testing.T) {
	bothWays(t, func(t *testing.T, l *link, opener, answerer *Session) {
		near, far := pair(t, opener, answerer)
		synctest.Wait() // its window is open
		l.conn.Stall(true)
		began := time.Now()
		_ = near.SetWriteDeadline(began.Add(5 * time.Second))
		n, err := near.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Fatalf("wrote %d, %v after %v", n, err, time.Since(began))
		}
		if n == 0 || n > maxUnsent+2*turnSize+64<<10 { // the path holds 64 KiB
			t.Errorf("%d bytes lie in a connection that has stalled", n)
		}
		_ = near.SetWriteDeadline(time.Time{})
		l.conn.Stall(false)
		if _, err := near.Write([]byte("more")); err != nil {
			t.Fatalf("after the stall: %v", err)
		}
		_ = near.CloseWrite()
		if got, err := io.Copy(io.Discard, far); got != int64(n)+4 || err != nil {
			t.Errorf("arrived: %d of %d bytes, %v", got, n+4, err)
		}
		_, _ = near.Close(), far.Close()
	})
}

// Closing waits for no connection: a stream's not at all, a session's for as long as it
// may take to tell the peer.
func TestCloseDoesNotWait(t *testing.T) {
	bothWays(t, func(t *testing.T, l *link, opener, answerer *Session) {
		one, _ := pair(t, opener, answerer)
		two, _ := pair(t, opener, answerer)
		three, _ := pair(t, opener, answerer)
		l.conn.Stall(true)
		began := time.Now()
		if _, err := one.Write(make([]byte, 100<<10)); err != nil {
			t.Error(err)
		}
		if err := errors.Join(one.CloseWrite(), one.Close(), two.Close(), tunnel.Abort(three)); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > 0 {
			t.Errorf("streams took %v", d)
		}
		if err := opener.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > closeTimeout {
			t.Errorf("the session took %v", d)
		}
		l.conn.Stall(false)
	})
}

// What was being written when its stream was closed does not look complete.
func TestCutWriteIsReset(t *testing.T) {
	for name, end := range map[string]func(tunnel.Stream) error{
		"Close":      func(st tunnel.Stream) error { return st.Close() },
		"CloseWrite": func(st tunnel.Stream) error { return st.CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, _ *link, opener, answerer *Session) {
				near, far := pair(t, opener, answerer)
				synctest.Wait() // its window is open
				var writing sync.WaitGroup
				writing.Go(func() {
					n, err := near.Write(make([]byte, 2*maxWindow))
					if !errors.Is(err, net.ErrClosed) || n < initialWindow || n > initialWindow+extraWindow+maxUnsent+largeBlock {
						t.Errorf("wrote %d, %v", n, err)
					}
				})
				idles() // the window is full
				if err := end(near); err != nil {
					t.Error(err)
				}
				writing.Wait()
				if n, err := io.Copy(io.Discard, far); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("far end: %d bytes, %v", n, err)
				}
				_, _ = near.Close(), far.Close()
			})
		})
	}
}

// The peer's end that came before the session's is an end; no end is none.
func TestEndBeforeDeath(t *testing.T) {
	for _, how := range []string{"closed", "connection lost"} {
		t.Run(how, func(t *testing.T) {
			bothWays(t, func(t *testing.T, l *link, opener, answerer *Session) {
				ended, farEnded := pair(t, opener, answerer)
				cut, farCut := pair(t, opener, answerer)
				for _, st := range []tunnel.Stream{farEnded, farCut} {
					if _, err := st.Write([]byte("said")); err != nil {
						t.Fatal(err)
					}
				}
				if err := farEnded.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if how == "closed" {
					_ = answerer.Close()
				} else {
					_ = l.conn.Abort()
				}
				<-opener.Context().Done()
				if got, err := io.ReadAll(ended); err != nil || string(got) != "said" {
					t.Errorf("stream that had ended: %q, %v", got, err)
				}
				if got, err := io.ReadAll(cut); !errors.Is(err, tunnel.Lost) || string(got) != "said" {
					t.Errorf("stream that was cut: %q, %v", got, err)
				}
			})
		})
	}
}

// What is heard of a session that this end has closed is not taken for all there was.
func TestClosedSessionHearsNoEnd(t *testing.T) {
	bothWays(t, func(t *testing.T, l *link, opener, answerer *Session) {
		near, far := pair(t, opener, answerer)
		synctest.Wait()
		l.conn.Stall(true)
		_, _ = near.Write(make([]byte, 1000)) // the reader notices
		_ = near.CloseWrite()
		var closing sync.WaitGroup
		closing.Go(func() { _ = answerer.Close() })
		synctest.Wait()
		l.conn.Stall(false)
		closing.Wait()
		if n, err := io.Copy(io.Discard, far); !errors.Is(err, tunnel.ErrSessionClosed) {
			t.Errorf("read %d bytes, %v", n, err)
		}
		_, _ = near.Close(), far.Close()
	})
}

// A stream that was opened and given up before anybody accepted it is not accepted, and
// takes no place from others.
func TestGivenUpBeforeAccepted(t *testing.T) {
	bothWays(t, func(t *testing.T, l *link, opener, answerer *Session) {
		for range 2 * backlog {
			st, err := opener.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := tunnel.Abort(st); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		near, far := pair(t, opener, answerer)
		_, _ = io.WriteString(near, mark) // the reader notices
		if _, err := io.ReadFull(far, make([]byte, len(mark))); err != nil {
			t.Fatal(err)
		}
		_, _ = near.Close(), far.Close()
		idles()
		l.isEmpty(t)
	})
}

// An Open that was given up while the peer allows no more leaves no stream behind, here
// or there.
func TestAbandonedOpen(t *testing.T) {
	bothWays(t, func(t *testing.T, l *link, opener, answerer *Session) {
		var waiting []tunnel.Stream
		for range backlog {
			st, err := opener.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			waiting = append(waiting, st)
		}
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := opener.Open(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("open: %v", err)
			}
			cancel()
		}
		for _, st := range waiting {
			_ = tunnel.Abort(st)
		}
		idles()
		l.isEmpty(t)
	})
}

// What is written while the connection is busy leaves together.
func TestLittleIsJoined(t *testing.T) {
	eachKind(t, tunnel.Options{}, func(t *testing.T, o tunnel.Options) {
		near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
		c := &counter{Conn: near}
		d, a := joined(t, c, far, o)
		keys, echo := pair(t, d.(*Session), a.(*Session))
		filler, _ := pair(t, d.(*Session), a.(*Session))
		idles()
		near.Stall(true)
		_, _ = filler.Write(make([]byte, 100<<10)) // more than the path holds
		synctest.Wait()
		before := c.writes.Load()
		for range 100 {
			if _, err := keys.Write([]byte("key")); err != nil {
				t.Fatal(err)
			}
		}
		near.Stall(false)
		if _, err := io.ReadFull(echo, make([]byte, 300)); err != nil {
			t.Fatal(err)
		}
		if n := c.writes.Load() - before; n > 2 {
			t.Errorf("100 small writes behind a stall became %d", n)
		}
		_, _ = d.Close(), a.Close()
	})
}

// A counter counts writes.
type counter struct {
	net.Conn
	writes atomic.Int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// What a peer says last is heard, although writing to it has failed before.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
		c := &mute{Conn: near}
		d, a := joined(t, c, far, tunnel.Options{})
		synctest.Wait()
		c.failing.Store(true)
		st, err := d.Open(t.Context()) // which is written, in vain
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s := a.(*Session)
		s.mu.Lock()
		s.closeReason = &sessionError{Code: tunnel.Revoked, Text: "you are not welcome"}
		s.sendCloseLocked(closeFrame(uint64(tunnel.Revoked), true, "you are not welcome"))
		s.mu.Unlock()
		<-d.Context().Done()
		if err := context.Cause(d.Context()); !errors.Is(err, tunnel.Revoked) {
			t.Errorf("cause: %v", err)
		}
		_, _, _ = st.Close(), d.Close(), a.Close()
	})
}

// A mute connection takes nothing, and still has something to say.
type mute struct {
	net.Conn
	failing atomic.Bool
}

func (c *mute) Write(p []byte) (int, error) {
	if c.failing.Load() {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}
