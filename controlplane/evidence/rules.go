package evidence

// The rules, each a function of what is known.

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// An observation is what is known of a silent node when it is judged.
type observation struct {
	cfg     *Config
	now     time.Time
	node    *corev1.Node
	view    *view
	stopped time.Time // when this process was last stopped
	woke    time.Time // and when it went on
	site    *site     // nil if the node has none

	session Session
	known   bool      // there is, or was, a session
	silent  bool      // and it is silent, or was until just now
	last    time.Time // its last word, if so
	heard   bool      // the node says itself that it is not ready
	unknown time.Time // since when its readiness is unknown; zero if it is not

	keep     time.Duration // for how long pods are kept
	explicit bool          // because an annotation says so
}

// hasTunnel reports whether the node had a tunnel since this server started,
// or before that.
func (h *observation) hasTunnel() bool {
	return h.known || condition(h.node, TunnelConnected) != ""
}

func condition(n *corev1.Node, t corev1.NodeConditionType) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return ""
}

// justStarted excuses nodes that have had no time to come back.
func justStarted(h *observation) excuse {
	if !h.hasTunnel() {
		return excuse{}
	}
	// A node that was found dead before is not found so anew after each start.
	bound := h.until(h.now, 2*h.cfg.StartupGrace)
	if until := earlier(h.cfg.Started.Add(h.cfg.StartupGrace), bound); (!h.known || h.session.recalled) && h.now.Before(until) {
		return excuse{ServerJustStarted, fmt.Sprintf("the server was started at %s and the node has until %s to come back", clock(h.cfg.Started), clock(until)), until}
	}
	until := earlier(h.woke.Add(h.cfg.StartupGrace), bound)
	if h.woke.IsZero() || !h.now.Before(until) || h.known && h.session.proven() && h.session.At.Before(h.stopped) {
		return excuse{}
	}
	return excuse{ServerJustStarted, fmt.Sprintf("the server was stopped from %s to %s and the node has until %s to come back", clock(h.stopped), clock(h.woke), clock(until)), until}
}

// serverLost excuses nodes that the server cannot reach because it reaches nobody.
func serverLost(h *observation) excuse {
	if !h.silent {
		return excuse{}
	}
	until := h.until(h.last, h.cfg.ServerBound)
	if h.view.links != nil && !h.session.local() && !h.session.recalled && h.now.Before(until) {
		return excuse{ServerLostNetwork, fmt.Sprintf("the server's own network is down: %v; pods are kept until %s", h.view.links, clock(until)), until}
	}
	until = h.until(h.last, h.keep)
	if !h.cut(h.view.groupOf(&h.session)) || !h.now.Before(until) {
		return excuse{}
	}
	return excuse{ServerLostNetwork, fmt.Sprintf("%s with a tunnel%s fell silent together at %s; pods are kept until %s", h.view.groupOf(&h.session).silenced(h.last, h.cfg.Together), h.view.from(&h.session), clock(h.last), clock(until)), until}
}

// siteLost excuses nodes whose site is out of reach.
func siteLost(h *observation) excuse {
	if !h.silent || h.site == nil || !h.cut(&h.site.group) {
		return excuse{}
	}
	until := h.until(h.last, h.keep)
	if !h.now.Before(until) {
		return excuse{}
	}
	return excuse{SiteLostNetwork, fmt.Sprintf("%s of site %s fell silent together at %s; pods are kept until %s", h.site.silenced(h.last, h.cfg.Together), h.site.name, clock(h.last), clock(until)), until}
}

// until is when an excuse ends that is good for term: counted from a time, and no
// longer than that from when the node was found silent. What happens while it stays
// silent begins no term anew: neither that its session comes and goes, nor its
// neighbours', nor this server.
func (h *observation) until(from time.Time, term time.Duration) time.Time {
	if !h.unknown.IsZero() {
		from = earlier(from, h.unknown)
	}
	return from.Add(term)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (h *observation) cut(g *group) bool {
	return g.cut(h.node.Name, h.last, h.cfg.Together, h.cfg.StartupGrace)
}

// autonomous excuses nodes that an annotation does.
func autonomous(h *observation) excuse {
	if !h.explicit || h.unknown.IsZero() {
		return excuse{}
	}
	until := h.unknown.Add(h.keep)
	if !h.now.Before(until) {
		return excuse{}
	}
	return excuse{Autonomy, fmt.Sprintf("the node is out of reach since %s and an annotation keeps its pods for %v, until %s", clock(h.unknown), h.keep, clock(until)), until}
}

// attached excuses nodes that are in reach, if that is wanted.
func attached(h *observation) excuse {
	if !h.cfg.KeepAttached || !h.known || h.silent || h.session.State != Attached || h.unknown.IsZero() ||
		condition(h.node, DataPathReady) != corev1.ConditionTrue {
		return excuse{}
	}
	until := h.unknown.Add(h.keep)
	if !h.now.Before(until) {
		return excuse{}
	}
	return excuse{TunnelAttached, fmt.Sprintf("the node's tunnel is attached and its kubelet API answers, only heartbeats are missing; pods are kept until %s", clock(until)), until}
}

// An excuse is why a node's silence is not its own, and until when that counts. The zero
// excuse is none.
type excuse struct {
	reason, message string
	until           time.Time
}

// clock is a time for people.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
