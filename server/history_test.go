// Tests of the hub's history of nodes, and of followers.

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

func TestCauseOf(t *testing.T) {
	over := func(code tunnel.Code, cause error) error {
		return fmt.Errorf("%w: %w", tunnel.Lost, &wrapped{[]error{code, syscall.ECONNRESET, cause}})
	}
	for _, tc := range []struct {
		name string
		err  error
		want Cause
	}{
		{"none", nil, Unknown},
		{"silence", fmt.Errorf("%w: nothing heard for 20s", tunnel.Dead), Silent},
		{"silence until the window was over", over(tunnel.Dead, tunnel.Dead), Silent},
		{"the system's time-out", &os.SyscallError{Syscall: "read", Err: syscall.ETIMEDOUT}, Silent},
		{"no route", syscall.EHOSTUNREACH, Silent},
		{"no network", syscall.ENETUNREACH, Silent},
		{"nothing could be written", os.ErrDeadlineExceeded, Silent},
		{"closed", io.EOF, Closed},
		{"cut within a record", io.ErrUnexpectedEOF, Closed},
		{"reset", &os.SyscallError{Syscall: "read", Err: syscall.ECONNRESET}, Closed},
		{"broken pipe", syscall.EPIPE, Closed},
		{"closed until the window was over", over(tunnel.Lost, io.EOF), Closed},
		{"closed by a peer over QUIC", over(tunnel.Lost, nil), Closed},
		{"goodbye", &tunnel.Goodbye{Code: tunnel.Draining, Text: "agent is stopping"}, Left},
		{"goodbye for a fault", &tunnel.Goodbye{Code: tunnel.Internal, Text: "session is broken"}, Failed},
		{"left", fmt.Errorf("%w: the agent has left", tunnel.Draining), Left},
		{"replaced", fmt.Errorf("%w: the agent reconnected", tunnel.Replaced), Replaced},
		{"denied", fmt.Errorf("%w: node n has been deleted", tunnel.Denied), Refused},
		{"protocol", fmt.Errorf("control: %w", tunnel.ErrFrame), Failed},
		{"odd", errors.New("odd"), Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := causeOf(tc.err); got != tc.want {
				t.Errorf("%v: %v, want %v", tc.err, got, tc.want)
			}
		})
	}
}

type wrapped struct{ all []error }

func (*wrapped) Error() string { return "wrapped" }
func (w *wrapped) Unwrap() []error {
	return slices.DeleteFunc(w.all, func(e error) bool { return e == nil })
}

// turns are a node's changes as text.
func (b *testHub) turns(node string) string {
	b.t.Helper()
	synctest.Wait()
	o, ok := b.hub.Observe(node)
	if !ok {
		return "unknown"
	}
	var all []string
	for i, c := range o.Changes {
		if i > 0 && c.Number != o.Changes[i-1].Number+1 {
			b.t.Errorf("%s: numbers %d and %d follow each other", node, o.Changes[i-1].Number, c.Number)
		}
		s := c.State.String()
		if c.Cause != Unknown {
			s += "/" + c.Cause.String()
		}
		all = append(all, s)
	}
	if last := o.Changes[len(o.Changes)-1]; last.At != o.At || last.State != o.State {
		b.t.Errorf("%s: the latest change is %+v, and it stands %+v", node, last, o.Change)
	}
	return strings.Join(all, " ")
}

func TestHistory(t *testing.T) {
	silence := fmt.Errorf("%w: nothing heard for 20s", tunnel.Dead)
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, b *testHub, x *testAgent)
		want string
	}{
		{"attached", func(*testing.T, *testHub, *testAgent) {}, "Attached"},
		{"parked and back", func(_ *testing.T, b *testHub, _ *testAgent) {
			b.last().parkFor(silence, 20*time.Second)
			time.Sleep(time.Second)
			b.last().resume()
		}, "Attached Parked/Silent Attached"},
		{"closed", func(_ *testing.T, _ *testHub, x *testAgent) { _ = x.session.Close() }, "Attached Detached/Closed"},
		{"reset, and not back", func(_ *testing.T, b *testHub, x *testAgent) {
			b.last().parkFor(syscall.ECONNRESET, 0)
			_ = x.session.Close()
		}, "Attached Parked/Closed Detached/Closed"},
		{"silent, and not back", func(_ *testing.T, b *testHub, x *testAgent) {
			b.last().parkFor(silence, 20*time.Second)
			_ = x.session.Close() // the source of the change does not matter
		}, "Attached Parked/Silent Detached/Silent"},
		{"silent, and then its system says that nobody has the port", func(_ *testing.T, b *testHub, x *testAgent) {
			b.last().parkFor(silence, 20*time.Second)
			time.Sleep(time.Second)
			b.last().parkFor(silence, 20*time.Second) // no change
			time.Sleep(time.Second)
			b.last().parkFor(fmt.Errorf("%w: %w: nobody has the port", tunnel.Lost, syscall.ECONNREFUSED), 20*time.Second)
			time.Sleep(time.Second)
			_ = x.session.Close()
		}, "Attached Parked/Silent Parked/Closed Detached/Closed"},
		{"goodbye", func(t *testing.T, _ *testHub, x *testAgent) {
			if err := x.control.HangUp(&tunnel.Goodbye{Code: tunnel.Draining, Text: "agent is stopping"}); err != nil {
				t.Error(err)
			}
		}, "Attached Detached/Left"},
		{"drained", func(t *testing.T, _ *testHub, x *testAgent) {
			if err := x.control.Drain(t.Context(), tunnel.Draining, "agent is stopping"); err != nil {
				t.Error(err)
			}
			<-x.gone
		}, "Attached Detached/Left"},
		{"reconnected", func(_ *testing.T, b *testHub, x *testAgent) {
			b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2})
			<-x.gone
		}, "Attached Attached"},
		{"another instance", func(_ *testing.T, b *testHub, x *testAgent) {
			b.mustConnect(tunnel.Hello{Node: "n", Instance: 2, Sequence: 1})
			<-x.gone
		}, "Attached Attached"},
		{"moved, and the older session ends", func(_ *testing.T, b *testHub, x *testAgent) {
			b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 2, Meta: tunnel.Meta{"keeps": "1"}})
			_ = x.session.Close()
		}, "Attached Attached"},
		{"server stops", func(t *testing.T, b *testHub, _ *testAgent) {
			if err := b.stop(); err != nil {
				t.Error(err)
			}
		}, "Attached Detached/Drained"},
		{"at rest for hours", func(*testing.T, *testHub, *testAgent) {
			time.Sleep(4 * time.Hour)
		}, "Attached"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestHub(t, Config{})
				x := b.mustConnect(one("n"))
				tc.do(t, b, x)
				if got := b.turns("n"); got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
			})
		})
	}
}

func TestObservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		if o, ok := b.hub.Observe("n"); ok {
			t.Errorf("before it was ever there: %+v", o)
		}
		b.mustConnect(tunnel.Hello{Node: "n", Instance: 7, Sequence: 1})
		began := time.Now()
		time.Sleep(time.Minute)
		b.last().parkFor(fmt.Errorf("%w: nothing heard for 20s", tunnel.Dead), 20*time.Second)
		time.Sleep(time.Second)
		o, ok := b.hub.Observe("n")
		if !ok || o.Node != "n" || o.Instance != 7 || o.Connected != began || o.State != Parked || o.At != began.Add(time.Minute) ||
			o.Heard != began.Add(40*time.Second) || o.Parks != 1 || o.Window != tunnel.DefaultDetachWindow ||
			o.Transport != "memory" || o.Session == 0 || o.Err != "peer is silent: nothing heard for 20s" || o.Addr == "" {
			t.Errorf("parked: %+v", o)
		}
		b.last().resume()
		o, _ = b.hub.Observe("n")
		if o.State != Attached || o.Err != "" || o.Resumes != 1 || o.Heard != time.Now() || o.At != time.Now() {
			t.Errorf("resumed: %+v", o)
		}
		if all := b.hub.Observations(); len(all) != 1 || all[0].Node != "n" {
			t.Errorf("all: %+v", all)
		}
	})
}

func TestRefusalIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("node n has been revoked")
		b := newTestHub(t, Config{Admit: func(_ context.Context, node string, _ tunnel.Peer) error {
			if node == "n" {
				return why
			}
			return nil
		}})
		for range 3 {
			if _, err := b.connect(one("n"), nil); !errors.Is(err, tunnel.Denied) {
				t.Fatalf("admitted: %v", err)
			}
		}
		if got := b.turns("n"); got != "Detached/Refused" {
			t.Errorf("got %s", got)
		}
		if o, _ := b.hub.Observe("n"); !strings.Contains(o.Err, why.Error()) || o.Node != "n" {
			t.Errorf("got %+v", o)
		}
	})
}

// The history has 16 changes for each node, and a bound of nodes.
func TestHistoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{MaxGone: 3})
		b.mustConnect(one("stays"))
		for range 40 {
			b.last().park()
			b.last().resume()
		}
		if o, _ := b.hub.Observe("stays"); len(o.Changes) != maxChanges || o.Number != 81 {
			t.Errorf("%d changes, the latest has number %d", len(o.Changes), o.Number)
		}
		for i := range 6 {
			x := b.mustConnect(one(fmt.Sprintf("n%d", i)))
			_ = x.session.Close()
			synctest.Wait()
		}
		var known []string
		for _, o := range b.hub.Observations() {
			known = append(known, o.Node)
		}
		if want := []string{"n3", "n4", "n5", "stays"}; !slices.Equal(known, want) {
			t.Errorf("known: %v, want %v", known, want)
		}
		b.hub.Forget("n4")
		b.hub.Forget("stays") // at its end
		b.hub.Forget("never seen")
		if got := b.turns("n4"); got != "unknown" {
			t.Errorf("forgotten: %s", got)
		}
		if got := b.turns("stays"); got == "unknown" {
			t.Error("forgotten although it is there")
		}
		if back := b.mustConnect(one("n3")); back != nil { // and is gone no more
			if n := b.hub.history.gone.Len(); n != 1 {
				t.Errorf("%d nodes are gone, want n5 alone", n)
			}
		}
	})
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		b.mustConnect(one("early"))
		ctx, cancel := context.WithCancel(t.Context())
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			told [][]string
			hold = make(chan struct{})
		)
		wg.Go(func() {
			if err := b.hub.Follow(ctx, func(names []string) {
				slices.Sort(names)
				mu.Lock()
				told = append(told, names)
				first := len(told) == 2
				mu.Unlock()
				if first {
					<-hold
				}
			}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		b.mustConnect(one("a")) // the follower does not read from here on
		for range 100 {
			b.last().park()
			b.last().resume()
		}
		b.mustConnect(one("b"))
		close(hold)
		synctest.Wait()
		cancel()
		wg.Wait()
		want := [][]string{{"early"}, {"a"}, {"a", "b"}}
		if !slices.EqualFunc(told, want, slices.Equal) {
			t.Errorf("told %v, want %v", told, want)
		}
		if n := len(b.hub.history.followers.all); n != 0 {
			t.Errorf("%d followers are left", n)
		}
	})
}

// A follower is told once that there is no node.
func TestFollowNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Followers
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var told [][]string
		wg.Go(func() {
			s.Follow(ctx, func() []string { return nil }, func(names []string) { told = append(told, names) })
		})
		synctest.Wait()
		s.Tell()
		s.Tell("a")
		cancel()
		wg.Wait()
		if len(told) == 0 || len(told[0]) != 0 {
			t.Errorf("told %v", told)
		}
	})
}

// A follower that is too far behind gets the state of all nodes.
func TestFollowOverflow(t *testing.T) {
	h := newHistory(defaultMaxGone)
	f := &follower{dirty: make(map[string]struct{}), wake: make(chan struct{}, 1)}
	h.followers.all = map[*follower]struct{}{f: {}}
	for i := range maxDirty {
		h.followers.Tell(fmt.Sprint(i))
	}
	if f.all || len(f.dirty) != maxDirty {
		t.Fatalf("%d names, all %v", len(f.dirty), f.all)
	}
	h.refuse("n", "", errors.New("no"))
	if !f.all || len(f.dirty) != 0 {
		t.Errorf("%d names, all %v", len(f.dirty), f.all)
	}
	if got := h.followers.take(f, h.names); !slices.Equal(got, []string{"n"}) || f.all {
		t.Errorf("told %v, all %v", got, f.all)
	}
}

func BenchmarkObservations(b *testing.B) {
	h := newHistory(defaultMaxGone)
	for i := range 10_000 {
		h.refuse(fmt.Sprintf("node-%d", i), "10.0.0.1:1", io.EOF)
	}
	hub := &Hub{history: h}
	for b.Loop() {
		if n := len(hub.Observations()); n != 10_000 {
			b.Fatal(n)
		}
	}
}
