package lanes

import (
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

func TestOffer(t *testing.T) {
	for _, c := range []struct{ theirs, ours, want int }{
		{4, 4, 4}, {2, 4, 2}, {4, 2, 2}, {1, 4, 1}, {4, 1, 1}, {0, 4, 1}, {4, 0, 1}, {99, 99, Limit},
	} {
		m := tunnel.Meta{}
		Offer(m, c.theirs)
		if got := Agreed(m, c.ours); got != c.want {
			t.Errorf("offered %d, wanting %d: %d, want %d", c.theirs, c.ours, got, c.want)
		}
	}
	for _, text := range []string{"", "x", "-3", "0"} {
		if got := Agreed(tunnel.Meta{metaLanes: text}, 4); got != 1 {
			t.Errorf("%q: %d lanes", text, got)
		}
	}
}

func TestJoin(t *testing.T) {
	if _, _, ok := Joined(tunnel.Meta{"version": "1"}); ok {
		t.Error("a lane, out of nothing")
	}
	m := tunnel.Meta{}
	Join(m, 1<<63, 7)
	if session, lane, ok := Joined(m); session != 1<<63 || lane != 7 || !ok {
		t.Errorf("%d, %d, %t", session, lane, ok)
	}
	for _, m := range []tunnel.Meta{
		{metaLane: "1"}, {metaLane: "", metaSession: "1"}, {metaLane: "0", metaSession: "1"}, {metaLane: "-1", metaSession: "1"}, {metaLane: "1", metaSession: "-1"},
	} {
		if session, lane, ok := Joined(m); session != 0 || lane != 0 || !ok {
			t.Errorf("%v: %d, %d, %t", m, session, lane, ok)
		}
	}
}
