// Package explain says in one page what is wrong with a node, since when, and what
// will happen next. A Fleet counts this for all nodes, and a Dial says which layer
// refused a dial.
//
// It looks only at what the API has: the Node with its conditions and taints, its
// Lease, events, and pods. So it works against any cluster; the conditions of a
// tunnel, where there are some, let it name the layer that is broken. Explain is a
// function from those objects to a Report, and WriteText one from a Report to a
// page; neither asks anybody anything.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// Conditions of nodes that have a tunnel.
const (
	tunnelConnected corev1.NodeConditionType = "hawser.dev/TunnelConnected"
	dataPathReady   corev1.NodeConditionType = "hawser.dev/DataPathReady"
)

// Reasons of events about evictions from nodes.
const (
	EvictionFrozen  = "EvictionFrozen"
	EvictionResumed = "EvictionResumed"
)

// tunnelParked is the reason of the event that a session has lost its connection.
const tunnelParked = "TunnelParked"

// DefaultGrace is how long a node may be quiet before it turns Unknown, where the
// server was not told otherwise.
const DefaultGrace = 40 * time.Second

// kubeletPort is the kubelet API's port on a node that does not say otherwise.
const kubeletPort = 10250

// maxEvents is how many events a report has, the latest.
const maxEvents = 8

// Objects are what the API has about a node.
type Objects struct {
	Name  string
	Now   time.Time // by the server's clock
	Grace time.Duration
	Node  *corev1.Node          // nil if there is none
	Lease *coordinationv1.Lease // nil if there is none
	// Identity says who holds the node's name, empty if that is not known. Held is that a key
	// does, so that its machine is admitted, and Vouched that another cluster decides who is.
	Identity      string
	Held, Vouched bool
	// Revoked says since when, by whom and why nobody is admitted under the name; empty if that
	// is not so. Until Allowed another machine is.
	Revoked string
	Allowed time.Time
	// Events about the node, and Pods bound to it, in any order.
	Events []corev1.Event
	Pods   []corev1.Pod
	// Away is set if no session of the node is known, whatever its conditions say.
	Away *Away
	// Heard says whether a heartbeat arrived while somebody watched for one, which is certain;
	// nil if nobody did. See Doubtful.
	Heard *bool
}

// An Away is what is known of a node whose conditions are of before.
type Away struct {
	// Started is when the server was that tells of the node; zero if that server is gone.
	Started time.Time
	// Certain is that no server has a session. Otherwise none has told of one since.
	Certain bool
}

// A Report is the answer. Times are the server's, but those of heartbeats, which are the node's;
// those that are not known are zero, and left out of JSON.
type Report struct {
	Node      string      `json:"node"`
	Time      time.Time   `json:"time"`
	Site      string      `json:"site,omitempty"`
	Autonomy  string      `json:"autonomy,omitempty"` // the node's annotation
	Cordoned  bool        `json:"cordoned,omitempty"`
	SSHTarget string      `json:"sshTarget,omitempty"` // see sshTarget
	Identity  string      `json:"identity,omitempty"`
	Verdict   Verdict     `json:"verdict"`
	Ready     *Condition  `json:"ready,omitempty"`
	Heartbeat Heartbeat   `json:"heartbeat"`
	Tunnel    *Condition  `json:"tunnel,omitempty"`
	DataPath  *Condition  `json:"dataPath,omitempty"`
	LastError *LastError  `json:"lastError,omitempty"`
	Frozen    *Freeze     `json:"evictionsFrozen,omitempty"`
	Taints    []Taint     `json:"taints,omitempty"`
	Pods      []Pod       `json:"pods,omitempty"`
	Next      []Step      `json:"next"`
	Events    []EventLine `json:"events,omitempty"`
}

// A Verdict names the broken layer.
type Verdict struct {
	Layer Layer  `json:"layer"`
	Text  string `json:"text"`
}

// A Condition is one of the node's.
type Condition struct {
	Status  corev1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason,omitempty"`
	Message string                 `json:"message,omitempty"`
	Since   time.Time              `json:"since,omitzero"`
}

// A Heartbeat is when the node last wrote to the API server, by its own clock.
type Heartbeat struct {
	Lease    time.Time `json:"leaseRenewed,omitzero"`
	Holder   string    `json:"leaseHolder,omitempty"`
	Duration string    `json:"leaseDuration,omitempty"`
	Status   time.Time `json:"statusPosted,omitzero"`
	// Latest is the later of both. Stale says that no heartbeat arrived while somebody watched
	// for one, or, where nobody did, that Latest is longer ago than the grace period, or than
	// the server found the node silent.
	Latest time.Time `json:"latest,omitzero"`
	Stale  bool      `json:"stale"`
	// Behind is how far the node's clock is behind the server's, about, if that is more than
	// the grace period.
	Behind time.Duration `json:"clockBehindNanoseconds,omitempty"`
}

// A LastError is the latest thing that went wrong.
type LastError struct {
	Text  string    `json:"text"`
	Since time.Time `json:"since,omitzero"`
}

// A Freeze is that nothing is evicted from the node, and why.
type Freeze struct {
	Reason  string    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// A Taint is one of the node's.
type Taint struct {
	Key    string             `json:"key"`
	Value  string             `json:"value,omitempty"`
	Effect corev1.TaintEffect `json:"effect"`
	Since  time.Time          `json:"since,omitzero"`
}

// A Pod is one on the node and what becomes of it because of taints.
type Pod struct {
	Name     string    `json:"name"` // namespace/name
	Phase    string    `json:"phase"`
	Leaving  time.Time `json:"deletedSince,omitzero"` // it is being deleted
	Evicted  bool      `json:"evicted"`               // it will be, at At, unless the taint goes before
	At       time.Time `json:"evictedAt,omitzero"`
	Terminal bool      `json:"terminal,omitempty"` // it has ended by itself
}

// A Step is what happens next; At is zero if it has no time.
type Step struct {
	At   time.Time `json:"at,omitzero"`
	Text string    `json:"text"`
}

// An EventLine is an event.
type EventLine struct {
	At      time.Time `json:"at,omitzero"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int32     `json:"count,omitempty"`

	first time.Time // when it was told first, if that is known, or else At
}

// Explain makes the report of o.
func Explain(o Objects) *Report {
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	r := &Report{Node: o.Name, Time: o.Now, Identity: o.Identity, Events: events(o.Events)}
	if n := o.Node; n != nil {
		r.Site = setup.Printable(n.Labels[auth.SiteLabel])
		r.Autonomy = setup.Printable(n.Annotations["node.hawser.dev/autonomy-duration"])
		r.Cordoned = n.Spec.Unschedulable
		r.Ready, r.Tunnel, r.DataPath = pick(n, corev1.NodeReady), pick(n, tunnelConnected), pick(n, dataPathReady)
		r.SSHTarget = sshTarget(n, r)
		r.distrust(o.Away)
		for _, t := range n.Spec.Taints {
			out := Taint{Key: setup.Printable(t.Key), Value: setup.Printable(t.Value), Effect: corev1.TaintEffect(setup.Printable(string(t.Effect)))}
			if t.TimeAdded != nil {
				out.Since = t.TimeAdded.Time
			}
			r.Taints = append(r.Taints, out)
		}
	}
	r.Heartbeat = heartbeat(&o, r.Ready)
	r.Frozen = frozen(r, events(own(o.Events)))
	r.Pods = pods(&o)
	r.LastError = lastError(r)
	r.Verdict = judge(&o, r)
	r.Next = next(&o, r)
	if len(r.Events) > maxEvents {
		r.Events = r.Events[:maxEvents]
	}
	return r
}

func pick(n *corev1.Node, t corev1.NodeConditionType) *Condition {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return &Condition{Status: corev1.ConditionStatus(setup.Printable(string(c.Status))), Reason: setup.Printable(c.Reason), Message: setup.Printable(c.Message), Since: c.LastTransitionTime.Time}
		}
	}
	return nil
}

// sshTarget is NODE:PORT of the kubelet API of a node that the server reaches by ssh; empty if the
// node is none. A node with conditions is judged by these, whatever its annotation says.
func sshTarget(n *corev1.Node, r *Report) string {
	if n.Annotations[auth.TransportAnnotation] != setup.SSH || r.Tunnel != nil || r.DataPath != nil {
		return ""
	}
	return fmt.Sprintf("%s:%d", r.Node, cmp.Or(n.Status.DaemonEndpoints.KubeletEndpoint.Port, kubeletPort))
}

func heartbeat(o *Objects, ready *Condition) Heartbeat {
	var h Heartbeat
	if l := o.Lease; l != nil {
		if l.Spec.RenewTime != nil {
			h.Lease = l.Spec.RenewTime.Time
		}
		if l.Spec.HolderIdentity != nil {
			h.Holder = setup.Printable(*l.Spec.HolderIdentity)
		}
		if l.Spec.LeaseDurationSeconds != nil {
			h.Duration = (time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second).String()
		}
	}
	if o.Node != nil {
		for _, c := range o.Node.Status.Conditions {
			// What the lifecycle controller writes moves no heartbeat, but its own
			// conditions begin at the node's creation.
			if c.Type == corev1.NodeReady && c.Reason != "NodeStatusNeverUpdated" {
				h.Status = c.LastHeartbeatTime.Time
			}
		}
	}
	h.Latest = h.Lease
	if h.Status.After(h.Latest) {
		h.Latest = h.Status
	}
	h.Stale = h.Latest.IsZero() || o.Now.Sub(h.Latest) > o.Grace
	if ready != nil && ready.Status == corev1.ConditionUnknown {
		// The server has found the node silent, whatever its grace period is: that
		// holds until there is a heartbeat since. Conditions count in seconds.
		h.Stale = h.Stale || h.Latest.Before(ready.Since.Add(time.Second))
	}
	if o.Heard == nil {
		return h
	}
	if h.Stale = !*o.Heard; !h.Stale && o.Now.Sub(h.Latest) > o.Grace {
		h.Behind = o.Now.Sub(h.Latest).Round(time.Second)
	}
	return h
}

// Doubtful reports whether what o tells of heartbeats contradicts itself: they are fresh, and the
// server has found the node silent, or the other way round. Then either things are changing, or the
// node's clock is wrong, by which heartbeats are dated. A watch of its Lease tells; see Objects.Heard.
func Doubtful(o Objects) bool {
	o.Grace = cmp.Or(o.Grace, DefaultGrace)
	if o.Node == nil || o.Lease == nil {
		return false
	}
	ready := pick(o.Node, corev1.NodeReady)
	return ready != nil && heartbeat(&o, ready).Stale != (ready.Status == corev1.ConditionUnknown)
}

// Latest sorts events, the latest first, and returns no more than n of the control plane and n of
// others: a node that records many does not push out what is told of it.
func Latest(all []corev1.Event, n int) []corev1.Event {
	slices.SortStableFunc(all, func(a, b corev1.Event) int { return lastTold(&b).Compare(lastTold(&a)) })
	var owned, others int
	return slices.DeleteFunc(all, func(e corev1.Event) bool {
		count := &others
		if isOwn(&e) {
			count = &owned
		}
		*count++
		return *count > n
	})
}

// lastTold is when an event was last told.
func lastTold(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	if e.Series != nil {
		at = e.Series.LastObservedTime.Time
	}
	return cmp.Or(at, e.EventTime.Time, e.FirstTimestamp.Time, e.CreationTimestamp.Time)
}

// own are the events of the control plane. Nodes may record events with any reason, and each says
// which node it is of.
func own(all []corev1.Event) []corev1.Event {
	return slices.DeleteFunc(slices.Clone(all), func(e corev1.Event) bool { return !isOwn(&e) })
}

func isOwn(e *corev1.Event) bool { return e.Source.Host == "" && e.ReportingInstance == "" }

// events are those about the node, the latest first.
func events(all []corev1.Event) []EventLine {
	var out []EventLine
	for i := range all {
		e := &all[i]
		line := EventLine{At: lastTold(e), Type: setup.Printable(e.Type), Reason: setup.Printable(e.Reason), Message: setup.Printable(e.Message), Count: e.Count}
		if e.Series != nil {
			line.Count = e.Series.Count
		}
		if line.first = e.FirstTimestamp.Time; line.first.IsZero() {
			line.first = line.At
		}
		out = append(out, line)
	}
	slices.SortStableFunc(out, func(a, b EventLine) int {
		return cmp.Or(b.At.Compare(a.At), strings.Compare(a.Reason, b.Reason))
	})
	return out
}

// frozen is the freeze that the latest event of its kind tells of, while the node
// is one that a freeze is about.
func frozen(r *Report, all []EventLine) *Freeze {
	if r.Ready == nil || r.Ready.Status != corev1.ConditionUnknown {
		return nil
	}
	for i, e := range all {
		if e.At.Before(r.Ready.Since) {
			return nil // of another time
		}
		switch e.Reason {
		case EvictionResumed:
			return nil
		case EvictionFrozen:
			f := &Freeze{Message: e.Message, Since: frozenSince(r, e, all[i+1:])}
			// No pod is evicted from node NAME: Reason: message
			if _, rest, ok := strings.Cut(e.Message, "node "+r.Node+": "); ok {
				f.Reason, f.Message, _ = strings.Cut(rest, ": ")
			}
			return f
		}
	}
	return nil
}

// frozenSince is since when the freeze of an event is. The event is told again while the freeze
// goes on, and an event of an earlier one in the same words is counted with it.
func frozenSince(r *Report, e EventLine, before []EventLine) time.Time {
	since := e.first
	if r.Ready.Since.After(since) {
		since = r.Ready.Since
	}
	for _, other := range before {
		if other.Reason == EvictionResumed && other.At.After(since) {
			since = other.At
		}
	}
	return since
}

// cause is why a session ended, by the message of its condition. What comes before it says since
// when, and when something was last heard.
func cause(message string) string {
	for _, before := range []string{"", "last heard at "} {
		if _, rest, ok := strings.Cut(message, "; "); ok && strings.HasPrefix(message, before) {
			message = rest
		}
	}
	return message
}

// lastError is what the layers say of themselves, the lowest first, or else the
// latest warning.
func lastError(r *Report) *LastError {
	if c := r.Tunnel; c != nil && c.Status == corev1.ConditionFalse {
		return &LastError{Text: c.Reason + ": " + cause(c.Message), Since: c.Since}
	}
	if c := r.DataPath; c != nil && c.Status == corev1.ConditionFalse {
		return &LastError{Text: c.Reason + ": " + c.Message, Since: c.Since}
	}
	if r.Ready != nil && r.Ready.Status == corev1.ConditionFalse {
		return &LastError{Text: r.Ready.Reason + ": " + r.Ready.Message, Since: r.Ready.Since}
	}
	for _, e := range r.Events {
		if e.Type == corev1.EventTypeWarning {
			return &LastError{Text: e.Reason + ": " + e.Message, Since: e.At}
		}
	}
	return nil
}
