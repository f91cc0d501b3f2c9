// Parked sessions: what waits, for how long, and how often another connection is tried.

package qmux

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// What is written while a session is parked arrives once it goes on.
func TestWrittenWhileParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		n.set(func() { n.down = errNoWay })
		n.cut()
		synctest.Wait()
		says(t, near, "there")
		says(t, far, "and back")
		time.Sleep(30 * time.Second)
		for _, s := range []*Session{d, a} {
			if l := s.Link(); l.Parked.IsZero() || !errors.Is(l.Cause, tunnel.Lost) {
				t.Errorf("%+v", l)
			}
		}
		n.set(func() { n.down = nil })
		hears(t, far, "there")
		hears(t, near, "and back")
		for _, s := range []*Session{d, a} {
			if l := s.Link(); l.Resumes != 1 || l.Parks != 1 || !l.Parked.IsZero() {
				t.Errorf("%+v", l)
			}
		}
		n.close(t, d, a)
	})
}

// What was in flight on a lost connection is counted once, and as retransmitted.
func TestLinkCountsBytesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		time.Sleep(time.Second) // until what was written so far is acknowledged
		text := strings.Repeat("in flight ", 5000)
		says(t, near, text)
		synctest.Wait() // it has arrived, and is not acknowledged
		n.cut()
		hears(t, far, text)
		time.Sleep(time.Second)
		written := uint64(len(".") + len(text))
		if l := d.Link(); l.Sent != written || l.Replayed == 0 || l.Resumes != 1 {
			t.Errorf("%d bytes were written, and the link is %+v", written, l)
		}
		if l := a.Link(); l.Received != written {
			t.Errorf("%d bytes were written, and the peer's link is %+v", written, l)
		}
		n.close(t, d, a)
	})
}

// After the window both ends fail, with why; not before.
func TestWindowIsOver(t *testing.T) {
	const window = tunnel.DefaultDetachWindow
	for name, tc := range map[string]struct {
		spoil func(*network)
		code  tunnel.Code
		most  time.Duration
	}{
		"cut":     {(*network).cut, tunnel.Lost, window},
		"stalled": {(*network).stall, tunnel.Dead, window + 20*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				d, a := n.pair(t, tunnel.Options{})
				near, far := opened(t, d, a)
				n.set(func() { n.down = errNoWay })
				began := time.Now()
				tc.spoil(n)
				var wg sync.WaitGroup
				for s, st := range map[*Session]tunnel.Stream{d: near, a: far} {
					wg.Go(func() {
						_, err := st.Read(make([]byte, 1))
						if took := time.Since(began); took < window || took > tc.most {
							t.Errorf("failed after %v", took)
						}
						var e *sessionError
						if !errors.As(err, &e) || e.Code != tc.code || !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
							t.Errorf("read: %v", err)
						}
						if _, err := st.Write([]byte("x")); !errors.Is(err, tc.code) {
							t.Errorf("write: %v", err)
						}
						if err := why(s); !errors.Is(err, tc.code) {
							t.Errorf("session: %v", err)
						}
					})
				}
				wg.Wait()
				n.close(t, d, a)
			})
		})
	}
}

// A window that was over while this process was stopped is extended, once each time:
// the other end's connection may wait to be accepted. A timer that was due meanwhile
// changes nothing about it.
func TestWindowIsOverWhileStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		sleep := func() {
			n.set(func() { n.down = errNoWay })
			n.cut()
			synctest.Wait()
			a.mu.Lock()
			a.stats.Parked = a.stats.Parked.Add(-time.Hour) // as if it had slept
			a.mu.Unlock()
			a.tick()
		}
		for range 2 {
			sleep()
			time.Sleep(grace / 2)
			a.tick()
			if err := context.Cause(a.Context()); err != nil {
				t.Fatalf("gave up within the extension: %v", err)
			}
			n.set(func() { n.down = nil })
			for !a.Link().Parked.IsZero() {
				time.Sleep(time.Millisecond)
			}
		}
		sleep()
		began := time.Now()
		if err := why(a); !errors.Is(err, tunnel.Lost) || time.Since(began) != grace {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		n.close(t, d, a)
	})
}

// A connection that ended while this process was stopped does not prove that the peer is alive: the
// peer has heard nothing, and may have ended it for that. One that ends later does.
func TestEndWhileStopped(t *testing.T) {
	for name, tc := range map[string]struct {
		ticks bool          // the timer fires before the end is read
		later time.Duration // from then to the end
		want  tunnel.Code
	}{
		"read before the timer fires": {false, 0, tunnel.Dead},
		"read after it":               {true, 0, tunnel.Dead},
		"much later":                  {true, 2 * lateTick, tunnel.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(tunnel.Options{})
				d, a := n.pair(t, tunnel.Options{})
				synctest.Wait()
				n.set(func() { n.down = errNoWay })
				a.mu.Lock()
				a.timerAt = time.Now().Add(-time.Minute) // as if it had slept
				a.mu.Unlock()
				if tc.ticks {
					a.tick()
				}
				time.Sleep(tc.later) // the bubble's clock
				n.cut()
				synctest.Wait()
				if cause := a.Link().Cause; !errors.Is(cause, tc.want) {
					t.Errorf("cause: %v, want %v", cause, tc.want)
				}
				n.close(t, d, a)
			})
		})
	}
}

// Connections that come about and break at once are not made as fast as can be.
func TestUselessConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		before := n.made()
		n.set(func() { n.wrap = func(c *memnet.Conn) net.Conn { return &brief{Conn: c, left: 1} } })
		n.cut()
		time.Sleep(tunnel.DefaultDetachWindow / 2)
		if made := n.made() - before; made < 5 || made > 100 {
			t.Errorf("%d connections in %v", made, tunnel.DefaultDetachWindow/2)
		}
		n.set(func() { n.wrap = nil })
		says(t, near, "in the end")
		hears(t, far, "in the end")
		n.close(t, d, a)
	})
}

// loggedTwice fails unless the log says twice that a session was parked and resumed.
func loggedTwice(t *testing.T, log *tunneltest.Log) {
	t.Helper()
	for _, line := range []string{`msg="session parked"`, `msg="session resumed"`} {
		if got := strings.Count(log.String(), line); got != 2 {
			t.Errorf("%s %d times, want 2:\n%s", line, got, log.String())
		}
	}
}

// A session that is parked and resumed many times within a second is logged once.
func TestParksAreLoggedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log tunneltest.Log
		n := newNetwork(tunnel.Options{Log: log.Logger()})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		for range 10 {
			n.cut()
			says(t, near, "on")
			hears(t, far, "on")
		}
		time.Sleep(time.Second) // the bubble's clock
		n.cut()
		says(t, near, "on")
		hears(t, far, "on")
		loggedTwice(t, &log)
		n.close(t, d, a)
	})
}

// Why a parked session is not resumed is logged once for each park.
func TestFirstFailureToResumeIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log tunneltest.Log
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{Log: log.Logger()})
		near, far := opened(t, d, a)
		for park := range 3 {
			n.set(func() { n.down = errNoWay })
			n.cut()
			time.Sleep(20 * time.Second) // the bubble's clock
			if got := strings.Count(log.String(), `level=WARN msg="cannot resume the session yet`); got != park+1 || !strings.Contains(log.String(), errNoWay.Error()) {
				t.Errorf("%d lines after %d parks:\n%s", got, park+1, log.String())
			}
			n.set(func() { n.down = nil })
			says(t, near, "on")
			hears(t, far, "on")
		}
		n.close(t, d, a)
	})
}

// What lasts is logged, also if it begins within a second of another park.
func TestLongParkIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log tunneltest.Log
		n := newNetwork(tunnel.Options{})
		d, a := n.pair(t, tunnel.Options{Log: log.Logger()})
		near, far := opened(t, d, a)
		n.cut()
		says(t, near, "on")
		hears(t, far, "on")
		time.Sleep(300 * time.Millisecond) // the bubble's clock
		n.set(func() { n.down = errNoWay })
		n.cut()
		time.Sleep(40 * time.Second) // the bubble's clock
		n.set(func() { n.down = nil })
		says(t, near, "on")
		hears(t, far, "on")
		loggedTwice(t, &log)
		n.close(t, d, a)
	})
}

// Data that kills each connection it is sent on, as a middlebox that filters contents does, is not
// sent on as many as can be made, also while small data of other streams arrives.
func TestDataThatKillsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seconds, most = 20, 100
		n, made := newNetwork(tunnel.Options{}), 0
		n.set(func() {
			n.wrap = func(c *memnet.Conn) net.Conn {
				if made++; made > most {
					return c
				}
				return &filtered{Conn: c}
			}
		})
		d, a := n.pair(t, tunnel.Options{})
		near, far := opened(t, d, a)
		small, _ := opened(t, d, a)
		go func() { _, _ = near.Write(bytes.Repeat(filterFor, 5000)) }() // until the filter is gone
		for range 4 * seconds {
			time.Sleep(time.Second / 4) // the bubble's clock
			says(t, small, "tick")
		}
		if n.made() > most {
			t.Errorf("more than %d connections in %d s", most, seconds)
		}
		n.set(func() { n.wrap = nil })
		if _, err := io.CopyN(io.Discard, far, int64(5000*len(filterFor))); err != nil {
			t.Error(err)
		}
		n.close(t, d, a)
	})
}

// A filtered connection is cut by a write with filterFor in it.
type filtered struct{ *memnet.Conn }

var filterFor = bytes.Repeat([]byte{0xee}, 64)

func (f *filtered) Write(p []byte) (int, error) {
	if bytes.Contains(p, filterFor) {
		_ = f.Abort() // never fails
		return 0, syscall.ECONNRESET
	}
	return f.Conn.Write(p)
}

// A brief connection lets so many writes through, and is cut then.
type brief struct {
	*memnet.Conn
	left int
}

func (b *brief) Write(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		_ = b.Abort() // never fails
		return 0, syscall.ECONNRESET
	}
	return b.Conn.Write(p)
}

// Open waits two seconds for a stream to end, and as long as its context allows while the session
// is parked.
func TestFullSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(tunnel.Options{MaxStreams: 2})
		d, a := n.pair(t, tunnel.Options{MaxStreams: 2})
		opened(t, d, a)
		opened(t, d, a)
		open := func(within, after time.Duration, want error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			began := time.Now()
			if _, err := d.Open(ctx); !errors.Is(err, want) || time.Since(began) != after {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(began), want, after)
			}
		}
		if l := d.Link(); l.Streams != 2 || l.MaxStreams != 2 {
			t.Errorf("%+v", l)
		}
		open(time.Minute, openTimeout, tunnel.Busy)
		open(time.Second, time.Second, context.DeadlineExceeded)
		n.set(func() { n.down = errNoWay })
		n.cut()
		synctest.Wait()
		open(30*time.Second, 30*time.Second, context.DeadlineExceeded)
		n.set(func() { n.down = nil })
		time.Sleep(30 * time.Second)
		open(time.Minute, openTimeout, tunnel.Busy)
		d.SetMaxStreams(3)
		open(time.Minute, openTimeout, tunnel.Busy) // the peer allows no more
		a.SetMaxStreams(3)
		synctest.Wait()
		open(time.Minute, 0, nil)
		n.close(t, d, a)
	})
}
