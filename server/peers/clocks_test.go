// Tests of servers whose clocks differ.

package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
)

// An announced is a stream of sessions.
type announced struct{ net.Conn }

func (announced) CloseWrite() error { return nil }

// A once is a session that ends with its connection.
type once struct{ tunnel.Session }

func (once) Link() tunnel.LinkState { return tunnel.LinkState{} }

// announce has l hear what another server's clock and sessions are, and later messages, and
// waits until all is applied.
func announce(t *testing.T, l *link, m message, later ...message) {
	t.Helper()
	near, far := net.Pipe()
	heard := make(chan error, 1)
	go func() { heard <- l.hear(t.Context(), once{}, announced{near}) }()
	m.Complete = true
	out := json.NewEncoder(far)
	for _, m := range append([]message{m}, later...) {
		if err := out.Encode(m); err != nil {
			t.Fatal(err)
		}
	}
	_ = far.Close()
	<-heard // fails, since the stream has ended
}

// TestClocksDiffer: which of two agents came later does not depend on whether the clocks of
// the servers to which they came agree.
func TestClocksDiffer(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"an hour ahead": time.Hour, "an hour behind": -time.Hour, "the same": 0} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "a")
			a := f.servers["a"]
			ended, err := a.joinAs("n", 1, echo)
			if err != nil {
				t.Fatal(err)
			}
			a.await(func() bool { _, ok := a.hub.Session("n"); return ok })
			var log bytes.Buffer
			a.peers.log = slog.New(slog.NewTextHandler(&log, nil))
			l := a.peers.link(Peer{ID: "b"})
			defer func() { // it has no goroutine to end
				a.peers.mu.Lock()
				defer a.peers.mu.Unlock()
				delete(a.peers.links, "b")
			}()
			say := func(instance uint64, connected time.Time) {
				o := server.Observation{Node: "n", Instance: instance, Connected: connected.Add(ahead)}
				o.Change = server.Change{Number: 1, At: connected.Add(ahead), Heard: connected.Add(ahead), State: server.Attached}
				o.Changes = []server.Change{o.Change}
				announce(t, l, message{Now: time.Now().Add(ahead), Nodes: []server.Observation{o}})
			}
			before := time.Now().Add(-time.Minute)
			say(2, before)
			if _, ok := a.hub.Session("n"); !ok {
				t.Fatal("an agent that came before takes over")
			}
			select {
			case err := <-ended:
				t.Fatalf("an agent that came before takes over: %v", err)
			default:
			}
			a.peers.mu.Lock()
			got := l.nodes["n"]
			a.peers.mu.Unlock()
			for what, at := range map[string]time.Time{"connected": got.Connected, "changed": got.At, "heard": got.Heard, "first": got.Changes[0].At} {
				if d := at.Sub(before).Abs(); d > 30*time.Second {
					t.Errorf("%s off by %v", what, d)
				}
			}
			if n, want := strings.Count(log.String(), "clock of another server"), min(1, int(ahead.Abs())); n != want {
				t.Errorf("said %d times, want %d: %s", n, want, log.String())
			}
			say(3, time.Now())
			select {
			case err := <-ended:
				if !errors.Is(err, tunnel.Replaced) {
					t.Fatalf("the session ended with %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("an agent that came later does not take over")
			}
		})
	}
}

// TestClockIsSet: all times of an observation are told by the sender's clock of now, although
// it was set since, and its own record is left alone.
func TestClockIsSet(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	const set = 56 * 365 * 24 * time.Hour // ahead, after the times were taken
	taken := func(ago time.Duration) time.Time { return now.Add(-set - ago) }
	age := func(at time.Time) time.Duration { return now.Add(-set).Sub(at) } // by the monotonic clock
	first := server.Change{Number: 1, At: taken(time.Hour), State: server.Attached}
	last := server.Change{Number: 2, At: taken(time.Minute), Heard: taken(2 * time.Minute), State: server.Parked}
	record := server.Observation{Node: "n", Instance: 7, Connected: taken(2 * time.Hour), Change: last, Changes: []server.Change{first, last}}
	told := rebased(&record, now, age)
	for what, tc := range map[string]struct {
		got time.Time
		ago time.Duration
	}{
		"connected": {told.Connected, 2 * time.Hour}, "changed": {told.At, time.Minute}, "heard": {told.Heard, 2 * time.Minute},
		"first changed": {told.Changes[0].At, time.Hour}, "last changed": {told.Changes[1].At, time.Minute}, "last heard": {told.Changes[1].Heard, 2 * time.Minute},
	} {
		if got := now.Sub(tc.got); got != tc.ago {
			t.Errorf("%s %v ago, want %v", what, got, tc.ago)
		}
	}
	if !told.Changes[0].Heard.IsZero() || told.Node != "n" || told.Instance != 7 || told.Changes[1].Number != 2 {
		t.Errorf("other things have changed: %+v", told)
	}
	if record.Connected != taken(2*time.Hour) || record.Changes[0] != first || record.Changes[1] != last {
		t.Errorf("the record has changed: %+v", record)
	}
}

// set is now as a clock tells it that was set by d since the process began: the monotonic clock
// goes on.
func set(t *testing.T, now time.Time, d time.Duration) time.Time {
	t.Helper()
	then := now
	type layout struct { // of a time.Time with a monotonic time: there is no other way to make one
		wall uint64 // a bit, 33 of seconds and 30 of nanoseconds
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&then)).wall += uint64(d/time.Second) << 30
	if then.Sub(now) != 0 || then.Round(0).Sub(now.Round(0)) != d {
		t.Fatalf("the layout of time.Time is another one: %v, %v", now, then)
	}
	return then
}

// TestClockIsSetMeanwhile: the clock of one of two servers is set, which both have a session of a
// node from before. One of them speaks of it: the one with the newer session, unless the clocks
// differ by so little that it is not noticed.
func TestClockIsSetMeanwhile(t *testing.T) {
	for name, by := range map[string]time.Duration{"ahead": time.Hour, "back": -time.Hour, "a little": 5 * time.Second} {
		for _, newer := range []string{"a", "b"} {
			t.Run(name+", the newer session at "+newer, func(t *testing.T) {
				f := newFleet(t)
				a, b := f.start("a"), f.start("b")
				first, second := a, b
				if newer == "a" {
					first, second = b, a
				}
				first.join("n", echo)
				second.join("n", echo)
				now := time.Now()
				there := set(t, now, by)
				hears(t, a, b, now, there)
				hears(t, b, a, there, now)
				speaks := newer
				if o, _ := a.peers.Observe("n"); by.Abs() < stalled {
					speaks = o.Server
				}
				for id, s := range f.servers {
					if o, _ := s.peers.Observe("n"); o.Server != speaks || o.Elsewhere != (id != speaks) {
						t.Errorf("server %s: the session is with %s, elsewhere %v", id, o.Server, o.Elsewhere)
					}
				}
			})
		}
	}
}

// hears has s hear what another server tells of n, at a time as the clocks of both tell it.
func hears(t *testing.T, s, other *testServer, told, heard time.Time) {
	t.Helper()
	o, _ := other.hub.Observe("n")
	text, err := json.Marshal(message{Now: told, Nodes: []server.Observation{rebased(&o, told, told.Sub)}})
	if err != nil {
		t.Fatal(err)
	}
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	l := s.peers.link(Peer{ID: other.id})
	t.Cleanup(func() { // it has no goroutine to end
		s.peers.mu.Lock()
		defer s.peers.mu.Unlock()
		delete(s.peers.links, other.id)
	})
	l.translate(&m, heard)
	l.begin(t.Context(), once{}, map[string]server.Observation{"n": m.Nodes[0]}, false)
}
