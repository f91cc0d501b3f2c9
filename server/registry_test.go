package server

import (
	"context"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestRegistryForgets(t *testing.T) {
	var r registry
	last := &member{node: "n", addr: memnet.Addr("here"), session: present{}, hello: tunnel.Hello{Instance: 0, Sequence: 1}}
	r.attach(last)
	for i := uint64(1); i < 100; i++ {
		m := &member{node: "n", addr: memnet.Addr("here"), session: present{}, hello: tunnel.Hello{Instance: i, Sequence: 1}}
		if s := r.attach(m); s.verdict != takeover || !s.waits || len(s.dismissed) != 0 || r.find("n") != last {
			t.Fatalf("instance %d before it has answered: %+v", i, s)
		}
		changed := r.next()
		if s := r.settle(m); s.verdict != takeover || s.there != last || !slices.Equal(s.dismissed, []*member{last}) {
			t.Fatalf("instance %d: %+v", i, s)
		}
		select {
		case <-changed:
		default:
			t.Fatal("no notice of the change")
		}
		r.detach(last, false) // late: it has been replaced
		if r.find("n") != m {
			t.Fatal("the older session's end took the newer out")
		}
		last = m
	}
	if n := len(r.nodes["n"].superseded); n != maxFenced {
		t.Errorf("%d instances remembered", n)
	}
	r.detach(last, false)
	if len(r.nodes) != 0 || len(r.waiting) != 0 || r.find("n") != nil {
		t.Error("a node that left is remembered")
	}
	if !slices.Equal(r.all(), nil) && len(r.all()) != 0 {
		t.Error("somebody is left")
	}
}

func TestKept(t *testing.T) {
	for text, want := range map[string][]uint64{
		"": nil, "4": {4}, "4,3": {4, 3}, "4,3,2,1": {4, 3}, "5": nil, "6": nil, "-1": nil, "x,3": {3}, ",,,": nil, " 4": nil,
	} {
		if got := kept(tunnel.Hello{Sequence: 5, Meta: tunnel.Meta{keepsKey: text}}); !slices.Equal(got, want) {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// present is a live session for a registry.
type present struct{ tunnel.Session }

func (present) Context() context.Context { return context.Background() }
func (present) Link() tunnel.LinkState   { return tunnel.LinkState{} }

// An asked session checks that the registry asks about its connection without its lock: a session
// holds its own while it reports a change, on which the history waits, and that asks the registry.
type asked struct {
	present
	r *roster
}

func (a asked) Link() tunnel.LinkState {
	if !a.r.mu.TryLock() {
		a.r.t.Error("the registry asks a session about its connection while it is locked")
		return tunnel.LinkState{}
	}
	a.r.mu.Unlock()
	return tunnel.LinkState{}
}

// A roster is a registry and the sessions of node n that it is given.
type roster struct {
	registry
	t *testing.T
}

// session attaches a session whose agent answers.
func (r *roster) session(instance, sequence uint64, keeps string) (*member, seat) {
	r.t.Helper()
	m := &member{
		node: "n", addr: memnet.Addr("here"), session: asked{r: r}, control: new(tunnel.Control), turned: make(chan struct{}, 1),
		hello: tunnel.Hello{Instance: instance, Sequence: sequence, Meta: tunnel.Meta{keepsKey: keeps}},
	}
	before := r.find("n")
	s := r.attach(m)
	if s.waits {
		if len(s.dismissed) != 0 || s.demoted != nil || before != nil && r.find("n") != before {
			r.t.Errorf("%d.%d changed something before it had answered: %+v", instance, sequence, s)
		}
		s = r.settle(m)
	}
	return m, s
}

// demotes reports whether m was notified that it gets no more dials.
func (r *roster) demotes(m *member) bool {
	select {
	case <-m.turned:
		return r.isDemoted(m)
	default:
		return false
	}
}

// A kept session goes on without dials; one that is not named is closed.
func TestRegistryDemotes(t *testing.T) {
	r := &roster{t: t}
	one, _ := r.session(1, 1, "")
	two, s := r.session(1, 2, "1")
	if s.verdict != reconnect || s.demoted != one || len(s.dismissed) != 0 || !r.demotes(one) || r.find("n") != two {
		t.Fatalf("second session: %+v", s)
	}
	three, s := r.session(1, 3, "2,1")
	if s.demoted != two || len(s.dismissed) != 0 || !slices.Equal(r.nodes["n"].older, []*member{two, one}) {
		t.Fatalf("third session: %+v", s)
	}
	four, s := r.session(1, 4, "3,2,1") // one more than there is room for
	if s.demoted != three || !slices.Equal(s.dismissed, []*member{one}) || !slices.Equal(r.nodes["n"].older, []*member{three, two}) {
		t.Fatalf("fourth session: %+v", s)
	}
	if _, s = r.session(1, 4, ""); s.verdict != stale {
		t.Errorf("the same again: %+v", s)
	}
	changed := r.next()
	r.detach(two, false)
	select {
	case <-changed:
		t.Error("the end of a older session is no change")
	default:
	}
	clone, s := r.session(2, 9, "4,3") // not its own to keep
	if s.verdict != takeover || !slices.Equal(s.dismissed, []*member{four, three}) || r.demotes(four) {
		t.Errorf("another instance: %+v", s)
	}
	r.detach(clone, false)
	if len(r.nodes) != 0 {
		t.Errorf("left: %v", r.nodes)
	}
}

// When the session that takes the dials ends, the newest of the older ones that can
// serves again.
func TestRegistryPromotes(t *testing.T) {
	r := &roster{t: t}
	one, _ := r.session(1, 1, "")
	two, _ := r.session(1, 2, "1")
	if !r.demotes(one) {
		t.Fatal("the first session was not demoted")
	}
	changed := r.next()
	if older := r.detach(two, false); older != one || r.find("n") != one || len(r.all()) != 1 || len(one.turned) != 1 || r.isDemoted(one) {
		t.Errorf("the older session does not serve: %v, %v", older, r.find("n"))
	}
	<-changed
	if r.markClosing(one) {
		t.Error("a session that serves may be told to hang up")
	}
	if _, s := r.session(1, 1, ""); s.verdict != stale {
		t.Errorf("as old as the one that serves: %+v", s)
	}
	three, s := r.session(1, 3, "1")
	if s.demoted != one || r.find("n") != three {
		t.Errorf("another move: %+v", s)
	}
	if !r.markClosing(one) {
		t.Error("a demoted session may not be told to hang up")
	}
	if r.detach(three, false) != nil || r.find("n") != nil {
		t.Error("a session that is told to hang up takes dials again")
	}
	four, s := r.session(1, 4, "")
	if s.verdict != reconnect || s.demoted != nil || !slices.Equal(s.dismissed, []*member{one}) || r.find("n") != four {
		t.Errorf("fourth session: %+v", s)
	}
}
