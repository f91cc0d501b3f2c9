package explain

// The verdict: which layer is broken.

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Layer is what can be broken between a user and a pod.
type Layer string

// The layers, and what it means that one is named.
const (
	Healthy        Layer = "none"
	NeverJoined    Layer = "never-joined"    // there is no such node
	NotRegistered  Layer = "not-registered"  // the agent has joined, and there is no such node
	NeverReported  Layer = "never-reported"  // a Node that no agent has ever spoken for
	Deleted        Layer = "deleted"         // the Node is gone, and something of it is left
	ServerNetwork  Layer = "server-network"  // the server reaches nobody
	ServerRestart  Layer = "server-restart"  // agents have had no time to come back
	SiteNetwork    Layer = "site-network"    // nobody of the site can be reached
	AgentStopped   Layer = "agent-stopped"   // it said goodbye
	AgentGone      Layer = "agent-gone"      // its connection was closed from there, or on the way
	AgentRefused   Layer = "agent-refused"   // it was turned away
	Revoked        Layer = "revoked"         // an administrator has revoked it
	Link           Layer = "link"            // nothing comes from there
	Tunnel         Layer = "tunnel"          // a fault in it
	NodeComponent  Layer = "node-component"  // the tunnel works, heartbeats stopped
	KubeletAPI     Layer = "kubelet-api"     // heartbeats arrive, logs and exec do not work
	SilentNode     Layer = "silent"          // no tunnel tells why
	NodeItself     Layer = "node"            // it says itself that it is not ready
	HeartbeatDelay Layer = "heartbeat-delay" // late, and not too late yet
)

// judge names the broken layer.
func judge(o *Objects, r *Report) Verdict {
	switch {
	case o.Revoked != "":
		return revoked(o)
	case o.Node == nil:
		return absent(o)
	}
	if v, ok := excused(r); ok {
		return v
	}
	if r.Tunnel != nil && r.Tunnel.Status != corev1.ConditionTrue {
		return tunnelGone(o, r)
	}
	switch {
	case r.Ready == nil && r.Heartbeat.Latest.IsZero(), r.Ready != nil && r.Ready.Reason == "NodeStatusNeverUpdated":
		return verdict(NeverReported, "the Node object exists, but no agent has ever reported for it")
	case r.Tunnel != nil && silent(r):
		return attachedAndSilent(r)
	case silent(r):
		return verdict(SilentNode, "no heartbeat arrives, and there is no tunnel to say why: the node, its agent or the network between is down")
	case r.DataPath != nil && r.DataPath.Status == corev1.ConditionFalse && o.Heard == nil && o.Now.Sub(r.Heartbeat.Latest) > o.Grace*3/8: // they come every quarter
		return verdict(KubeletAPI, "kubelet API does not answer, and the last heartbeat is %v old: if the node is cut off, its tunnel tells within a minute",
			o.Now.Sub(r.Heartbeat.Latest).Round(time.Second))
	case r.DataPath != nil && r.DataPath.Status == corev1.ConditionFalse:
		return verdict(KubeletAPI, "kubelet API does not answer: heartbeats arrive, but logs, exec and port-forward fail")
	case r.Ready == nil || r.Ready.Status != corev1.ConditionTrue:
		return notReady(r)
	case r.Heartbeat.Behind == 0 && o.Now.Sub(r.Heartbeat.Latest) > o.Grace/2:
		return verdict(HeartbeatDelay, "heartbeats are late; everything else looks well")
	case r.Cordoned:
		return verdict(Healthy, "%s; the node is cordoned and takes no new pods%s%s", well(r), flaps(o), behind(r))
	default:
		return verdict(Healthy, "%s%s%s", well(r), flaps(o), behind(r))
	}
}

// well says what is known of a node without a fault. No condition says whether the server reaches a
// node by ssh.
func well(r *Report) string {
	if r.SSHTarget != "" {
		return "heartbeats arrive; the server reaches the node by ssh, which only a dial checks: " + dialCommand(r.SSHTarget)
	}
	return "nothing is broken"
}

// dialCommand is the command that checks whether target can be dialed.
func dialCommand(target string) string { return "hawser explain dial " + target }

// absent is the verdict where there is no Node. Beside another cluster that decides who is a node,
// and the hub goes on admitting what it has admitted.
func absent(o *Objects) Verdict {
	left := leftovers(o)
	switch {
	case o.Held:
		return verdict(NotRegistered, "no kubelet has registered the node: its agent has joined; start the kubelet, or restart the agent")
	case o.Vouched && left != "":
		return verdict(Deleted, "the Node object is gone; its %s left: an agent that still runs there is admitted as before; restart it, or the kubelet, to register the node anew", left)
	case left != "":
		return verdict(Deleted, "the Node object is gone; its %s left: an agent that still runs there is not admitted, and has to join anew with a join token", left)
	case o.Vouched:
		return verdict(NeverJoined, "there is no node of this name: if it was deleted, restart its agent, or the kubelet, to register it anew, without a token; "+
			"if it never joined, make a command to join it with: hawser token create --print-join-command")
	default:
		return verdict(NeverJoined, "there is no node of this name: it never joined, or was deleted; "+
			"make a command to join it with: hawser token create --print-join-command")
	}
}

// revoked is the verdict on a node that an administrator has turned out.
func revoked(o *Objects) Verdict {
	if o.Now.Before(o.Allowed) {
		return verdict(Revoked, "the node's identity is %s; another machine may join under its name until %s, with a join token: "+
			"hawser token create --print-join-command", o.Revoked, stamp(o.Allowed))
	}
	return verdict(Revoked, "the node's identity is %s; it is not admitted before a machine joins anew under its name, "+
		"which \"hawser node allow %s\" and a join token let it", o.Revoked, o.Name)
}

const (
	// manyLosses is how many losses of the connection are told of a node that has it again.
	manyLosses = 3
	// flapWindow is how long ago the latest of them may be.
	flapWindow = 10 * time.Minute
)

// flaps says that the node loses its connection again and again, as events tell, which last an
// hour; empty if it does not.
func flaps(o *Objects) string {
	var count int32
	first, latest := o.Now, time.Time{}
	all := own(o.Events)
	for i := range all {
		e := &all[i]
		if e.Reason != tunnelParked {
			continue
		}
		count += max(1, e.Count)
		if e.LastTimestamp.After(latest) {
			latest = e.LastTimestamp.Time
		}
		if at := e.FirstTimestamp.Time; !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	if count < manyLosses || o.Now.Sub(latest) > flapWindow {
		return ""
	}
	return fmt.Sprintf(", but its connection was lost at least %d times since %s, the last time %v ago: look at the network there",
		count, first.UTC().Format(time.RFC3339), o.Now.Sub(latest).Round(time.Second))
}

// behind says that the node's clock is.
func behind(r *Report) string {
	if r.Heartbeat.Behind == 0 {
		return ""
	}
	return fmt.Sprintf(", but its clock is %v behind: a clock that is further behind makes certificates invalid", r.Heartbeat.Behind)
}

// silent says whether heartbeats have stopped. A node that was taken for lost and
// has a heartbeat since is on its way back.
func silent(r *Report) bool { return r.Heartbeat.Stale }

func verdict(l Layer, format string, args ...any) Verdict {
	return Verdict{Layer: l, Text: fmt.Sprintf(format, args...)}
}

func leftovers(o *Objects) string {
	var left []string
	if o.Lease != nil {
		left = append(left, "lease is")
	}
	if n := len(o.Pods); n > 0 {
		left = append(left, fmt.Sprintf("%d pods are", n))
	}
	return strings.Join(left, " and ")
}

// excused is the verdict where the server has found that the silence is not the
// node's own.
func excused(r *Report) (Verdict, bool) {
	if r.Frozen == nil {
		return Verdict{}, false
	}
	switch r.Frozen.Reason {
	case "ServerLostNetwork":
		return verdict(ServerNetwork, "server lost network: %s", r.Frozen.Message), true
	case "ServerJustStarted":
		return verdict(ServerRestart, "server just started: %s", r.Frozen.Message), true
	case "SiteLostNetwork":
		return verdict(SiteNetwork, "site lost network: %s", r.Frozen.Message), true
	}
	return Verdict{}, false
}

// tunnelGone is the verdict on a node whose session has no connection.
func tunnelGone(o *Objects, r *Report) Verdict {
	reason, parked := strings.CutPrefix(r.Tunnel.Reason, "Parked")
	note := ""
	if parked {
		note = "; its session waits for another connection"
	}
	if !r.Heartbeat.Stale {
		note += "; heartbeats are fresh all the same, so the agent may be on its way back"
	}
	switch reason {
	case "AgentStopped":
		return verdict(AgentStopped, "agent stopped: it said goodbye%s", note)
	case "ConnectionClosed":
		return verdict(AgentGone, "connection closed: by the agent's host, or by a proxy or load balancer on the way; nothing has come back%s", note)
	case "AgentRefused":
		return verdict(AgentRefused, "agent refused: the server turned it away: %s%s", cause(r.Tunnel.Message), note)
	case "LinkSilent":
		return verdict(Link, "link silent: nothing comes from the node, which may be off or cut off%s", note)
	case "NotConnected":
		return verdict(ServerRestart, "agent not back: it has not connected since the server was started; if it runs, its log says why, as when its certificate has expired%s", note)
	case notBack:
		return verdict(ServerRestart, "agent not back: %s%s", o.Away.text(), note)
	default:
		return verdict(Tunnel, "tunnel failed%s", note)
	}
}

// attachedAndSilent is the verdict on a node that is in reach and sends no
// heartbeats.
func attachedAndSilent(r *Report) Verdict {
	down := r.DataPath != nil && r.DataPath.Status == corev1.ConditionFalse
	switch {
	case down && strings.Contains(r.DataPath.Message, "x509: "):
		return verdict(NodeComponent, "certificates are not believed: the tunnel is attached, and the server does not believe the kubelet API, nor perhaps the node the server; an authority may have been replaced: the agent's log says what to do")
	case down:
		return verdict(NodeComponent, "node component hangs: the tunnel is attached, but neither heartbeats nor the kubelet API come through it")
	default:
		return verdict(NodeComponent, "node component hangs: the tunnel is attached and the kubelet API answers, but heartbeats have stopped; or the API refuses the node's certificate: the agent's log says so then")
	}
}

func notReady(r *Report) Verdict {
	switch {
	case r.Ready == nil:
		return verdict(NodeItself, "heartbeats arrive, but the node has not said yet whether it is ready")
	case r.Ready.Status == corev1.ConditionUnknown:
		return verdict(HeartbeatDelay, "heartbeats arrive again; the node has not reported since that it is ready")
	default:
		return verdict(NodeItself, "node not ready, by its own word: %s", r.Ready.Message)
	}
}
