package tunnelhealth

// What the conditions say, as functions of what is known.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// Reasons of the conditions. While the session is parked, waiting for another
// connection, that of TunnelConnected begins with Parked.
const (
	Attached         = "Attached"
	LinkSilent       = evidence.LinkSilent
	ConnectionClosed = "ConnectionClosed"
	AgentStopped     = "AgentStopped"
	AgentRefused     = "AgentRefused"
	TunnelFailed     = "TunnelFailed"
	NotConnected     = "NotConnected" // not since the server was started
	ParkedPrefix     = evidence.ParkedPrefix

	ProbeSucceeded = "ProbeSucceeded"
	ProbeFailed    = "ProbeFailed"
	NoTunnel       = "NoTunnel"
)

// reasons are those of a session that has no connection.
var reasons = map[evidence.Cause]string{
	evidence.Silent:  LinkSilent,
	evidence.Closed:  ConnectionClosed,
	evidence.Left:    AgentStopped,
	evidence.Refused: AgentRefused,
}

func reasonOf(c *evidence.Change) string {
	r, ok := reasons[c.Cause]
	if !ok {
		r = TunnelFailed
	}
	if c.State == evidence.Parked {
		r = ParkedPrefix + r
	}
	return r
}

// atServer begins, in the message of TunnelConnected, the name of the server that wrote it,
// where there are several.
// Others that have a session as well follow.
const atServer, alsoAt = ", at server ", ", also at "

// ServerOf is the server that wrote a TunnelConnected with that message, and whether it is the only
// one with a session of the node. It is empty where a server writes that has no others.
func ServerOf(message string) (id string, only bool) {
	_, rest, _ := strings.Cut(message, atServer)
	id, _, _ = strings.Cut(rest, ",")
	return id, !strings.Contains(rest, alsoAt)
}

// connected says how a node's session stands. rtt is the round trip to show; zero
// is none. The heartbeat of a node that has no connection is its last word, by which
// package evidence recalls after a restart who fell silent when; that of one that has is
// when it came, by which servers that cannot hear each other know whose session is newer.
func connected(s *evidence.Session, rtt time.Duration) []corev1.NodeCondition {
	c := corev1.NodeCondition{Type: evidence.TunnelConnected, Status: corev1.ConditionFalse}
	switch s.State {
	case evidence.Attached:
		c.Status, c.Reason = corev1.ConditionTrue, Attached
		c.Message = fmt.Sprintf("session %d over %s from %s, attached since %s", s.Session, s.Transport, s.Addr, clock(s.At))
		c.LastHeartbeatTime = metav1.NewTime(s.At)
		if s.Server != "" {
			c.Message += atServer + strings.Join(append([]string{s.Server}, s.Also...), alsoAt)
		}
		if rtt > 0 {
			c.Message += fmt.Sprintf(", round trip about %v", rtt)
		}
	case evidence.Parked:
		c.Reason = reasonOf(&s.Change)
		c.Message = fmt.Sprintf("session %d over %s from %s waits for another connection since %s", s.Session, s.Transport, s.Addr, clock(s.At))
		if s.Window > 0 {
			c.Message += ", until " + clock(s.At.Add(s.Window))
		}
		c.Message += lastHeard(s)
	default:
		c.Reason = reasonOf(&s.Change)
		c.Message = "no session since " + clock(s.At) + lastHeard(s)
	}
	if s.State != evidence.Attached {
		c.LastHeartbeatTime = metav1.NewTime(s.At)
		if !s.Heard.IsZero() {
			c.LastHeartbeatTime = metav1.NewTime(s.Heard)
		}
	}
	return []corev1.NodeCondition{c}
}

// lastHeard tells what was last heard of a node, and why no more.
func lastHeard(s *evidence.Session) string {
	text := ""
	if !s.Heard.IsZero() {
		text += "; last heard at " + clock(s.Heard)
	}
	if s.Err != "" {
		text += "; " + s.Err
	}
	return text
}

// yields says whether another server has the say: one that lives and cannot be heard may
// have more to tell than this one. A session goes before none, and then the later word.
func yields(node *corev1.Node, s *evidence.Session) bool {
	has := condition(node, evidence.TunnelConnected)
	if has == nil || len(s.Unheard) == 0 {
		return false
	}
	attached := s.State == evidence.Attached
	if has.Status != corev1.ConditionTrue {
		return !attached && !s.Heard.Truncate(time.Second).After(has.LastHeartbeatTime.Time)
	}
	server, _ := ServerOf(has.Message)
	newer := attached && s.At.Truncate(time.Second).After(has.LastHeartbeatTime.Time)
	return slices.Contains(s.Unheard, server) && !newer
}

// missing is for a node whose tunnel is known only from its conditions. That it fell
// silent before the server was started, and when, stays written there.
func missing(node *corev1.Node, started time.Time) []corev1.NodeCondition {
	text := "the agent has not connected since the server was started at " + clock(started)
	c := corev1.NodeCondition{Type: evidence.TunnelConnected, Status: corev1.ConditionFalse, Reason: NotConnected, Message: text}
	if last, ok := evidence.Silenced(node); ok {
		c.Reason, c.LastHeartbeatTime = LinkSilent, metav1.NewTime(last)
		c.Message += "; it had fallen silent before, last heard at " + clock(last)
	}
	return []corev1.NodeCondition{c, {Type: evidence.DataPathReady, Status: corev1.ConditionUnknown, Reason: NoTunnel, Message: text}}
}

// reachable says what the latest probe of the session found; none if there was
// none.
func reachable(s *evidence.Session, r result) []corev1.NodeCondition {
	c := corev1.NodeCondition{Type: evidence.DataPathReady, Status: corev1.ConditionUnknown}
	switch {
	case s.State != evidence.Attached:
		c.Reason, c.Message = NoTunnel, "the kubelet API cannot be reached without the tunnel"
	case r.session != s.Session || !r.certain:
		return nil
	case r.err == "":
		c.Status, c.Reason = corev1.ConditionTrue, ProbeSucceeded
		c.Message = "the kubelet API answers through the tunnel"
	default:
		c.Status, c.Reason = corev1.ConditionFalse, ProbeFailed
		c.Message = "the kubelet API does not answer through the tunnel since " + clock(r.since) + ": " + r.err
	}
	return []corev1.NodeCondition{c}
}

// differing are the conditions that the node does not have like this. A transition
// is a change of status; a heartbeat that is not given is now.
func differing(node *corev1.Node, want []corev1.NodeCondition, now metav1.Time) []corev1.NodeCondition {
	var out []corev1.NodeCondition
	for _, c := range want {
		c.LastTransitionTime = now
		if c.LastHeartbeatTime.IsZero() {
			c.LastHeartbeatTime = now
		}
		if has := condition(node, c.Type); has != nil {
			if has.Status == c.Status && has.Reason == c.Reason && has.Message == c.Message {
				continue
			}
			if has.Status == c.Status {
				c.LastTransitionTime = has.LastTransitionTime
			}
		}
		out = append(out, c)
	}
	return out
}

func condition(node *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == t {
			return c
		}
	}
	return nil
}

// shown is the round trip to show when rtt was measured: the one so far unless it
// is three times off, so that a condition is not written anew for every breath of
// the network. It is one of 1, 2 and 5 times a power of ten.
func shown(so, rtt time.Duration) time.Duration {
	if rtt <= 0 || so > 0 && rtt < 3*so && so < 3*rtt {
		return so
	}
	for unit := 100 * time.Microsecond; ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			// Up to halfway, by proportion, to the next.
			if rtt*10 < n*unit*15 || unit >= time.Minute {
				return n * unit
			}
		}
	}
}

// clock is a time for people.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
