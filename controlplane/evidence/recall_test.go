package evidence

// Tests of what is recalled of the server before this one.

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// was writes on a node what a server before this one knew of its tunnel.
func (w *world) was(name string, status corev1.ConditionStatus, reason string, last, noticed time.Time) {
	n := w.get(name).DeepCopy()
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
		Type: TunnelConnected, Status: status, Reason: reason,
		LastHeartbeatTime: metav1.NewTime(last), LastTransitionTime: metav1.NewTime(noticed),
	})
	if err := w.nodes.Update(n); err != nil {
		w.t.Fatal(err)
	}
}

// TestRecall: nodes of whom the server before this one knew that they fell silent
// together are excused as if this one had known it; others are not.
func TestRecall(t *testing.T) {
	for _, tc := range []struct {
		name   string
		second string        // the reason on the other node of the site
		apart  time.Duration // between the two last words
		do     func(w *world)
		want   string // two minutes after the start
	}{
		{"together", LinkSilent, time.Second, nil, SiteLostNetwork},
		{"one was parked still", ParkedPrefix + LinkSilent, time.Second, nil, SiteLostNetwork},
		{"apart", LinkSilent, time.Minute, nil, ""},
		{"the other was closed", "ConnectionClosed", 0, nil, ""},
		{"the other is not known to have been silent", "NotConnected", 0, nil, ""},
		{"the other is back", LinkSilent, 0, func(w *world) { w.turn("a2", Attached, "", 0) }, ""},
		{"the other was back for a moment", LinkSilent, 0, func(w *world) {
			w.turn("a2", Attached, "", 0)
			pass(10 * time.Second)
			w.turn("a2", Parked, Silent, 0)
			pass(10 * time.Second)
		}, SiteLostNetwork},
		{"it was back for a moment itself", LinkSilent, 0, func(w *world) {
			w.turn("a1", Attached, "", 0)
			pass(10 * time.Second)
			w.turn("a1", Parked, Silent, 0)
			pass(10 * time.Second)
		}, SiteLostNetwork},
		{"it closes its connection", LinkSilent, 0, func(w *world) {
			w.turn("a1", Attached, "", 0)
			pass(10 * time.Second)
			w.turn("a1", Detached, Closed, 0)
		}, ""},
		{"links are down, which says nothing of those who are recalled", LinkSilent, time.Minute, func(w *world) { w.links = errors.New("down") }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pass(settled)
				last := time.Now()
				pass(10 * time.Minute)
				w := newWorld(t, Config{})
				w.node("a1", "a", false)
				w.node("a2", "a", false)
				w.node("b1", "b", true)
				w.was("a1", corev1.ConditionFalse, LinkSilent, last, last.Add(20*time.Second))
				w.was("a2", corev1.ConditionFalse, tc.second, last.Add(tc.apart), last.Add(tc.apart+20*time.Second))
				n := w.get("a1").DeepCopy()
				n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
					Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(last.Add(40 * time.Second)),
				})
				if err := w.nodes.Update(n); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				w.reason("a1")
				if tc.do != nil {
					tc.do(w)
				}
				w.reason("a1")
				pass(2*time.Minute - time.Since(began))
				if got := w.reason("a1"); got != tc.want {
					t.Errorf("excuse %q, want %q", got, tc.want)
				}
				pass(time.Until(last.Add(DefaultSiteAutonomy)))
				if got := w.reason("a1"); got != "" {
					t.Errorf("excuse %q an hour after its last word", got)
				}
			})
		})
	}
}

// TestOthersLived: who was attached when others fell silent, and is so again, proves
// after a restart as well that the server had its network; and who came back after
// that, that the site has.
func TestOthersLived(t *testing.T) {
	for _, tc := range []struct {
		name  string
		since time.Duration // from the last words on the other has been attached; zero: it is not known
		back  bool
		want  string // ten seconds after the start
	}{
		{"all along", -time.Hour, true, ""},
		{"back for long", time.Minute, true, ""},
		{"back a moment before the restart", 10*time.Minute - 10*time.Second, true, ServerLostNetwork},
		{"all along, but is not back", -time.Hour, false, ServerLostNetwork},
		{"not known", 0, true, ServerLostNetwork},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pass(settled)
				pass(time.Hour)
				last := time.Now()
				pass(10 * time.Minute)
				w := newWorld(t, Config{})
				for _, n := range []string{"d1", "e1"} {
					w.node(n, "", false)
					w.was(n, corev1.ConditionFalse, LinkSilent, last, last.Add(20*time.Second))
				}
				w.node("b1", "", tc.back)
				if tc.since != 0 {
					w.was("b1", corev1.ConditionTrue, "Attached", last.Add(tc.since), last.Add(tc.since))
				}
				n := w.get("d1").DeepCopy()
				n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
					Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(last.Add(40 * time.Second)),
				})
				if err := w.nodes.Update(n); err != nil {
					t.Fatal(err)
				}
				pass(10 * time.Second)
				if got := w.reason("d1"); got != tc.want {
					t.Errorf("excuse %q, want %q", got, tc.want)
				}
				pass(time.Minute)
				if got := w.reason("d1"); got != "" && tc.back {
					t.Errorf("excuse %q though another has been back for a minute", got)
				}
			})
		})
	}
}

// TestRecallOfTheFuture: a last word that is still to come, by a clock that was ahead, takes
// no excuse from others.
func TestRecallOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass(settled)
		w := newWorld(t, Config{})
		w.node("a1", "a", true)
		w.node("a2", "a", true)
		w.node("b1", "b", false)
		last := time.Now().Add(2 * time.Hour)
		w.was("b1", corev1.ConditionFalse, LinkSilent, last, last.Add(20*time.Second))
		pass(2 * time.Minute)
		w.silence("a1", "a2")
		if got := w.reason("a1"); got != ServerLostNetwork {
			t.Errorf("excuse %q, want %q", got, ServerLostNetwork)
		}
	})
}

// TestRecalledIsForgotten: what is recalled of a node goes with it.
func TestRecalledIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		for _, name := range []string{"a1", "a2"} {
			w.node(name, "a", false)
			w.was(name, corev1.ConditionFalse, LinkSilent, time.Now(), time.Now())
		}
		w.reason("a1")
		if n := len(w.judge.recalled); n != 2 {
			t.Errorf("%d are recalled", n)
		}
		if err := w.nodes.Delete(w.get("a2")); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		w.reason("a1")
		if n := len(w.judge.recalled); n != 1 {
			t.Errorf("%d are recalled", n)
		}
	})
}

// TestSilenced: what a condition of an earlier release says, whose heartbeat is when
// it was written, is no later than when the silence was noticed.
func TestSilenced(t *testing.T) {
	at := time.Unix(1e9, 0)
	for _, tc := range []struct {
		name          string
		condition     corev1.NodeCondition
		want          time.Time
		wantsSilenced bool
	}{
		{"last word", corev1.NodeCondition{Reason: LinkSilent, LastHeartbeatTime: metav1.NewTime(at), LastTransitionTime: metav1.NewTime(at.Add(20 * time.Second))}, at, true},
		{"written later", corev1.NodeCondition{Reason: LinkSilent, LastHeartbeatTime: metav1.NewTime(at.Add(time.Hour)), LastTransitionTime: metav1.NewTime(at)}, at, true},
		{"no heartbeat", corev1.NodeCondition{Reason: LinkSilent, LastTransitionTime: metav1.NewTime(at)}, at, true},
		{"no time", corev1.NodeCondition{Reason: LinkSilent}, time.Time{}, false},
		{"another reason", corev1.NodeCondition{Reason: "AgentStopped", LastTransitionTime: metav1.NewTime(at)}, time.Time{}, false},
	} {
		tc.condition.Type, tc.condition.Status = TunnelConnected, corev1.ConditionFalse
		got, ok := Silenced(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{tc.condition}}})
		if !got.Equal(tc.want) || ok != tc.wantsSilenced {
			t.Errorf("%s: %v %v", tc.name, got, ok)
		}
		tc.condition.Status = corev1.ConditionTrue
		if _, ok := Silenced(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{tc.condition}}}); ok {
			t.Errorf("%s: an attached node is silenced", tc.name)
		}
	}
}
