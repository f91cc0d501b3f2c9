package scheduler

// Tests of the cache and the queue, among them a random walk against a plain
// account of what should be.

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestBurstDoesNotOvercommit(t *testing.T) {
	c := newCache()
	for i := range 3 {
		c.setNode(testNode(fmt.Sprint("node-", i), nil)) // 2 cores each
	}
	count := map[string]int{}
	for i := range 14 {
		node, why, _ := c.place(newPodInfo(testPod(fmt.Sprint("p", i), asks("cpu", "500m"))))
		switch {
		case i < 12 && node == "":
			t.Fatalf("pod %d found no room: %s", i, why)
		case i >= 12 && (node != "" || why != "0/3 nodes are available: 3 Insufficient cpu."):
			t.Errorf("pod %d: node %q, %q", i, node, why)
		}
		count[node]++
	}
	if want := map[string]int{"node-0": 4, "node-1": 4, "node-2": 4, "": 2}; !maps.Equal(count, want) {
		t.Errorf("placed %v, want %v", count, want)
	}
}

func TestEqualsTakeTurns(t *testing.T) {
	c := newCache()
	for i := range 4 {
		c.setNode(testNode(fmt.Sprint("node-", i), nil))
	}
	count := map[string]int{}
	for i := range 8 {
		node, _, _ := c.place(newPodInfo(testPod(fmt.Sprint("p", i), nil)))
		count[node]++
	}
	for node, n := range count {
		if n != 2 {
			t.Errorf("%s has %d of 8 pods, want 2", node, n)
		}
	}
}

// TestCacheAccounts does things at random and compares what is counted with what
// the pods ask for.
func TestCacheAccounts(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	c := newCache()
	var pods []*corev1.Pod
	for i := range 20 {
		pods = append(pods, testPod(fmt.Sprint("p", i), asks("cpu", fmt.Sprintf("%dm", 10*(i+1)))))
	}
	where := map[string]string{} // the plain account
	assumed := map[string]bool{}
	for range 3000 {
		p := pods[rnd.IntN(len(pods))].DeepCopy()
		node := fmt.Sprint("node-", rnd.IntN(4))
		switch rnd.IntN(7) {
		case 0:
			c.setNode(testNode(node, nil))
		case 1:
			c.removeNode(node)
		case 2, 3:
			p.Spec.NodeName = node
			c.setPod(p)
			where[p.Name], assumed[p.Name] = node, false
		case 4:
			if n, _, _ := c.place(newPodInfo(p)); n != "" {
				where[p.Name], assumed[p.Name] = n, true
			}
		case 5:
			c.forget(keyOf(p))
			if assumed[p.Name] {
				delete(where, p.Name)
				delete(assumed, p.Name)
			}
		case 6:
			if c.removePod(keyOf(p)) != (where[p.Name] != "") {
				t.Fatalf("pod %s: the cache and the account differ on whether it has a place", p.Name)
			}
			delete(where, p.Name)
			delete(assumed, p.Name)
		}
		checkAccount(t, c, pods, where)
		if t.Failed() {
			return
		}
	}
	for name := range c.nodes {
		c.removeNode(name)
	}
	for _, p := range pods {
		c.removePod(keyOf(p))
	}
	if len(c.nodes) != 0 || len(c.order) != 0 || len(c.pods) != 0 {
		t.Errorf("left over: %d nodes, %d in order, %d pods", len(c.nodes), len(c.order), len(c.pods))
	}
}

func checkAccount(t *testing.T, c *cache, pods []*corev1.Pod, where map[string]string) {
	t.Helper()
	want := map[string]int64{}
	for _, p := range pods {
		if node := where[p.Name]; node != "" {
			want[node] += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		}
	}
	for name, n := range c.nodes {
		if n.requested.cpu != want[name] {
			t.Errorf("%s: %dm counted, %dm asked for", name, n.requested.cpu, want[name])
		}
		delete(want, name)
	}
	for name, m := range want {
		t.Errorf("%s is not known and has %dm", name, m)
	}
	exist := 0
	for _, n := range c.nodes {
		if n.node != nil {
			exist++
		}
	}
	if exist != len(c.order) {
		t.Errorf("%d nodes exist, %d are in order", exist, len(c.order))
	}
}

// TestRecreatedPod: a pod made anew under the same name is another pod.
func TestRecreatedPod(t *testing.T) {
	c := newCache()
	c.setNode(testNode("node", nil))
	old, young := testPod("p", asks("cpu", "1")), testPod("p", asks("cpu", "1"))
	young.UID = "another"
	old.Spec.NodeName, young.Spec.NodeName = "node", "node"
	c.setPod(old)
	c.setPod(young)
	if got := c.nodes["node"].requested.cpu; got != 2000 {
		t.Errorf("%dm, want both counted until the first is gone", got)
	}
	c.removePod(keyOf(old))
	if got := c.nodes["node"].requested.cpu; got != 1000 {
		t.Errorf("%dm, want one", got)
	}
}

func named(s string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: s} }

// takes returns the name of the pod that is taken within d, or nothing.
func takes(q *queue, d time.Duration) (string, turn) {
	end := time.Now().Add(d)
	for {
		t, wait := q.poll(time.Now())
		if t.waiting != nil {
			return t.name.Name, t
		}
		if time.Now().Add(wait).After(end) {
			<-time.After(time.Until(end))
			return "", turn{}
		}
		<-time.After(wait)
	}
}

func TestQueueOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Config{MinBackoff: time.Second, MaxBackoff: 10 * time.Second, Recheck: time.Minute})
		q.add(named("first"), 0)
		<-time.After(time.Second)
		q.add(named("second"), 0)
		q.add(named("urgent"), 1000)
		q.add(named("idle"), -5)
		q.add(named("gone"), 2000)
		q.remove(named("gone"))
		q.add(named("first"), 0) // again: it keeps its age
		for _, want := range []string{"urgent", "first", "second", "idle", ""} {
			if got, _ := takes(q, 0); got != want {
				t.Errorf("took %q, want %q", got, want)
			}
		}
	})
}

// TestQueueTurns: a pod that found no node goes behind equals that have not been looked at since.
func TestQueueTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Config{MinBackoff: time.Second, MaxBackoff: time.Second, Recheck: time.Minute})
		q.add(named("old"), 0)
		<-time.After(time.Second)
		_, old := takes(q, 0)
		<-time.After(time.Second)
		q.add(named("new"), 0)
		q.add(named("urgent"), 1)
		<-time.After(time.Second)
		q.failed(old, byRoom)
		q.changed(byRoom)
		<-time.After(time.Second)
		for _, want := range []string{"urgent", "new", "old", ""} {
			if got, _ := takes(q, 0); got != want {
				t.Errorf("took %q, want %q", got, want)
			}
		}
	})
}

// TestQueueKeepsNew: what comes of a pod that was taken is nothing to one of the same name that was
// added meanwhile, whether that has been taken too or not.
func TestQueueKeepsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Config{MinBackoff: time.Second, MaxBackoff: time.Second, Recheck: time.Minute})
		take := func(step string) turn {
			t.Helper()
			got, taken := takes(q, time.Second)
			if got != "p" {
				t.Fatalf("%s: took %q", step, got)
			}
			return taken
		}
		q.add(named("p"), 0)
		old := take("new")
		q.add(named("p"), 0)
		q.done(old)
		old = take("changed, and then bound as it was")
		q.remove(named("p"))
		q.add(named("p"), 0)
		q.done(old)
		anew := take("made anew")
		q.done(old)
		q.failed(old, 0)
		q.failed(anew, 0)
		q.done(take("made anew and taken, and the old one is done"))
		if len(q.pods) != 0 {
			t.Error("it is bound and still known")
		}
	})
}

func TestQueueParksAndWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Config{MinBackoff: time.Second, MaxBackoff: 4 * time.Second, Recheck: time.Minute})
		expect := func(step, want string, within time.Duration) turn {
			t.Helper()
			got, changes := takes(q, within)
			if got != want {
				t.Fatalf("%s: took %q within %s, want %q", step, got, within, want)
			}
			return changes
		}
		q.add(named("p"), 0)
		seen := expect("new", "p", 0)
		q.failed(seen, byRoom)
		expect("parked", "", 59*time.Second)
		seen = expect("looked at again though nothing changed", "p", time.Second)

		q.failed(seen, byRoom)
		q.changed(byRoom)
		expect("changed, backing off", "", 1999*time.Millisecond)
		seen = expect("changed, after its second back-off", "p", time.Millisecond)

		q.changed(byRoom) // while it is being decided about
		q.failed(seen, byRoom)
		seen = expect("changed meanwhile, after its third back-off", "p", 4*time.Second)

		q.failed(seen, 0)
		seen = expect("not its fault, at the longest back-off", "p", 4*time.Second)

		q.failed(seen, byRoom)
		q.add(named("p"), 0)
		seen = expect("changed itself", "p", 0)

		q.add(named("p"), 0) // while it is being decided about
		q.failed(seen, byRoom)
		seen = expect("changed itself meanwhile", "p", 0)

		q.remove(named("p"))
		q.failed(seen, 0)
		expect("removed", "", 2*time.Minute)
		if len(q.pods) != 0 || q.later.Len() != 0 || q.now.Len() != 0 {
			t.Errorf("left over: %d %d %d", len(q.pods), q.later.Len(), q.now.Len())
		}
	})
}

// TestQueueWakesWhatItHelps: pods that wait for something else are left alone.
func TestQueueWakesWhatItHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(Config{MinBackoff: time.Second, MaxBackoff: time.Second, Recheck: time.Minute})
		needs := map[string]cause{"room": byRoom, "labels": byLabels, "taints": byTaints, "either": byRoom | byTaints}
		for name, what := range needs {
			q.add(named(name), 0)
			_, seen := takes(q, 0)
			q.failed(seen, what)
		}
		<-time.After(2 * time.Second)
		for _, step := range []struct {
			what cause
			want []string
		}{
			{0, nil},
			{byLabels, []string{"labels"}},
			{byRoom, []string{"either", "room"}},
			{byTaints, []string{"taints"}},
			{byAny, nil}, // all have been woken
		} {
			q.changed(step.what)
			var got []string
			for name, _ := takes(q, 0); name != ""; name, _ = takes(q, 0) {
				got = append(got, name)
			}
			slices.Sort(got)
			if !slices.Equal(got, step.want) {
				t.Errorf("cause %b wakes %q, want %q", step.what, got, step.want)
			}
		}
	})
}
