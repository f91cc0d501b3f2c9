// What a row says, made of a Node and a session.

package statuspage

import (
	"math"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/controlplane/evidence"
)

const (
	// maxText is how many characters of a text are shown. Names are shorter by themselves.
	maxText = 256
	// maxWord is the same for what is one word.
	maxWord = 64
)

// A row is what changes seldom of a node. Times are in seconds since 1970; zero is none.
type row struct {
	name     string
	ID       uint64 `json:"id"`
	Node     string `json:"node"`
	Site     string `json:"site,omitempty"`
	Ready    health `json:"ready"`
	Tunnel   health `json:"tunnel,omitzero"` // zero if the node never had one
	DataPath health `json:"path,omitzero"`   // likewise
	Cordoned bool   `json:"cordoned,omitempty"`
	Evicting int64  `json:"evicting,omitempty"` // since when pods are evicted
	Cut      cut    `json:"cut,omitzero"`
	Away     bool   `json:"away,omitempty"` // Tunnel is True, and no server has a session
	Frozen   freeze `json:"frozen,omitzero"`
}

// A health is True, False or Unknown, since when, and unless it is True, why.
type health struct {
	Status string `json:"is"`
	Since  int64  `json:"since,omitempty"`
	Why    string `json:"why,omitempty"`
}

// A cut is when a node last lost its connection, and why.
type cut struct {
	At  int64  `json:"at"`
	Why string `json:"why"`
}

// A decision says who decides about evictions. Zero means that this is not known.
type decision struct {
	Decides bool   `json:"decides"`           // so that freezes are known
	Decider string `json:"decider,omitempty"` // the other server that does; empty means this one
	Decided int64  `json:"decided,omitempty"` // when the other server said so
}

// own is the decision of a server that decides itself.
var own = decision{Decides: true}

// A freeze is why nothing is evicted from a node, and until when.
type freeze struct {
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"` // empty if another server decides
	Until   int64  `json:"until,omitempty"`
}

// rowOf is what a Node says. Its conditions are the node's own words.
func rowOf(n *corev1.Node) row {
	r := row{name: n.Name, Node: clip(n.Name, maxText), Site: siteOf(n), Cordoned: n.Spec.Unschedulable, Ready: health{Status: string(corev1.ConditionUnknown)}}
	for i := range n.Status.Conditions {
		switch c := &n.Status.Conditions[i]; c.Type {
		case corev1.NodeReady:
			r.Ready = healthOf(c)
		case evidence.TunnelConnected:
			r.Tunnel = healthOf(c)
		case evidence.DataPathReady:
			r.DataPath = healthOf(c)
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && (t.Key == corev1.TaintNodeUnreachable || t.Key == corev1.TaintNodeNotReady) {
			r.Evicting = n.CreationTimestamp.Unix()
			if t.TimeAdded != nil {
				r.Evicting = t.TimeAdded.Unix()
			}
		}
	}
	return r
}

// siteOf is the site of a node, or else its zone, as hawser explain fleet has it.
func siteOf(n *corev1.Node) string {
	if site := n.Labels[auth.SiteLabel]; site != "" {
		return "site " + clip(site, maxWord)
	}
	if zone := n.Labels[corev1.LabelTopologyZone]; zone != "" {
		return "zone " + clip(zone, maxWord)
	}
	return ""
}

func healthOf(c *corev1.NodeCondition) health {
	h := health{Status: string(c.Status), Since: seconds(c.LastTransitionTime.Time)}
	switch c.Status {
	case corev1.ConditionTrue:
		return h
	case corev1.ConditionFalse:
	default:
		h.Status = string(corev1.ConditionUnknown)
	}
	h.Why = clip(c.Reason, maxWord) + ": " + clip(c.Message, maxText)
	return h
}

// cutOf is the latest loss that is known of a session: the change by which it lost its
// connection, not those after it, such as the end of the wait for another one.
func cutOf(s *evidence.Session) cut {
	i := len(s.Changes) - 1
	for i >= 0 && s.Changes[i].State == evidence.Attached {
		i--
	}
	if i < 0 {
		return cut{}
	}
	for i > 0 && s.Changes[i-1].State != evidence.Attached {
		i--
	}
	c := &s.Changes[i]
	return cut{seconds(c.At), strings.TrimSuffix(string(c.Cause)+": "+clip(c.Err, maxText), ": ")}
}

// seconds is a time in a row.
func seconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func microseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 0), math.MaxUint32)) //nolint:gosec // bounded here
}

// clip is a text of somebody else's, of bounded length and without what is not to be seen.
func clip(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > most {
			b.WriteRune('…')
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}
