package nodelifecycle

// Benchmarks of passes over a fleet, and how soon a node of one is missed.

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/loop"
)

const fleetNodes, fleetPods, fleetZones = 2000, 20_000, 4

// A fleet is a controller whose caches are full, beside a server that takes what
// is written and puts it into the caches.
type fleet struct {
	run    *run
	mu     sync.Mutex
	writes int // guarded by mu
}

func newFleet(tb testing.TB) *fleet {
	fl := &fleet{}
	client := &fake.Clientset{}
	f := informers.NewSharedInformerFactory(client, 0)
	c, err := New(loop.Deps{Client: client, Informers: f}, Config{})
	if err != nil {
		tb.Fatal(err)
	}
	fl.run = newRun(c)
	now := metav1.Now()
	put := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	for i := range fleetNodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("node-%04d", i), UID: types.UID(strconv.Itoa(i)), CreationTimestamp: now,
			Labels: map[string]string{corev1.LabelTopologyZone: strconv.Itoa(i % fleetZones), corev1.LabelTopologyRegion: "r"},
		}}
		n.Status.Conditions = conditions(corev1.ConditionTrue)
		put(fl.run.nodeInf.GetIndexer().Add(n))
		fl.renew(n.Name)
	}
	for i := range fleetPods {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("pod-%05d", i)}}
		p.Spec.NodeName = fmt.Sprintf("node-%04d", i%fleetNodes)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		put(fl.run.podInf.GetIndexer().Add(p))
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		put(loop.Together(ctx, fl.run.tainting.Run, fl.run.marking.Run))
	})
	client.AddReactor("update", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		u, _ := a.(clienttesting.UpdateAction)
		if a.GetResource().Resource == "leases" { // the memory
			return true, u.GetObject(), nil
		}
		inf := fl.run.nodeInf
		if a.GetResource().Resource == "pods" {
			inf = fl.run.podInf
		}
		fl.mu.Lock()
		fl.writes++
		fl.mu.Unlock()
		obj := u.GetObject()
		return true, obj, inf.GetIndexer().Update(obj)
	})
	client.AddReactor("create", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		c, _ := a.(clienttesting.CreateAction)
		return true, c.GetObject(), nil
	})
	client.AddReactor("get", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		g, _ := a.(clienttesting.GetAction)
		l, err := fl.run.leases.Get(g.GetName())
		return true, l, err
	})
	return fl
}

func (fl *fleet) renew(name string) {
	now := metav1.NowMicro()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
	l.Spec.RenewTime = &now
	_ = fl.run.leaseInf.GetIndexer().Update(l)
}

// BenchmarkPass is a pass over 2,000 nodes that all are as they should be.
func BenchmarkPass(b *testing.B) {
	fl := newFleet(b)
	if err := fl.run.pass(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := fl.run.pass(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	if fl.writes != 0 {
		b.Fatalf("%d writes in passes that change nothing", fl.writes)
	}
}

// BenchmarkLostPass is the pass that finds half of 2,000 nodes quiet and writes so.
func BenchmarkLostPass(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		fl := newFleet(b)
		if err := fl.run.pass(b.Context()); err != nil {
			b.Fatal(err)
		}
		i := 0
		for _, rec := range fl.run.records.byName {
			if i++; i%2 == 0 {
				rec.heard = rec.heard.Add(-time.Hour)
			}
		}
		b.StartTimer()
		if err := fl.run.pass(b.Context()); err != nil {
			b.Fatal(err)
		}
		if fl.writes != fleetNodes/2 {
			b.Fatalf("%d writes", fl.writes)
		}
	}
}

// TestPassAllocations: what a pass costs that changes nothing does not grow in
// the dark. A lookup in the cache of Leases makes a key; there is little else.
func TestPassAllocations(t *testing.T) {
	fl := newFleet(t)
	pass := func() {
		if err := fl.run.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	if n := testing.AllocsPerRun(5, pass); n > 3*fleetNodes {
		t.Errorf("%v allocations in a pass over %d nodes", n, fleetNodes)
	}
	if fl.writes != 0 {
		t.Errorf("%d writes", fl.writes)
	}
}

// TestFleetReaction: with 2,000 nodes that beat at all times of a period, each of
// a tenth that stops is Unknown within G and G+M of its last heartbeat, and none
// of the others ever is.
func TestFleetReaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t)
		p := fl.run.cfg.Policy
		last := map[string]time.Time{}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := loop.Together(ctx, fl.run.monitor, fl.run.tainting.Run, fl.run.marking.Run); err != nil {
				t.Error(err)
			}
		})
		const step = 100 * time.Millisecond
		<-time.After(step / 2) // heartbeats meet no pass
		began := time.Now()
		for i := 0; time.Since(began) < 2*time.Minute; i++ {
			for k := i % 100; k < fleetNodes; k += 100 { // each node every 10 s
				name := fmt.Sprintf("node-%04d", k)
				if k%10 == 3 && time.Since(began) > 30*time.Second {
					continue
				}
				fl.renew(name)
				last[name] = time.Now()
			}
			<-time.After(step)
		}
		cancel()
		wg.Wait()
		lost := 0
		for name, heard := range last {
			n, err := fl.run.nodes.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			c := readyCondition(n)
			if c.Status == corev1.ConditionTrue {
				continue
			}
			lost++
			if took := c.LastTransitionTime.Sub(heard); took < p.MonitorGracePeriod || took > p.MonitorGracePeriod+p.MonitorPeriod {
				t.Errorf("%s was lost %v after its last heartbeat", name, took)
			}
		}
		if lost != fleetNodes/10 {
			t.Errorf("%d nodes lost", lost)
		}
		if want := lost + lost*fleetPods/fleetNodes; fl.writes != want {
			t.Errorf("%d writes, want %d: one of each node and pod that is lost", fl.writes, want)
		}
	})
}
