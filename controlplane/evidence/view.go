package evidence

// The overview of all nodes that judgements are based on.

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/hawser-project/hawser/auth"
)

// Annotations that say for how long pods are kept on a node that is silent, as
// durations such as 30m. That of the node itself goes before those of its site, of
// which the longest counts. Zero means that they are not kept. None counts for more
// than Config.MaxAutonomy. A node cannot write them (NodeRestriction).
const (
	NodeAutonomy = "node.hawser.dev/autonomy-duration"
	SiteAutonomy = "site.hawser.dev/autonomy-duration"
)

// invalidAutonomy is the reason of the event about an annotation that is none of
// these.
const invalidAutonomy = "InvalidAutonomyDuration"

// TunnelConnected and DataPathReady are the types of the conditions that tell
// what the tunnel knows of a node.
const (
	TunnelConnected corev1.NodeConditionType = "hawser.dev/TunnelConnected"
	DataPathReady   corev1.NodeConditionType = "hawser.dev/DataPathReady"
)

// A site is the nodes with one value of auth.SiteLabel.
type site struct {
	group

	name     string
	autonomy time.Duration // the longest annotation
	explicit bool          // there is one
}

// A view is what was known at a time.
type view struct {
	at       time.Time
	longest  time.Duration // that an annotation can ask for
	links    error
	far      group              // all with a session from another machine
	near     group              // and from this one
	sites    map[string]*site   // by key
	sessions map[string]Session // of the nodes that have one, or had
}

// lookLocked makes a view of now.
func (j *Judge) lookLocked(now time.Time) *view {
	v := &view{at: now, longest: j.cfg.MaxAutonomy, links: j.cfg.Links(), sites: make(map[string]*site), sessions: make(map[string]Session)}
	nodes, err := j.cfg.Nodes.List(labels.Everything())
	if err != nil { // a lister of a cache never fails
		j.log.Error("list nodes", "err", err)
	}
	seen := 0 // that this server has, or had, a session with
	for _, n := range nodes {
		where := v.siteOf(n)
		if d, ok := v.duration(n, SiteAutonomy); ok && where != nil {
			where.autonomy, where.explicit = max(where.autonomy, d), true
		}
		s, ok := j.observeLocked(n, now)
		if !ok {
			continue
		}
		if !s.recalled {
			seen++
		}
		v.sessions[n.Name] = s
		v.groupOf(&s).add(&s, now, j.cfg.Silence)
		if where != nil {
			where.add(&s, now, j.cfg.Silence)
		}
	}
	if len(j.records) > seen {
		j.forgetLocked(now)
	}
	if len(j.recalled) > len(nodes) {
		j.dropRecalledLocked(nodes)
	}
	v.far.settle()
	v.near.settle()
	for _, s := range v.sites {
		s.settle()
	}
	return v
}

// groupOf returns the nodes that share s's way to the server: an agent on this machine
// says nothing about the network.
func (v *view) groupOf(s *Session) *group {
	if s.local() {
		return &v.near
	}
	return &v.far
}

// from says which nodes groupOf returns; empty if there are no others.
func (v *view) from(s *Session) string {
	switch {
	case s.local() && v.far.nodes > 0:
		return " from the server's own machine"
	case !s.local() && v.near.nodes > 0:
		return " from other machines than the server's"
	default:
		return ""
	}
}

// siteOf is the node's site, which is made if it is the first; nil if it has none.
func (v *view) siteOf(n *corev1.Node) *site {
	key := siteOf(n)
	if key == "" {
		return nil
	}
	s := v.sites[key]
	if s == nil {
		s = &site{name: key}
		v.sites[key] = s
	}
	return s
}

// siteOf is the site of a node; empty if it is of none. A zone is none: which zone
// it is in a node says itself when it is made.
func siteOf(n *corev1.Node) string { return n.Labels[auth.SiteLabel] }

// autonomy is what annotations say of a node.
func (v *view) autonomy(n *corev1.Node, s *site) (time.Duration, bool) {
	if d, ok := v.duration(n, NodeAutonomy); ok {
		return d, true
	}
	if s != nil && s.explicit {
		return s.autonomy, true
	}
	if s == nil { // a site of its own
		return v.duration(n, SiteAutonomy)
	}
	return 0, false
}

// duration is what an annotation is good for.
func (v *view) duration(n *corev1.Node, key string) (time.Duration, bool) {
	d, ok := duration(n, key)
	return min(d, v.longest), ok
}

// duration is what an annotation says; not ok if there is none, or none that makes
// sense.
func duration(n *corev1.Node, key string) (time.Duration, bool) {
	text, ok := n.Annotations[key]
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}

// scan tells of annotations that make no sense or ask for too much, of each once.
func (j *Judge) scan() {
	nodes, err := j.cfg.Nodes.List(labels.Everything())
	if err != nil {
		return
	}
	j.mu.Lock()
	before := j.warned
	j.mu.Unlock()
	now := make(map[string]string)
	for _, n := range nodes {
		for _, key := range []string{NodeAutonomy, SiteAutonomy} {
			text, there := n.Annotations[key]
			d, ok := duration(n, key)
			if !there || ok && d <= j.cfg.MaxAutonomy {
				continue
			}
			id := string(n.UID) + " " + n.Name + " " + key
			now[id] = text
			if told, known := before[id]; known && told == text {
				continue
			}
			ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: n.UID}
			if ok {
				j.cfg.Events.Eventf(ref, corev1.EventTypeWarning, invalidAutonomy,
					"Annotation %s of node %s counts for %v: %s is more than --max-autonomy-duration", key, n.Name, j.cfg.MaxAutonomy, text)
				continue
			}
			j.cfg.Events.Eventf(ref, corev1.EventTypeWarning, invalidAutonomy,
				"Annotation %s of node %s is ignored: %q is no duration; write one such as 30m or 12h", key, n.Name, text)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !maps.Equal(j.warned, now) {
		j.warned = now
	}
}
