package explain

// Faults, seeded as the objects that the API has then, and what is said of them.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth"
)

var now = time.Date(2026, 11, 22, 14, 5, 8, 0, time.UTC)

// A scene is the objects of a test, which begin as a node in good health.
type scene struct{ o Objects }

func healthy() *scene {
	s := &scene{Objects{Name: "node-1", Now: now, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "node-1", Labels: map[string]string{auth.SiteLabel: "eu-berlin"},
	}}}}
	s.ready("True", "KubeletReady", "kubelet is posting ready status", time.Hour)
	s.o.Node.Status.Conditions[0].LastHeartbeatTime = ago(2 * time.Minute)
	s.lease(5 * time.Second)
	s.tunnel("True", "Attached", "session 3 over quic from 192.0.2.1:4711, attached since 2026-11-22T13:05:08Z, round trip about 20ms", time.Hour)
	s.path("True", "ProbeSucceeded", "the kubelet API answers through the tunnel", time.Hour)
	return s
}

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func (s *scene) set(t corev1.NodeConditionType, status, reason, message string, since time.Duration) {
	c := corev1.NodeCondition{Type: t, Status: corev1.ConditionStatus(status), Reason: reason, Message: message, LastTransitionTime: ago(since)}
	for i := range s.o.Node.Status.Conditions {
		if has := &s.o.Node.Status.Conditions[i]; has.Type == t {
			c.LastHeartbeatTime = has.LastHeartbeatTime
			*has = c
			return
		}
	}
	s.o.Node.Status.Conditions = append(s.o.Node.Status.Conditions, c)
}

func (s *scene) ready(status, reason, message string, since time.Duration) {
	s.set(corev1.NodeReady, status, reason, message, since)
}

func (s *scene) tunnel(status, reason, message string, since time.Duration) {
	s.set(tunnelConnected, status, reason, message, since)
}

func (s *scene) path(status, reason, message string, since time.Duration) {
	s.set(dataPathReady, status, reason, message, since)
}

func (s *scene) foreign() {
	s.o.Node.Status.Conditions = s.o.Node.Status.Conditions[:1]
}

// ssh is a node that the server reaches by ssh.
func (s *scene) ssh() {
	s.foreign()
	s.o.Node.Annotations = map[string]string{auth.TransportAnnotation: "ssh"}
}

func (s *scene) lease(age time.Duration) {
	holder, seconds, at := "node-1", int32(40), metav1.NewMicroTime(now.Add(-age))
	s.o.Lease = &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at}}
}

// lost is a node whose heartbeats ended four minutes ago.
func (s *scene) lost() {
	s.lease(4 * time.Minute)
	s.o.Node.Status.Conditions[0].LastHeartbeatTime = ago(5 * time.Minute)
	s.ready("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", 200*time.Second)
}

func (s *scene) noTunnel(reason string) {
	s.tunnel("False", reason, "no session since 2026-11-22T14:01:11Z; peer is silent", 237*time.Second)
	s.path("Unknown", "NoTunnel", "the kubelet API cannot be reached without the tunnel", 237*time.Second)
}

func (s *scene) event(reason, message string, age time.Duration) {
	s.o.Events = append(s.o.Events, corev1.Event{Type: "Warning", Reason: reason, Message: message, LastTimestamp: ago(age)})
}

func (s *scene) freeze(reason, message string) {
	s.event("EvictionFrozen", "No pod is evicted from node node-1: "+reason+": "+message, 3*time.Minute)
}

func (s *scene) taint(effect corev1.TaintEffect, age time.Duration) {
	at := ago(age)
	s.o.Node.Spec.Taints = append(s.o.Node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: effect, TimeAdded: &at})
}

// parked adds an event that the connection was lost some times, the last time so long ago.
func (s *scene) parked(times int32, last time.Duration) {
	s.o.Events = append(s.o.Events, corev1.Event{Type: "Warning", Reason: tunnelParked, Count: times, FirstTimestamp: ago(last + 2*time.Minute), LastTimestamp: ago(last)})
}

// undated is a taint without a time, and a pod that tolerates it for an hour.
func (s *scene) undated() {
	s.o.Node.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
	s.pod("a", 3600)
	s.o.Pods[0].Spec.Tolerations[0].Key = "maintenance"
}

// pod has a pod tolerate unreachable for so many seconds; negative is for good.
func (s *scene) pod(name string, seconds int64) {
	t := corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if seconds >= 0 {
		t.TolerationSeconds = &seconds
	}
	s.o.Pods = append(s.o.Pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: ago(time.Hour)},
		Spec:       corev1.PodSpec{Tolerations: []corev1.Toleration{t}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	})
}

// Each fault, the layer it is told as, and what the page says besides.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		seed  func(s *scene)
		layer Layer
		says  []string // parts of the page
	}{
		{"nothing", func(*scene) {}, Healthy, []string{"nothing is broken", "round trip about 20ms", "at site eu-berlin", "fresh: lease renewed 5s ago by node-1", "nothing is due"}},
		{"lost twice", func(s *scene) { s.parked(2, time.Minute) }, Healthy, []string{"nothing is broken\n"}},
		{"flapping", func(s *scene) { s.parked(11, time.Minute); s.parked(1, 4*time.Second) }, Healthy, []string{"nothing is broken, but its connection was lost at least 12 times since", "the last time 4s ago"}},
		{"flapped", func(s *scene) { s.parked(11, 20*time.Minute) }, Healthy, []string{"nothing is broken\n"}},
		{"cordoned", func(s *scene) { s.o.Node.Spec.Unschedulable = true }, Healthy, []string{"takes no new pods", "cordoned"}},
		{"never joined", func(s *scene) { s.o.Node, s.o.Lease = nil, nil }, NeverJoined, []string{"hawser token create", "nothing, until it joins"}},
		{"node deleted under its agent", func(s *scene) { s.o.Node = nil; s.pod("web", 300) }, Deleted, []string{"its lease is and 1 pods are left", "garbage collector deletes what is left on it: ns/web"}},
		{"node deleted, and its agent is still admitted", func(s *scene) {
			s.o.Node, s.o.Lease, s.o.Vouched = nil, nil, true
		}, NeverJoined, []string{"restart its agent, or the kubelet, to register it anew, without a token", "hawser token create"}},
		{"node deleted, its lease is left, and its agent is still admitted", func(s *scene) {
			s.o.Node, s.o.Vouched = nil, true
		}, Deleted, []string{"its lease is left: an agent that still runs there is admitted as before; restart it"}},
		{"an agent whose kubelet does not come", func(s *scene) {
			s.o.Node, s.o.Lease, s.o.Held = nil, nil, true
		}, NotRegistered, []string{"its agent has joined; start the kubelet, or restart the agent", "nothing, until a kubelet registers it"}},
		{"made by hand, no agent", func(s *scene) {
			s.o.Lease, s.o.Node.Status.Conditions = nil, nil
		}, NeverReported, []string{"no agent has ever reported", "none ever", "stays not-ready"}},
		{"never updated", func(s *scene) {
			s.o.Lease, s.o.Node.Status.Conditions = nil, nil
			s.ready("Unknown", "NodeStatusNeverUpdated", "Kubelet never posted node status.", time.Minute)
		}, NeverReported, []string{"gets the taint node.kubernetes.io/unreachable:NoExecute"}},
		{"agent killed", func(s *scene) { s.lost(); s.noTunnel("ConnectionClosed") }, AgentGone, []string{"connection closed: by the agent's host, or by a proxy or load balancer on the way; nothing", "Last error", "ConnectionClosed: peer is silent; since", "stale: lease renewed 4m0s ago"}},
		{"agent killed, session parked, heartbeats still fresh", func(s *scene) { s.noTunnel("ParkedConnectionClosed") }, AgentGone, []string{"waits for another connection", "heartbeats are fresh all the same"}},
		{"agent stopped", func(s *scene) { s.lost(); s.noTunnel("AgentStopped") }, AgentStopped, []string{"said goodbye"}},
		{"agent revoked", func(s *scene) { s.lost(); s.noTunnel("AgentRefused") }, AgentRefused, []string{"turned it away"}},
		{"agent refused", func(s *scene) {
			s.noTunnel("AgentRefused")
			s.tunnel("False", "AgentRefused", "no session since 2026-11-22T14:01:11Z; last heard at 2026-11-22T14:01:00Z; the name is another's; ask for it", time.Minute)
		}, AgentRefused, []string{"turned it away: the name is another's; ask for it", "AgentRefused: the name is another's; ask for it; since"}},
		{"revoked just now", func(s *scene) {
			s.o.Revoked = "revoked at 2026-11-22T14:05:17Z by ann: stolen"
		}, Revoked, []string{"the node turns Unknown unless a machine joins under its name"}},
		{"revoked", func(s *scene) {
			s.noTunnel("AgentRefused")
			s.o.Revoked = "revoked at 2026-11-22T14:01:00Z by ann: stolen"
		}, Revoked, []string{"is revoked at 2026-11-22T14:01:00Z by ann: stolen; it is not admitted before", `"hawser node allow node-1"`}},
		{"server started again", func(s *scene) {
			s.lease(25 * time.Second)
			s.o.Away = &Away{Started: now.Add(-20 * time.Second), Certain: true}
		}, ServerRestart, []string{
			"agent not back: the server was started at 2026-11-22T14:04:48Z, and no server has a session of the node;", "heartbeats are fresh all the same",
			"Tunnel       Unknown (NotBack) since 2026-11-22T14:04:48Z (20s ago)", "before that: session 3", "Kubelet API  Unknown (NotBack)",
		}},
		{"server started again, and nobody who knows is asked", func(s *scene) { s.o.Away = &Away{Started: now} }, ServerRestart, []string{"and nothing has been told of a session of the node since"}},
		{"its server is gone", func(s *scene) { s.o.Away = &Away{} }, ServerRestart, []string{"its server is gone, and", "(NotBack) since an unknown time"}},
		{"away, and known to be", func(s *scene) { s.noTunnel("LinkSilent"); s.o.Away = &Away{} }, Link, []string{"link silent"}},
		{"node cut off", func(s *scene) { s.lost(); s.noTunnel("LinkSilent") }, Link, []string{"link silent", "as soon as the eviction rate of its zone allows"}},
		{"node cut off a moment ago", func(s *scene) { s.lease(25 * time.Second); s.noTunnel("ParkedLinkSilent") }, Link, []string{
			"2026-11-22T14:05:23Z (in 15s): the node turns Unknown unless a heartbeat arrives",
		}},
		{"heartbeats long over, not yet seen", func(s *scene) { s.lease(50 * time.Second); s.noTunnel("ParkedLinkSilent") }, Link, []string{"(due): the node turns Unknown at the next look"}},
		{"not back since the server's start", func(s *scene) { s.lost(); s.noTunnel("NotConnected") }, ServerRestart, []string{"agent not back"}},
		{"tunnel fault", func(s *scene) { s.lost(); s.noTunnel("TunnelFailed") }, Tunnel, []string{"tunnel failed"}},
		{"server just started", func(s *scene) { s.lost(); s.noTunnel("NotConnected"); s.freeze("ServerJustStarted", "soon back") }, ServerRestart, []string{"server just started: soon back"}},
		{"server cut off", func(s *scene) {
			s.lost()
			s.noTunnel("LinkSilent")
			s.freeze("ServerLostNetwork", "no interface is up (eth0)")
		}, ServerNetwork, []string{"server lost network: no interface is up (eth0)", "evictions are frozen since 2026-11-22T14:02:08Z: ServerLostNetwork: no interface is up (eth0)"}},
		{"site cut off", func(s *scene) {
			s.lost()
			s.noTunnel("LinkSilent")
			s.freeze("SiteLostNetwork", "all 3 nodes of site berlin")
		}, SiteNetwork, []string{"site lost network: all 3 nodes of site berlin"}},
		{"a site's freeze that is over", func(s *scene) {
			s.lost()
			s.noTunnel("LinkSilent")
			s.freeze("SiteLostNetwork", "all 3 nodes of site berlin")
			s.event("EvictionResumed", "Node node-1 is treated as any other again", time.Minute)
		}, Link, []string{"gets the taint"}},
		{"a freeze of another time", func(s *scene) {
			s.lost()
			s.noTunnel("LinkSilent")
			s.event("EvictionFrozen", "No pod is evicted from node node-1: SiteLostNetwork: once", time.Hour)
		}, Link, []string{"gets the taint"}},
		{"kept by an annotation", func(s *scene) {
			s.lost()
			s.noTunnel("ConnectionClosed")
			s.o.Node.Annotations = map[string]string{"node.hawser.dev/autonomy-duration": "12h"}
			s.freeze("Autonomy", "kept for 12h0m0s")
		}, AgentGone, []string{"Autonomy     12h, by annotation", "evictions are frozen since 2026-11-22T14:02:08Z: Autonomy: kept for 12h0m0s"}},
		{"a freeze that was told again", func(s *scene) {
			s.lost()
			s.noTunnel("ConnectionClosed")
			s.freeze("Autonomy", "kept for 12h0m0s")
			s.o.Events[0].FirstTimestamp, s.o.Events[0].LastTimestamp, s.o.Events[0].Count = ago(3*time.Minute), ago(time.Second), 2
		}, AgentGone, []string{"evictions are frozen since 2026-11-22T14:02:08Z: Autonomy: kept for 12h0m0s"}},
		{"a freeze in the words of an earlier one", func(s *scene) {
			s.lost()
			s.noTunnel("ConnectionClosed")
			s.freeze("Autonomy", "kept for 12h0m0s")
			s.o.Events[0].FirstTimestamp, s.o.Events[0].Count = ago(20*time.Hour), 9
			s.event("EvictionResumed", "Node node-1 is treated as any other again", 190*time.Second)
		}, AgentGone, []string{"evictions are frozen since 2026-11-22T14:01:58Z: Autonomy: kept for 12h0m0s"}},
		{"node component hangs", func(s *scene) { s.lost() }, NodeComponent, []string{"node component hangs", "the kubelet API answers, but heartbeats have stopped", "or the API refuses the node's certificate: the agent's log says"}},
		{"agent hangs but for its tunnel", func(s *scene) { s.lost(); s.path("False", "ProbeFailed", "no answer within 5s", time.Minute) }, NodeComponent, []string{"neither heartbeats nor the kubelet API", "ProbeFailed: no answer within 5s"}},
		{"authority replaced", func(s *scene) {
			s.lost()
			s.path("False", "ProbeFailed", "tls: failed to verify certificate: x509: certificate signed by unknown authority", time.Minute)
		}, NodeComponent, []string{"certificates are not believed", "an authority may have been replaced"}},
		{"kubelet API does not answer", func(s *scene) { s.path("False", "ProbeFailed", "connection refused", time.Minute) }, KubeletAPI, []string{"logs, exec and port-forward fail", "connection refused"}},
		{"cut off, and nobody knows yet", func(s *scene) {
			s.lease(18 * time.Second)
			s.o.Node.Status.Conditions[0].LastHeartbeatTime = ago(2 * time.Minute)
			s.path("False", "ProbeFailed", "no answer within 5s", time.Second)
		}, KubeletAPI, []string{"the last heartbeat is 18s old: if the node is cut off, its tunnel tells"}},
		{"not ready by its own word", func(s *scene) {
			s.ready("False", "KubeletNotReady", "container runtime is down", time.Minute)
		}, NodeItself, []string{"container runtime is down", "gets the taint node.kubernetes.io/not-ready:NoExecute"}},
		{"back again", func(s *scene) { s.lost(); s.lease(time.Second) }, HeartbeatDelay, []string{"heartbeats arrive again", "becomes Ready with its next report"}},
		{"lost by a short grace period", func(s *scene) {
			s.lease(15 * time.Second)
			s.o.Node.Status.Conditions[0].LastHeartbeatTime = ago(16 * time.Second)
			s.ready("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", 11*time.Second)
		}, NodeComponent, []string{"stale: lease renewed 15s ago"}},
		{"heartbeats late", func(s *scene) { s.lease(30 * time.Second) }, HeartbeatDelay, []string{"(in 10s): the node turns Unknown unless"}},
		{"foreign kubelet silent", func(s *scene) { s.foreign(); s.lost() }, SilentNode, []string{"no tunnel to say why", "none known"}},
		{"foreign kubelet well", func(s *scene) { s.foreign() }, Healthy, []string{"nothing is broken"}},
		{"reached by ssh", func(s *scene) { s.ssh() }, Healthy, []string{
			"Verdict      heartbeats arrive; the server reaches the node by ssh, which only a dial checks: hawser explain dial node-1:10250\n",
			"Tunnel       none: the server reaches the node by ssh\n", "Kubelet API  not probed: hawser explain dial node-1:10250\n",
		}},
		{"reached by ssh, of another port, cordoned", func(s *scene) {
			s.ssh()
			s.o.Node.Spec.Unschedulable = true
			s.o.Node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10260
		}, Healthy, []string{"explain dial node-1:10260; the node is cordoned and takes no new pods"}},
		{"reached by ssh, and silent", func(s *scene) { s.ssh(); s.lost() }, SilentNode, []string{"no heartbeat arrives", "reaches the node by ssh"}},
		{"reached by ssh, and its kubelet API does not answer", func(s *scene) {
			s.ssh()
			s.path("False", "ProbeFailed", "sshd does not forward there", time.Minute)
		}, KubeletAPI, []string{"logs, exec and port-forward fail", "ProbeFailed) since 2026-11-22T14:04:08Z (1m0s ago): sshd does not forward there"}},
		{"reached by ssh once, and has a tunnel", func(s *scene) {
			s.o.Node.Annotations = map[string]string{auth.TransportAnnotation: "ssh"}
		}, Healthy, []string{"Verdict      nothing is broken\n"}},
		{"tainted", func(s *scene) {
			s.lost()
			s.noTunnel("LinkSilent")
			s.taint(corev1.TaintEffectNoSchedule, 200*time.Second)
			s.taint(corev1.TaintEffectNoExecute, 177*time.Second)
			s.pod("b", 300)
			s.pod("a", 300)
			s.pod("later", 600)
			s.pod("daemon", -1)
		}, Link, []string{
			"tainted node.kubernetes.io/unreachable:NoExecute since 2026-11-22T14:02:11Z",
			"2026-11-22T14:07:12Z (in 2m4s): deleted for want of tolerance: ns/a, ns/b",
			"2026-11-22T14:12:12Z (in 7m4s): deleted for want of tolerance: ns/later",
			"1 pods tolerate the taints for good and stay", "4, of which 3 are to be evicted and 0 are being deleted",
		}},
		{"tainted by hand", func(s *scene) { // half an hour ago: kubectl gives no time
			s.undated()
			at := ago(30 * time.Minute)
			s.o.Node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl-taint", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)}}
		}, Healthy, []string{"tainted maintenance:NoExecute since an unknown time", "2026-11-22T14:35:09Z (in 30m1s): deleted for want of tolerance: ns/a\n"}},
		{"tainted when nobody saw it", (*scene).undated, Healthy, []string{"1, of which 1 are to be evicted", "  deleted for want of tolerance: ns/a\n"}},
		{"hangs, and says that the server does", func(s *scene) {
			s.lost()
			s.freeze("ServerLostNetwork", "the server's own network is down")
			s.o.Events[0].Source.Host = "node-1"
			s.parked(11, time.Minute)
			s.o.Events[1].ReportingInstance = "node-1"
		}, NodeComponent, []string{"gets the taint node.kubernetes.io/unreachable:NoExecute"}},
		{"a clock that is behind", func(s *scene) {
			s.lease(55 * time.Second)
			s.o.Heard = new(true)
		}, Healthy, []string{"nothing is broken, but its clock is 55s behind", "fresh: lease renewed 55s ago", "nothing is due"}},
		{"heartbeats that stopped, seen", func(s *scene) {
			s.lease(55 * time.Second)
			s.o.Heard = new(false)
		}, NodeComponent, []string{"stale: lease renewed 55s ago", "turns Unknown at the next look"}},
		{"lost, a clock that is ahead", func(s *scene) {
			s.lost()
			s.lease(4*time.Minute - 2*time.Hour)
			s.foreign()
			s.o.Heard = new(false)
		}, SilentNode, []string{"stale: lease renewed 1h56m0s ahead of this server's clock"}},
		{"many pods", func(s *scene) {
			s.lost()
			s.noTunnel("LinkSilent")
			s.taint(corev1.TaintEffectNoExecute, time.Minute)
			for i := range 9 {
				s.pod(fmt.Sprintf("p%d", i), 0)
			}
		}, Link, []string{"(due): deleted for want of tolerance: ns/p0, ns/p1, ns/p2, ns/p3, ns/p4, and 4 more"}},
		{"pods on their way out", func(s *scene) {
			s.lost()
			s.noTunnel("LinkSilent")
			s.taint(corev1.TaintEffectNoExecute, 10*time.Minute)
			s.pod("web", 300)
			s.o.Pods[0].DeletionTimestamp = &metav1.Time{Time: now}
		}, Link, []string{"1, of which 0 are to be evicted and 1 are being deleted"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := healthy()
			tc.seed(s)
			r := Explain(s.o)
			if r.Verdict.Layer != tc.layer {
				t.Errorf("layer %s, want %s", r.Verdict.Layer, tc.layer)
			}
			var page bytes.Buffer
			if err := r.WriteText(&page); err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.says {
				if !strings.Contains(page.String(), want) {
					t.Errorf("the page does not say %q", want)
				}
			}
			if lines := strings.Count(page.String(), "\n"); lines > 40 {
				t.Errorf("%d lines are more than a page", lines)
			}
			raw, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			var back Report
			if err := json.Unmarshal(raw, &back); err != nil || back.Verdict != r.Verdict || len(back.Next) == 0 {
				t.Errorf("as JSON: %v\n%s", err, raw)
			}
			if t.Failed() {
				t.Logf("\n%s", page.String())
			}
		})
	}
}

// TestLatest: a node that records many events leaves those of the control plane, and of each the
// latest are kept.
func TestLatest(t *testing.T) {
	s := healthy()
	s.event("Old", "", 2*time.Hour)
	s.event(EvictionFrozen, "", time.Hour)
	for i := range 10 {
		s.event(fmt.Sprintf("Mine%d", i), "", time.Duration(i)*time.Second)
		s.o.Events[len(s.o.Events)-1].Source.Host = "node-1"
	}
	s.event(EvictionResumed, "", time.Minute)
	var got []string
	for _, e := range Latest(s.o.Events, 2) {
		got = append(got, e.Reason)
	}
	if want := "Mine0 Mine1 EvictionResumed EvictionFrozen"; strings.Join(got, " ") != want {
		t.Errorf("kept %q, want %q", got, want)
	}
}

// TestDoubtful: what the dates of heartbeats say of a node is doubted if its condition says another
// thing.
func TestDoubtful(t *testing.T) {
	for name, tc := range map[string]struct {
		seed func(s *scene)
		want bool
	}{
		"well":                      {func(*scene) {}, false},
		"lost":                      {(*scene).lost, false},
		"late, or a clock behind":   {func(s *scene) { s.lease(55 * time.Second) }, true},
		"back, or a clock ahead":    {func(s *scene) { s.lost(); s.lease(-time.Hour) }, true},
		"no lease that may be seen": {func(s *scene) { s.lost(); s.o.Lease = nil }, false},
		"never joined":              {func(s *scene) { s.o.Node = nil }, false},
	} {
		s := healthy()
		tc.seed(s)
		if got := Doubtful(s.o); got != tc.want {
			t.Errorf("%s: doubtful is %v", name, got)
		}
	}
}

// TestNodesWriteNoLines: what a node says of itself does not move the cursor of who reads it,
// nor begin a line that is another's.
func TestNodesWriteNoLines(t *testing.T) {
	const hostile = "\x1b[2Jall is well\r\n  broken: nothing\u009b1A"
	s := healthy()
	s.ready(hostile, "KubeletNotReady", hostile, time.Minute)
	s.o.Lease.Spec.HolderIdentity = new(hostile)
	s.o.Node.Annotations = map[string]string{"node.hawser.dev/autonomy-duration": hostile}
	s.o.Node.Labels = map[string]string{auth.SiteLabel: hostile}
	s.o.Node.Spec.Taints = []corev1.Taint{{Key: hostile, Value: hostile, Effect: hostile}}
	s.o.Events = append(s.o.Events, corev1.Event{Type: hostile, Reason: hostile, Message: hostile, LastTimestamp: ago(time.Minute)})
	fleet := Fleet{Time: now}
	fleet.Add(s.o)
	fleet.Sort()
	dial := Dial{}
	dial.Judge(http.StatusServiceUnavailable, []byte(`{"kind":"Status","message":"\u001b[2Jdial \u009b1A"}`), "")
	for _, page := range []interface{ WriteText(w io.Writer) error }{Explain(s.o), &fleet, &dial} {
		var b strings.Builder
		if err := page.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(b.String(), "\x1b\r\u009b") || strings.Contains(b.String(), "\n  broken: nothing") {
			t.Errorf("%q", b.String())
		}
	}
}

// TestRevokedAndAllowed: who has allowed the name is not told to do so.
func TestRevokedAndAllowed(t *testing.T) {
	s := healthy()
	s.o.Revoked = "revoked at 2026-11-22T14:01:00Z"
	s.o.Allowed = now.Add(time.Minute)
	if v := Explain(s.o).Verdict; v.Layer != Revoked || strings.Contains(v.Text, "node allow") || !strings.Contains(v.Text, "until 2026-11-22T14:06:08Z, with a join token") {
		t.Errorf("allowed: %+v", v)
	}
	s.o.Allowed = now
	if v := Explain(s.o).Verdict; !strings.Contains(v.Text, "node allow") {
		t.Errorf("no longer allowed: %+v", v)
	}
}
