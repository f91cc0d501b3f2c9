package nodelifecycle

// Tests of when a node counts as quiet.

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

const second = time.Second

// TestHeartbeats: either form of heartbeat keeps a node alive, whatever its clock
// says; without both it is Unknown between G and G+M after the last.
func TestHeartbeats(t *testing.T) {
	for _, tc := range []struct {
		name          string
		lease, status bool
		skew          time.Duration
	}{
		{"lease", true, false, 0},
		{"status", false, true, 0},
		{"both", true, true, 0},
		{"neither", false, false, 0},
		{"lease of a clock that is behind", true, false, -10 * time.Minute},
		{"lease of a clock that is ahead", true, false, 10 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.add("z", "other")
				w.make("n", "z", corev1.ConditionTrue)
				w.skew["n"] = tc.skew
				last := time.Duration(0) // the last sign of life, as a pass saw it
				w.start()
				for d := 7 * second; d <= 300*second && (tc.lease || tc.status); d += 10 * second {
					w.until(d)
					if tc.lease {
						w.renew("n")
					}
					if tc.status {
						w.post("n", corev1.ConditionTrue)
					}
					last = d + 3*second
				}
				heartbeat := readyCondition(w.node("n")).LastHeartbeatTime
				w.until(last + 40*second - time.Millisecond)
				w.expect("before the grace period is over", []string{"Ready="})
				w.until(last + 40*second)
				w.expect("when it is over", []string{"Ready="}, (last+40*second).String()+" n Ready=Unknown")
				for _, c := range w.node("n").Status.Conditions {
					if c.Type == corev1.NodeNetworkUnavailable {
						if c.Status != corev1.ConditionFalse {
							t.Errorf("%s is %s", c.Type, c.Status)
						}
						continue
					}
					if c.Status != corev1.ConditionUnknown || c.Reason != stoppedPosting || c.Message != stoppedMessage ||
						!c.LastTransitionTime.Time.Equal(time.Now()) || !c.LastHeartbeatTime.Equal(&heartbeat) {
						t.Errorf("condition %+v", c)
					}
				}
			})
		})
	}
}

// TestSilenceBeginsWithTheLastWord: it is not when a pass reads a heartbeat that the
// grace period begins, but when that came.
func TestSilenceBeginsWithTheLastWord(t *testing.T) {
	for name, say := range map[string]func(w *world){
		"lease":  func(w *world) { w.renew("n") },
		"status": func(w *world) { w.post("n", corev1.ConditionTrue) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.cfg.MonitorGracePeriod = 42 * second
				w.add("z", "other")
				w.make("n", "z", corev1.ConditionTrue)
				w.start()
				for _, d := range []time.Duration{1, 7} {
					w.until(d * second)
					say(w)
				}
				w.until(55 * second)
				w.expect("49 seconds in", []string{"Ready="}, "50s n Ready=Unknown")
			})
		})
	}
}

// TestPassesKeepTime: a pass that takes its time does not put off the next.
func TestPassesKeepTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.client.PrependReactor("get", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetNamespace() == corev1.NamespaceNodeLease {
				<-time.After(2 * second)
			}
			return false, nil, nil
		})
		w.add("z", "other")
		w.make("m", "z", corev1.ConditionTrue)
		w.make("n", "z", corev1.ConditionTrue)
		w.start()
		w.until(3 * second)
		w.renew("n")
		w.until(60 * second)
		w.expect("after slow passes", []string{"Ready="}, "42s m Ready=Unknown", "47s n Ready=Unknown")
	})
}

// TestClockStep: a node that sets its clock back lives, and so does one that is
// ahead for a while.
func TestClockStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "n", "other")
		w.start()
		for i, skew := range []time.Duration{10 * time.Minute, -10 * time.Minute, 0, time.Hour, 0} {
			w.mu.Lock()
			w.skew["n"] = skew
			w.mu.Unlock()
			w.until(time.Duration(i+1) * 2 * time.Minute)
		}
		w.expect("after the clock was set", []string{"Ready="})
	})
}

// TestNeverPosted: a node made by hand is Unknown after the startup grace period,
// is evicted from, and becomes ready when an agent of that name starts.
func TestNeverPosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "other", "third")
		w.start()
		w.until(2 * second)
		made := w.make("n", "z", "")
		w.until(62*second - time.Millisecond)
		w.expect("before", []string{" n "}, "2s n +not-ready:NoSchedule")
		w.until(65 * second)
		w.expect("after", []string{" n "}, "1m5s n Ready=Unknown", "1m5s n -not-ready:NoSchedule", "1m5s n +unreachable:NoSchedule")
		for _, c := range w.node("n").Status.Conditions {
			if c.Status != corev1.ConditionUnknown || c.Reason != neverUpdated || c.Message != neverUpdatedMessage ||
				!c.LastHeartbeatTime.Equal(&made.CreationTimestamp) || !c.LastTransitionTime.Time.Equal(time.Now()) {
				t.Errorf("condition %+v", c)
			}
		}
		if n := len(w.node("n").Status.Conditions); n != 4 {
			t.Errorf("%d conditions", n)
		}
		w.until(4 * time.Minute)
		w.expect("evicted", []string{" n "}, "1m5.05s n +unreachable:NoExecute")
		w.heal("n")
		w.until(4*time.Minute + 5*second)
		w.expect("healed", []string{" n "}, "4m0s n Ready=True", "4m0s n -unreachable:NoSchedule", "4m5s n -unreachable:NoExecute")
		if w.node("n").UID != made.UID {
			t.Error("it is another node")
		}
	})
}

// TestLeaseAlone: nothing is done to a node that renews its Lease and never
// posts, however long that is.
func TestLeaseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "other")
		w.make("n", "z", "")
		w.beating["n"] = true
		w.start()
		w.until(10 * time.Minute)
		w.expect("all the time", []string{" n "}, "0s n +not-ready:NoSchedule")
		w.silence("n")
		// The last heartbeat was at 9m51s, seen at 9m55s.
		w.until(10*time.Minute + 55*second)
		w.expect("after the last", []string{" n Ready"}, "10m55s n Ready=Unknown")
	})
}

// TestQuietCache: a node is not lost because the cache is behind; the server has
// the last word, and one renewal counts once.
func TestQuietCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "other")
		w.make("n", "z", corev1.ConditionTrue)
		ahead := metav1.NewMicroTime(time.Now().Add(30 * second))
		w.client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			l.Spec.RenewTime = &ahead
			return true, l, nil
		})
		w.start()
		w.until(80*second - time.Millisecond)
		w.expect("renewed at 40 s", []string{"Ready="})
		w.until(80 * second)
		w.expect("not renewed since", []string{"Ready="}, "1m20s n Ready=Unknown")
	})
}

// TestForeignUnknown: conditions that others have made Unknown are left alone, unless
// they do not say since when, or a time that is still to come.
func TestForeignUnknown(t *testing.T) {
	now := metav1.Now()
	n := node(nil, "Ready=Unknown", "MemoryPressure=False")
	n.Status.Conditions[0].LastTransitionTime = now
	if _, changed := silence(n, now); changed {
		t.Error("changed")
	}
	for _, since := range []metav1.Time{{}, metav1.NewTime(now.Add(time.Second)), metav1.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC)} {
		n.Status.Conditions[0].LastTransitionTime = since
		if got, changed := silence(n, now); !changed || !got[0].LastTransitionTime.Equal(&now) || got[0].Reason != stoppedPosting {
			t.Errorf("since %v: got %+v", since, got)
		}
	}
	n = node(nil, "Ready=False", "MemoryPressure=Unknown")
	n.Status.Conditions[1].Reason, n.Status.Conditions[1].LastTransitionTime = "Others", now
	got, changed := silence(n, now)
	if !changed || got[0].Reason != stoppedPosting || got[1].Reason != "Others" || len(got) != 4 || n.Status.Conditions[0].Status != corev1.ConditionFalse {
		t.Errorf("got %+v", got)
	}
}

// TestOutage: while the API server cannot be reached nothing changes, which is
// said once, and when it is back nodes have a whole grace period to be heard.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("a", named("a", 3)...)
		w.add("b", named("b", 3)...)
		w.start()
		w.until(2 * second)
		w.silence("a01", "a02")
		w.until(50 * second)
		if got := w.happened("Ready=", "NoExecute"); len(got) != 2 {
			t.Errorf("two are quiet: %q", got)
		}
		w.until(55 * second)
		w.expect("and tainted", []string{"Ready=", "NoExecute"}, "50.05s a01 +unreachable:NoExecute")
		w.mu.Lock()
		w.outage = true
		w.mu.Unlock()
		w.until(10*time.Minute + 2*second)
		w.expect("outage", []string{" "})
		if n := w.logs.count("cannot be reached"); n != 1 {
			t.Errorf("the outage was told %d times:\n%s", n, strings.Join(w.logs.all, ""))
		}
		w.silence("b01")
		before := len(w.logs.all)
		w.mu.Lock()
		w.outage = false
		w.mu.Unlock()
		w.until(15 * time.Minute)
		got := w.happened("Ready=", "NoExecute")
		// The pass at 10m5s is the first that is answered; a02 is still queued.
		if len(got) != 3 || !strings.HasPrefix(got[0], "10m5") || !strings.HasSuffix(got[0], "s a02 +unreachable:NoExecute") ||
			got[1] != "10m45s b01 Ready=Unknown" || got[2] != "10m50.05s b01 +unreachable:NoExecute" {
			t.Errorf("after the outage: %q", got)
		}
		if n := w.logs.count("answers again"); n != 1 {
			t.Errorf("the end of the outage was told %d times:\n%s", n, strings.Join(w.logs.all[before:], ""))
		}
	})
}

// TestOneNodeFails: a node that cannot be written is not evicted from, counts as
// what it is, and does not stand in the way of others.
func TestOneNodeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", named("n", 5)...)
		w.fails = func(a clienttesting.Action) error {
			if u, ok := a.(clienttesting.UpdateAction); ok && a.GetResource().Resource == "nodes" {
				if n, isNode := u.GetObject().(*corev1.Node); isNode && n.Name == "n01" {
					return apierrors.NewInternalError(errors.New("no"))
				}
			}
			return nil
		}
		w.start()
		w.until(2 * second)
		w.silence("n01", "n02")
		w.until(3 * time.Minute)
		w.expect("the other", []string{"Ready=", "NoExecute"}, "45s n02 Ready=Unknown", "50.15s n02 +unreachable:NoExecute") // five attempts at n01 take 80 ms
		if n := w.metric("node_collector_unhealthy_nodes_in_zone", key("z")); n != 2 {
			t.Errorf("%v unhealthy", n)
		}
		if n := w.logs.count("could not be updated"); n != 1 {
			t.Errorf("told %d times:\n%s", n, strings.Join(w.logs.all, ""))
		}
		w.mu.Lock()
		w.fails = nil
		w.mu.Unlock()
		w.until(3*time.Minute + 11*second)
		got := w.happened("Ready=", "NoExecute")
		if len(got) != 2 || !strings.HasSuffix(got[0], "n01 Ready=Unknown") || !strings.HasSuffix(got[1], "n01 +unreachable:NoExecute") {
			t.Errorf("afterwards: %s", got)
		}
		if n := w.logs.count("can be updated again"); n != 1 {
			t.Errorf("its end told %d times", n)
		}
	})
}

// TestConflict: a node that posts at the moment it is called lost is not lost.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add("z", "other")
		w.make("n", "z", corev1.ConditionTrue)
		once := true
		w.client.PrependReactor("update", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			if once {
				once = false
				n := w.node("n")
				if _, _, err := w.change("n", "", n.UID, func(n *corev1.Node) { n.Status.Conditions = conditions(corev1.ConditionTrue) }); err != nil {
					t.Error(err)
				}
			}
			return false, nil, nil
		})
		w.start()
		w.until(80*second - time.Millisecond)
		w.expect("it was heard", []string{"Ready="})
		w.until(85 * second)
		w.expect("and then not", []string{"Ready="}, "1m20s n Ready=Unknown")
		if once {
			t.Error("there was no conflict")
		}
	})
}

// TestStandstill: a process that stood still gives nodes a new grace period, one
// that is merely slow does not.
func TestStandstill(t *testing.T) {
	p := DefaultPolicy()
	for late, want := range map[time.Duration]bool{0: false, 5 * second: false, 20 * second: false, 21 * second: true, time.Hour: true} {
		if got := p.stoodStill(late); got != want {
			t.Errorf("%v late: %v", late, got)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t)
		if err := fl.run.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		fl.run.hold(time.Hour, time.Now())
		if err := fl.run.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		if fl.writes != 0 {
			t.Errorf("%d nodes were lost while nobody listened", fl.writes)
		}
	})
}

// TestBornAhead: a creation time that lies ahead, by the API server's clock, does
// not lengthen the startup grace period.
func TestBornAhead(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, tc := range []struct{ born, after time.Duration }{{0, time.Minute}, {10 * time.Minute, time.Minute}, {-40 * second, 20 * second}} {
		n := node(nil)
		n.CreationTimestamp = metav1.NewTime(now.Add(tc.born))
		var r nodeRecord
		r.hear(n, nil, newArrivals(), now)
		later := now.Add(tc.after)
		if p := DefaultPolicy(); r.lost(later.Add(-1), p) || !r.lost(later, p) {
			t.Errorf("born %v from now: not lost in just %v", tc.born, tc.after)
		}
	}
}
