// Zones of which some nodes, most or all fall silent: how fast they are evicted
// from. The nodes are objects and leases that the test keeps fresh.

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// zonePeriod is how often the controller looks at the nodes, and zoneSpread
	// within what time those that are to fall silent together speak last: so the
	// controller finds them silent in two looks that follow each other at most.
	// Both leave time to a slow machine.
	zonePeriod = 4 * time.Second
	zoneSpread = zonePeriod * 3 / 4
	// zoneGrace is how long they may be silent, and zoneBeat how often those
	// speak that are not to be.
	zoneGrace = time.Minute
	zoneBeat  = zoneGrace / 10
	// zoneRate and zoneSlow are how many nodes a second of a zone may be evicted
	// from, and of a large one that is partly down.
	zoneRate, zoneSlow = 5, 0.5
	// zoneLarge is above how many nodes a zone is large; few, so that a slow machine
	// has few nodes to keep alive.
	zoneLarge = 20
)

// A zone is a group of nodes that nobody runs.
type zone struct {
	name   string
	nodes  []string
	silent int // how many of them, from the first, are to fall silent
}

func newZone(name string, nodes, silent int) *zone {
	z := &zone{name: name, silent: silent}
	for i := range nodes {
		z.nodes = append(z.nodes, fmt.Sprintf("%s-%02d", name, i))
	}
	return z
}

// metric is the name of a metric of the zone, which goes by region and name.
func (z *zone) metric(name string) string { return name + `{zone="` + ":\x00:" + z.name + `"}` }

// A zone's share of silent nodes decides, and whether it is large: 0.55 of it and
// three nodes are the bound. What happens in one zone is no other's concern, until
// no node is left anywhere.
func TestZones(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "0",
		"--server-arg=--node-monitor-period="+zonePeriod.String(),
		"--server-arg=--node-monitor-grace-period="+zoneGrace.String(),
		fmt.Sprintf("--server-arg=--node-eviction-rate=%v", zoneRate),
		fmt.Sprintf("--server-arg=--secondary-node-eviction-rate=%v", zoneSlow),
		fmt.Sprintf("--server-arg=--large-cluster-size-threshold=%d", zoneLarge))
	var (
		half   = newZone("half", 8, 4)             // 50 %
		most   = newZone("most", zoneLarge, 11)    // 55 %
		all    = newZone("all", 8, 8)              // 100 %
		medium = newZone("medium", 18, 10)         // 56 %
		large  = newZone("large", zoneLarge+1, 12) // 57 %
		small  = newZone("small", 2, 1)            // 50 %, and not three
		tiny   = newZone("tiny", 3, 2)             // 67 %, and not three
		z      = []*zone{half, most, all, medium, large, small, tiny}
		beats  = newHeartbeats(t, c, z...)
		h      = c.watch(t)
		normal = []*zone{half, all, small, tiny}
	)
	for _, z := range z {
		beats.silence(t, z.nodes[:z.silent])
	}
	t.Run("normal rate", func(t *testing.T) {
		for _, z := range normal {
			paced(t, h, z, z.silent, zoneRate)
		}
	})
	t.Run("secondary rate", func(t *testing.T) { paced(t, h, large, 4, zoneSlow) })
	t.Run("stopped", func(t *testing.T) {
		for _, z := range []*zone{most, medium} {
			for _, name := range z.nodes[:z.silent] {
				h.node(t, name, "is out of bounds", func(n *corev1.Node) bool {
					return taint(n, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule) != nil
				})
			}
			untouched(t, h, z.nodes...)
		}
	})
	t.Run("metrics", func(t *testing.T) {
		want := map[string]float64{}
		for _, z := range z {
			z.counted(want, z.silent)
		}
		for z, rate := range map[*zone]float64{half: zoneRate, most: 0, all: zoneRate, medium: 0, large: zoneSlow, small: zoneRate} {
			want[z.metric("hawser_eviction_rate_nodes_per_second")] = rate
		}
		c.measures(t, want)
	})
	t.Run("who speaks is spared", func(t *testing.T) {
		for _, z := range z {
			untouched(t, h, z.nodes[z.silent:]...)
		}
	})
	t.Run("one node less is below the bound", func(t *testing.T) {
		beats.speak(t, medium.nodes[0])
		paced(t, h, &zone{name: medium.name, nodes: medium.nodes[1:]}, medium.silent-1, zoneRate)
		untouched(t, h, medium.nodes[0])
	})
	t.Run("nobody left", func(t *testing.T) { testNobodyLeft(t, c, beats, z) })
}

// testNobodyLeft has every node of every zone fall silent: whatever has begun is
// called off, and nothing begins until somebody is heard again.
func testNobodyLeft(t *testing.T, c *cluster, beats *heartbeats, zones []*zone) {
	h := c.watch(t)
	var everybody, speaking []string
	for _, z := range zones {
		everybody = append(everybody, z.nodes...)
	}
	for _, name := range everybody {
		if is(corev1.NodeReady, corev1.ConditionTrue)(h.latest(name)) {
			speaking = append(speaking, name)
		}
	}
	beats.stop(speaking)
	calledOff := func() error {
		for _, name := range everybody {
			n := h.latest(name)
			if is(corev1.NodeReady, corev1.ConditionTrue)(n) || evicting(n) != nil {
				return fmt.Errorf("%s: %v, %v", name, condition(n, corev1.NodeReady), n.Spec.Taints)
			}
		}
		return nil
	}
	h.until(t, "evictions are called off", calledOff)
	quiet := c.watch(t)
	c.passes(t, 2)
	want := map[string]float64{}
	for _, z := range zones {
		z.counted(want, len(z.nodes))
		want[z.metric("hawser_eviction_rate_nodes_per_second")] = 0
	}
	c.measures(t, want)
	untouched(t, quiet, everybody...)

	back := c.watch(t)
	all := zones[2]
	beats.speak(t, zones[0].nodes[0])
	paced(t, back, all, len(all.nodes), zoneRate)
	untouched(t, back, zones[0].nodes...) // one of eight is there: partly down
}

// paced waits until the first n nodes of a zone have been given up and checks that
// it happened no faster than at a rate, in nodes a second.
func paced(t *testing.T, h *history, z *zone, n int, rate float64) {
	t.Helper()
	var since []time.Time
	h.until(t, fmt.Sprintf("%d nodes of zone %s are to be left", n, z.name), func() error {
		since = since[:0]
		for _, name := range z.nodes {
			for _, v := range h.versions(name) {
				if e := evicting(v); e != nil {
					since = append(since, e.TimeAdded.Time)
					break
				}
			}
		}
		if len(since) < n {
			return fmt.Errorf("%d are", len(since))
		}
		return nil
	})
	slices.SortFunc(since, time.Time.Compare)
	for i := range since {
		// Times are cut to whole seconds, so one may seem to be a second too early.
		if least := time.Duration(float64(i)/rate*float64(time.Second)) - time.Second; since[i].Sub(since[0]) < least {
			t.Errorf("node %d of zone %s was given up %v after the first, want at least %v", i+1, z.name, since[i].Sub(since[0]), least)
		}
	}
}

// untouched checks that no node was to be left at any time.
func untouched(t *testing.T, h *history, names ...string) {
	t.Helper()
	for _, name := range names {
		for _, v := range h.versions(name) {
			if e := evicting(v); e != nil {
				t.Errorf("%s was to be left since %v", name, e.TimeAdded)
				break
			}
		}
	}
}

// counted adds what the controller should measure of a zone to want.
func (z *zone) counted(want map[string]float64, silent int) {
	size := len(z.nodes)
	want[z.metric("node_collector_zone_size")] = float64(size)
	want[z.metric("node_collector_unhealthy_nodes_in_zone")] = float64(silent)
	want[z.metric("node_collector_zone_health")] = float64(100*(size-silent)) / float64(size)
}

// measures waits until the server's metrics are like this.
func (c *cluster) measures(t *testing.T, want map[string]float64) {
	t.Helper()
	eventually(t, "the server measures", func() error {
		has := c.metrics(t)
		for name, v := range want {
			if got, ok := has[name]; !ok || got != v {
				return fmt.Errorf("%q is %v (%v), want %v", name, got, ok, v)
			}
		}
		return nil
	})
}

// heartbeats are those of all nodes that speak.
type heartbeats struct {
	c *cluster

	mu       sync.Mutex // held while they are sent
	speaking map[string]bool
}

// newHeartbeats makes the nodes of zones, ready, and lets them all speak until the
// test ends.
func newHeartbeats(t *testing.T, c *cluster, zones ...*zone) *heartbeats {
	t.Helper()
	b := &heartbeats{c: c, speaking: map[string]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	spoken := make(chan error, 1)
	var names []string
	group, made := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for _, z := range zones {
		for _, name := range z.nodes {
			names = append(names, name)
			b.speaking[name] = true
			group.Go(func() error { return b.make(made, name, z.name) })
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	go func() { spoken <- b.speakOn(ctx, names) }()
	t.Cleanup(func() {
		cancel()
		if err := <-spoken; err != nil {
			t.Error(err)
		}
	})
	return b
}

// make makes a node that is ready.
func (b *heartbeats) make(ctx context.Context, name, zone string) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	if _, err := b.c.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}
	if _, err := b.c.client.CoordinationV1().Leases(lease.Namespace).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		return err
	}
	return b.post(ctx, name)
}

// post has a node say that it is ready.
func (b *heartbeats) post(ctx context.Context, name string) error {
	ready := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q}]}}`,
		time.Now().UTC().Format(time.RFC3339))
	_, err := b.c.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(ready), metav1.PatchOptions{}, "status")
	return err
}

// speakOn renews the leases of all nodes that speak, again and again until ctx is
// done.
func (b *heartbeats) speakOn(ctx context.Context, names []string) error {
	tick := time.NewTicker(zoneBeat)
	defer tick.Stop()
	for {
		if err := b.renewAll(ctx, names); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (b *heartbeats) renewAll(ctx context.Context, names []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.renew(ctx, slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !b.speaking[name] }))
}

// renew renews leases, several at once.
func (b *heartbeats) renew(ctx context.Context, names []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, name := range names {
		group.Go(func() error {
			now := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			_, err := b.c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, name, types.MergePatchType, []byte(now), metav1.PatchOptions{})
			return err
		})
	}
	return group.Wait()
}

// silence has nodes speak a last time, together, and never again.
func (b *heartbeats) silence(t *testing.T, names []string) {
	t.Helper()
	b.stop(names)
	eventually(t, "nodes speak together", func() error {
		began := time.Now()
		must(t, b.renew(t.Context(), names))
		if took := time.Since(began); took > zoneSpread {
			return fmt.Errorf("it took %v", took)
		}
		return nil
	})
}

// stop has nodes speak no more.
func (b *heartbeats) stop(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		delete(b.speaking, name)
	}
}

// speak has a node speak again.
func (b *heartbeats) speak(t *testing.T, name string) {
	t.Helper()
	must(t, b.renew(t.Context(), []string{name}))
	must(t, b.post(t.Context(), name))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.speaking[name] = true
}
