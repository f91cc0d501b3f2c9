// Tests of several agents with one identity: one of them is the node.

package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestJudge(t *testing.T) {
	hello := func(instance, sequence uint64) tunnel.Hello {
		return tunnel.Hello{Instance: instance, Sequence: sequence}
	}
	one := hello(1, 5)
	for _, tc := range []struct {
		name       string
		there      *tunnel.Hello
		superseded []uint64
		barredFor  time.Duration
		hello      tunnel.Hello
		want       verdict
	}{
		{"nobody there", nil, nil, 0, hello(1, 1), admit},
		{"nobody there, though superseded", nil, []uint64{1}, 1, hello(1, 1), barred},
		{"nobody there, though superseded long ago", nil, []uint64{1}, 0, hello(1, 1), admit},
		{"nobody there, others superseded", nil, []uint64{2}, time.Hour, hello(1, 1), admit},
		{"same instance, later session", &one, nil, 0, hello(1, 6), reconnect},
		{"same instance, earlier session", &one, nil, 0, hello(1, 4), stale},
		{"same instance, same session", &one, nil, 0, hello(1, 5), stale},
		{"another instance", &one, nil, 0, hello(2, 1), takeover},
		{"another instance, others superseded", &one, []uint64{7, 8}, 0, hello(2, 1), takeover},
		{"same instance, while its session ends for one elsewhere", &one, []uint64{1}, 0, hello(1, 6), fenced},
		{"a superseded instance", &one, []uint64{7, 2, 8}, 0, hello(2, 900), fenced},
	} {
		if got := judge(tc.there, tc.superseded, tc.barredFor, tc.hello); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// An instance that is known to be superseded yields to one elsewhere that connected before its
// latest session, also while that one's server does not know of it.
func TestSupersededYields(t *testing.T) {
	now := time.Now()
	here := &member{hello: tunnel.Hello{Instance: 1, Sequence: 2}, since: now}
	there := &Observation{Instance: 2, Connected: now.Add(-time.Second), Change: Change{State: Attached}}
	for _, tc := range []struct {
		superseded []uint64
		want       bool
	}{{nil, false}, {[]uint64{1}, true}, {[]uint64{2}, false}, {[]uint64{1, 2}, false}} {
		if got := (&entry{superseded: tc.superseded}).yields(here, there); got != tc.want {
			t.Errorf("with %v superseded it yields: %t, want %t", tc.superseded, got, tc.want)
		}
	}
}

// A fleet is the agents of one node. Each is an instance that numbers its sessions.
type fleet struct {
	*testHub
	sessions map[uint64]uint64
}

// attempt has an instance connect.
func (f *fleet) attempt(instance uint64) (*testAgent, error) {
	f.t.Helper()
	f.sessions[instance]++
	return f.connect(tunnel.Hello{Node: "n", Instance: instance, Sequence: f.sessions[instance]}, nil)
}

// let fails the test unless an instance is admitted.
func (f *fleet) let(instance uint64) *testAgent {
	f.t.Helper()
	x, err := f.attempt(instance)
	if err != nil {
		f.t.Fatalf("instance %d: %v", instance, err)
	}
	return x
}

// lose ends an instance's session without a goodbye.
func (f *fleet) lose(x *testAgent) {
	_ = x.session.Close()
	<-x.gone
	synctest.Wait()
}

// turned fails the test unless an instance is refused with the reason, the time to come back
// and the other instance. It returns that time.
func (f *fleet) turned(instance uint64, why string) time.Duration {
	f.t.Helper()
	_, err := f.attempt(instance)
	after, ok := tunnel.RetryAfter(err)
	if !errors.Is(err, tunnel.Replaced) || !ok || after > fencedAgain || strings.Count(fmt.Sprint(err), ", at ") != 2 || !strings.Contains(fmt.Sprint(err), why) {
		f.t.Fatalf("instance %d: %v, want to be turned away: %s", instance, err, why)
	}
	return after
}

func inFleet(t *testing.T, f func(t *testing.T, f *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		f(t, &fleet{testHub: newTestHub(t, Config{MaxGone: 2}), sessions: make(map[uint64]uint64)})
	})
}

// A machine and its copy: the copy takes over, the original is notified, and when it comes
// back it is refused, with a log line that names both and a metric.
func TestCloneIsFenced(t *testing.T) {
	inFleet(t, func(t *testing.T, f *fleet) {
		original := f.let(1)
		f.let(2)
		clone := f.last()
		<-original.gone
		if !errors.Is(original.err, tunnel.Replaced) || !strings.Contains(original.err.Error(), "another agent with this node's identity") {
			t.Errorf("original: %v", original.err)
		}
		for range 3 {
			if after := f.turned(1, "is connected"); after != fencedAgain {
				t.Errorf("asked to come back after %v", after)
			}
		}
		if n := f.metric("clones_total"); n != 3 {
			t.Errorf("clones: %v", n)
		}
		line := "level=WARN msg=\"two agents use one node's identity: give one of them an identity of its own\" node=n refused="
		if log := f.log.String(); strings.Count(log, line) != 3 || strings.Count(log, " preferred=") != 3 {
			t.Errorf("no lines in the log:\n%s", log)
		}
		clone.park()
		f.turned(1, "has been out of reach since ")
	})
}

// A silent copy may still run the pods: the original is not taken back before that time is
// over. If the copy comes back first, it is the node; if the original does, the copy is
// refused.
func TestSilentCloneKeepsTheNode(t *testing.T) {
	inFleet(t, func(t *testing.T, f *fleet) {
		f.let(1)
		f.lose(f.let(2))
		f.turned(1, "may still run its pods")
		time.Sleep(DefaultTakeBack / 2) // the bubble's clock
		f.turned(1, "may still run its pods")
		clone := f.let(2)
		f.turned(1, "is connected")
		time.Sleep(time.Hour) // the bubble's clock
		f.lose(clone)
		gone := time.Now()
		for after := f.turned(1, "may still run its pods"); time.Since(gone)+after < DefaultTakeBack; after = f.turned(1, "may still run its pods") {
			time.Sleep(after) // the bubble's clock
		}
		if !strings.Contains(f.log.String(), " preferred=") {
			t.Errorf("no line in the log:\n%s", f.log)
		}
		time.Sleep(time.Until(gone.Add(DefaultTakeBack))) // the bubble's clock
		f.let(1)
		f.turned(2, "is connected")
	})
}

// After a copy has left by itself another instance may take over, but not during the time
// of a restart: an instance that comes back then is the node.
func TestCloneLeaves(t *testing.T) {
	leave := func(f *fleet, x *testAgent) {
		_ = x.control.Drain(f.t.Context(), tunnel.Draining, "agent is stopping")
		<-x.gone
		synctest.Wait()
	}
	inFleet(t, func(t *testing.T, f *fleet) {
		f.let(1)
		leave(f, f.let(2))
		time.Sleep(takeBackLeft / 2) // the bubble's clock
		f.turned(1, "may still run its pods")
		restarted := f.let(3)
		f.turned(1, "is connected")
		leave(f, restarted)
		time.Sleep(takeBackLeft - time.Second) // the bubble's clock
		f.turned(1, "may still run its pods")
		time.Sleep(time.Second) // the bubble's clock
		f.let(1)
		f.turned(3, "is connected")
	})
}

// An instance that connects while no other is connected has taken over from the one before,
// which is refused when it comes back.
func TestSupersededWhileAway(t *testing.T) {
	inFleet(t, func(_ *testing.T, f *fleet) {
		f.lose(f.let(1))
		f.let(2)
		f.turned(1, "is connected")
	})
}

// An agent that was taken back stays accepted: another server's record of the copy, which
// has gone, does not bar it again after its next outage. A copy that connected elsewhere
// after it does.
func TestTakenBackForGood(t *testing.T) {
	copyAt := func(connected time.Time) Observation {
		return Observation{
			Node: "n", Instance: 2, Connected: connected, Superseded: []uint64{1},
			Change: Change{State: Detached, Cause: Silent, At: connected},
		}
	}
	inFleet(t, func(_ *testing.T, f *fleet) { // the copy was here
		f.let(1)
		old := copyAt(time.Now())
		f.lose(f.let(2))
		time.Sleep(DefaultTakeBack) // the bubble's clock
		x := f.let(1)
		f.hub.Learn("n", old)
		f.lose(x)
		f.hub.Learn("n", old)
		f.let(1)
	})
	inFleet(t, func(_ *testing.T, f *fleet) { // the copy was elsewhere only
		f.lose(f.let(1))
		time.Sleep(time.Second) // the bubble's clock
		old := copyAt(time.Now())
		f.hub.Learn("n", old)
		f.turned(1, "may still run its pods")
		time.Sleep(DefaultTakeBack) // the bubble's clock
		x := f.let(1)
		f.lose(x)
		f.hub.Learn("n", old)
		x = f.let(1)
		time.Sleep(time.Second) // the bubble's clock
		later := copyAt(time.Now())
		f.lose(x)
		f.hub.Learn("n", later)
		f.turned(1, "may still run its pods")
	})
}

// While the copy has a session with another server, the original is not taken back here, nor for
// the usual time after that session ended without a goodbye.
func TestCopyElsewhereKeepsTheNode(t *testing.T) {
	for cause, after := range map[Cause]time.Duration{Silent: DefaultTakeBack, Left: takeBackLeft} {
		inFleet(t, func(_ *testing.T, f *fleet) {
			f.let(1)
			clone := f.let(2)
			there := Observation{Node: "n", Instance: 2, Connected: time.Now(), Superseded: []uint64{1}, Change: Change{State: Attached}}
			gone := Observation{Node: "n", Instance: 2, Connected: time.Now(), Superseded: []uint64{1}, Change: Change{State: Detached, Cause: cause}}
			f.hub.Learn("n", there)
			f.lose(clone)
			f.hub.Learn("n", there, Observation{Node: "n", Instance: 1, Change: Change{State: Attached}})
			time.Sleep(DefaultTakeBack) // the bubble's clock
			f.turned(1, "is connected to another server")
			time.Sleep(2 * memory * DefaultTakeBack) // the bubble's clock
			f.turned(1, "is connected to another server")
			f.hub.Learn("n", gone, there) // two others
			f.turned(1, "is connected to another server")
			f.hub.Learn("n", gone)
			time.Sleep(after - time.Second) // the bubble's clock
			f.turned(1, "may still run its pods")
			time.Sleep(time.Second) // the bubble's clock
			f.let(1)
		})
	}
}

// TestCopyElsewhereLeaves: a copy takes the node over at another server and leaves in good order. The
// original is taken back here after the time of a restart, also if the copy has left before the
// original's session here has ended.
func TestCopyElsewhereLeaves(t *testing.T) {
	there := func(state State) []Observation {
		o := Observation{Node: "n", Instance: 2, Connected: time.Now(), Superseded: []uint64{1}, Change: Change{State: state, Cause: Left, Addr: "198.51.100.7:1"}}
		if state == Attached {
			o.Superseded = nil // that server has had no session of the original
		}
		return []Observation{o, {Node: "n", Instance: 1, Superseded: o.Superseded, Change: Change{State: Detached, Cause: Refused}}}
	}
	for name, learns := range map[string][]State{"seen": {Attached, Attached, Detached}, "seen once": {Attached, Detached}, "gone at once": {Detached}} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(_ *testing.T, f *fleet) {
				original := f.let(1)
				time.Sleep(time.Second) // the bubble's clock
				f.hub.Learn("n", there(Attached)...)
				if learns[0] == Detached {
					f.hub.Learn("n", there(Detached)...)
				}
				<-original.gone
				synctest.Wait()
				f.turned(1, "198.51.100.7:1, took over")
				for _, state := range learns {
					f.hub.Learn("n", there(state)...)
				}
				f.turned(1, "198.51.100.7:1, took over")
				time.Sleep(takeBackLeft - time.Second) // the bubble's clock
				f.turned(1, "may still run its pods")
				time.Sleep(time.Second) // the bubble's clock
				f.let(1)
			})
		})
	}
}

// Two servers that could not hear each other prefer different instances. Once they can, both
// prefer the one that connected later.
func TestSplitHeals(t *testing.T) {
	at := func(instance, old uint64, connected time.Time) Observation {
		return Observation{Node: "n", Instance: instance, Connected: connected, Superseded: []uint64{old}, Change: Change{State: Attached}}
	}
	inFleet(t, func(t *testing.T, f *fleet) {
		f.let(1)
		f.lose(f.let(2))
		time.Sleep(DefaultTakeBack) // the bubble's clock
		x := f.let(1)
		f.hub.Learn("n", at(2, 1, time.Now().Add(-time.Second)))
		synctest.Wait()
		if x.session.Context().Err() != nil {
			t.Errorf("the later one: %v", x.err)
		}
		f.turned(2, "is connected")
		f.hub.Learn("n", at(2, 1, time.Now().Add(time.Second)))
		synctest.Wait()
		if x.session.Context().Err() == nil {
			t.Fatal("the earlier one goes on")
		}
		f.hub.Learn("n", at(2, 1, time.Now()))
		f.turned(1, "is connected to another server")
		f.let(2)
	})
}

// A restarted agent is a new instance, and admitted at once.
func TestRestartedOriginalIsLetIn(t *testing.T) {
	inFleet(t, func(_ *testing.T, f *fleet) {
		f.let(1)
		f.lose(f.let(2))
		f.turned(1, "or at once if it is restarted")
		f.let(3)
		f.turned(2, "is connected")
		f.turned(1, "is connected")
	})
}

// A deleted node has no pods that could run twice, so every instance is admitted. While it
// is connected, its state stays.
func TestForgottenNodeIsOpen(t *testing.T) {
	inFleet(t, func(_ *testing.T, f *fleet) {
		f.let(1)
		clone := f.let(2)
		f.hub.Forget("n")
		f.turned(1, "is connected")
		f.lose(clone)
		f.turned(1, "may still run its pods")
		f.hub.Forget("n")
		f.let(1)
	})
}

// The registry keeps nodes without a session up to a number and for a time.
func TestRegistryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registry{takeBack: time.Minute, maxGone: 3}
		leave := func(node string) {
			m := &member{node: node, addr: memnet.Addr("here"), session: present{}, hello: tunnel.Hello{Instance: 1, Sequence: 1}}
			if s := r.attach(m); s.verdict != admit {
				t.Errorf("%s: %d", node, s.verdict)
			}
			r.detach(m, false)
			r.detach(m, false) // it is gone
		}
		for i := range 10 {
			leave(fmt.Sprint(i))
			time.Sleep(time.Second) // the bubble's clock
		}
		if len(r.nodes) != 3 || r.nodes["9"] == nil || r.nodes["7"] == nil || r.gone.Len() != 3 {
			t.Errorf("remembered: %v", r.nodes)
		}
		time.Sleep(memory*time.Minute - 2*time.Second) // the bubble's clock
		leave("9")
		if len(r.nodes) != 1 || r.gone.Len() != 1 {
			t.Errorf("remembered for too long: %v", r.nodes)
		}
	})
}

// TestSameHub: an agent that reaches one hub by two addresses can tell, before the hub has
// ended the session that there is. A session that comes late is not told that another agent
// is the node.
func TestSameHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		greet := func(sequence uint64) (tunnel.Session, *tunnel.Welcome, error) {
			s, err := b.dial("n")
			if err != nil {
				t.Fatal(err)
			}
			_, w, err := tunnel.Greet(t.Context(), s, tunnel.Hello{Node: "n", Instance: 1, Sequence: sequence})
			return s, &w, err
		}
		x := b.mustConnect(tunnel.Hello{Node: "n", Instance: 1, Sequence: 5})
		if _, _, err := greet(4); tunnel.CodeOf(err) != tunnel.Busy {
			t.Errorf("a session that comes late: %v", err)
		}
		s, first, err := greet(6)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close() // it has not answered
		synctest.Wait()
		if _, err := b.ask("n:1"); err != nil || x.session.Context().Err() != nil {
			t.Errorf("the session that there was: %v", err)
		}
		s, second, err := greet(7)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Close()
		other := newTestHub(t, Config{})
		if first.Meta[serverKey] == "" || first.Meta[serverKey] != second.Meta[serverKey] || first.Meta[serverKey] == other.hub.id {
			t.Errorf("the hub is %q and then %q; another one is %q", first.Meta[serverKey], second.Meta[serverKey], other.hub.id)
		}
	})
}
