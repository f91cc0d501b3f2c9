package server

import (
	"slices"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

func TestRegistryForgets(t *testing.T) {
	var r registry
	last := &member{node: "n", addr: memnet.Addr("here"), hello: tunnel.Hello{Instance: 0, Sequence: 1}}
	r.attach(last)
	for i := uint64(1); i < 100; i++ {
		m := &member{node: "n", addr: memnet.Addr("here"), hello: tunnel.Hello{Instance: i, Sequence: 1}}
		changed := r.next()
		if s := r.attach(m); s.verdict != takeover || s.there != last || !slices.Equal(s.ousted, []*member{last}) {
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
	if len(r.nodes) != 0 || r.find("n") != nil {
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

// A session that is kept goes on without dials; whatever is not named is ousted.
func TestRegistryDemotes(t *testing.T) {
	var r registry
	session := func(instance, sequence uint64, keeps string) (*member, seat) {
		m := &member{
			node: "n", addr: memnet.Addr("here"), demoted: make(chan struct{}),
			hello: tunnel.Hello{Instance: instance, Sequence: sequence, Meta: tunnel.Meta{keepsKey: keeps}},
		}
		return m, r.attach(m)
	}
	demoted := func(m *member) bool {
		select {
		case <-m.demoted:
			return true
		default:
			return false
		}
	}
	one, _ := session(1, 1, "")
	two, s := session(1, 2, "1")
	if s.verdict != reconnect || s.demoted != one || len(s.ousted) != 0 || !demoted(one) || r.find("n") != two {
		t.Fatalf("second session: %+v", s)
	}
	three, s := session(1, 3, "2,1")
	if s.demoted != two || len(s.ousted) != 0 || !slices.Equal(r.nodes["n"].waning, []*member{two, one}) {
		t.Fatalf("third session: %+v", s)
	}
	four, s := session(1, 4, "3,2,1") // one more than there is room for
	if s.demoted != three || !slices.Equal(s.ousted, []*member{one}) || !slices.Equal(r.nodes["n"].waning, []*member{three, two}) {
		t.Fatalf("fourth session: %+v", s)
	}
	if _, s = session(1, 4, ""); s.verdict != stale {
		t.Errorf("the same again: %+v", s)
	}
	changed := r.next()
	r.detach(two, false)
	select {
	case <-changed:
		t.Error("the end of a waning session is no change")
	default:
	}
	r.detach(four, false)
	if r.find("n") != nil || len(r.all()) != 0 {
		t.Error("a demoted session takes dials again")
	}
	if _, s = session(1, 3, ""); s.verdict != stale {
		t.Errorf("older than the one that wanes: %+v", s)
	}
	five, s := session(1, 5, "")
	if s.verdict != reconnect || s.demoted != nil || !slices.Equal(s.ousted, []*member{three}) || r.find("n") != five {
		t.Errorf("fifth session: %+v", s)
	}
	six, _ := session(1, 6, "5")
	clone, s := session(2, 9, "5,6") // not its own to keep
	if s.verdict != takeover || !slices.Equal(s.ousted, []*member{six, five}) || demoted(six) {
		t.Errorf("another instance: %+v", s)
	}
	r.detach(clone, false)
	if len(r.nodes) != 0 {
		t.Errorf("left: %v", r.nodes)
	}
}
