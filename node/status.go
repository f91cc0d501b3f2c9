// This file keeps the node's status in the API up to date.

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/node/pods"
)

const (
	// statusTries bounds the tries of one update.
	statusTries = 5
	// eagerPeriod is the update period during eagerFor after the start, so that the node
	// becomes ready sooner.
	eagerPeriod = 500 * time.Millisecond
	eagerFor    = 30 * time.Second
	// addressPeriod is how often addresses are detected.
	addressPeriod = time.Minute
)

// statusLoop is the state of updateStatus. Before that runs, register owns it.
type statusLoop struct {
	reportAt  time.Time // when to write an unchanged status
	addressAt time.Time
	ips       []netip.Addr
	noAddress error
	pressure  [3]time.Time // when memory, disk and pids were last short
	failing   string       // the failure last logged
}

// reported records that a status was written. Changes cause writes of many nodes at the
// same time, so the next periodic write is delayed by a random half period more or less.
func (l *statusLoop) reported(now time.Time, every time.Duration, changed bool) {
	l.reportAt = now.Add(every)
	if changed {
		l.reportAt = now.Add(every/2 + rand.N(every))
	}
}

// updateStatus computes and writes the status until ctx is done.
func (n *Node) updateStatus(ctx context.Context) {
	began := time.Now()
	for {
		ready := n.syncStatus(ctx)
		wait := n.cfg.StatusUpdate
		if !ready && time.Since(began) < eagerFor {
			wait = min(wait, eagerPeriod)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.hurry:
		case <-time.After(wait):
		}
	}
}

// syncStatus makes one update, and reports whether the node is Ready in the API afterwards.
func (n *Node) syncStatus(ctx context.Context) bool {
	var err error
	for try := range statusTries {
		var ready bool
		if ready, err = n.tryStatus(ctx, try == 0); err == nil {
			if n.status.failing != "" {
				n.log.Info("the node's status is written again", "node", n.cfg.Name)
				n.status.failing = ""
			}
			return ready
		}
		if ctx.Err() != nil {
			return false
		}
		n.metrics.writes.WithLabelValues("failed").Inc()
		if apierrors.IsNotFound(err) {
			break
		}
		if try > 0 {
			n.cfg.CloseConnections()
		}
	}
	if apierrors.IsNotFound(err) && !n.cfg.NoRegister {
		err = errors.New("the node was deleted; restart the agent to register it anew")
	}
	if msg := err.Error(); msg != n.status.failing {
		n.log.Warn("cannot write the node's status, will keep trying", "node", n.cfg.Name, "err", err)
		n.status.failing = msg
	}
	return false
}

func (n *Node) tryStatus(ctx context.Context, cached bool) (bool, error) {
	node := n.self.node()
	if !cached || node == nil {
		var err error
		if node, err = n.cfg.API.Nodes.Get(ctx, n.cfg.Name, metav1.GetOptions{}); err != nil {
			return false, fmt.Errorf("get node: %w", err)
		}
		n.self.set(node)
	}
	wanted := node.DeepCopy()
	r := n.report(ctx)
	events := r.set(wanted)
	changed := statusChanged(&node.Status, &wanted.Status) || node.Annotations[providedIP] != wanted.Annotations[providedIP]
	ready := len(r.problems) == 0
	if !changed && r.now.Before(n.status.reportAt) {
		return ready, nil
	}
	patch, err := statusPatch(node, wanted)
	if err != nil {
		return false, err
	}
	out, err := n.cfg.API.Nodes.Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return false, fmt.Errorf("patch node status: %w", err)
	}
	n.self.set(out)
	n.status.reported(r.now, n.cfg.StatusReport, changed)
	n.metrics.writes.WithLabelValues("ok").Inc()
	n.metrics.ready.Set(0)
	if ready {
		n.metrics.ready.Set(1)
	}
	n.tell(events)
	return ready, nil
}

func (n *Node) tell(events []event) {
	for _, e := range events {
		n.events.Event(n.ref, e.kind, e.reason, e.message)
	}
}

// statusPatch is the patch between two statuses. It replaces addresses as a whole, because
// the API merges them by type and would keep only one of each type.
func statusPatch(from, to *corev1.Node) ([]byte, error) {
	before, err := json.Marshal(from)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	after := to.DeepCopy()
	after.Spec = from.Spec
	same := apiequality.Semantic.DeepEqual(from.Status.Addresses, to.Status.Addresses)
	after.Status.Addresses = from.Status.Addresses
	encoded, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, encoded, corev1.Node{})
	if err != nil || same {
		return patch, err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("decode patch: %w", err)
	}
	status, ok := fields["status"].(map[string]any)
	if !ok {
		status = map[string]any{}
		fields["status"] = status
	}
	addresses := make([]any, 0, len(to.Status.Addresses)+1)
	for _, a := range to.Status.Addresses {
		addresses = append(addresses, map[string]any{"type": string(a.Type), "address": a.Address})
	}
	status["addresses"] = append(addresses, map[string]any{"$patch": "replace"})
	return json.Marshal(fields)
}

func equalStatus(a, b *corev1.NodeStatus) bool { return apiequality.Semantic.DeepEqual(a, b) }

// report collects the report from the machine and the runtime.
func (n *Node) report(ctx context.Context) *report {
	l := &n.status
	if now := time.Now(); !now.Before(l.addressAt) {
		n.refreshAddresses(ctx)
	}
	r := &report{cfg: &n.cfg, now: time.Now(), ips: l.ips}
	problem := func(err error) {
		if err != nil {
			r.problems = append(r.problems, err.Error())
		}
	}
	var err error
	if r.info, err = n.cfg.Runtime.Info(ctx); err == nil {
		err = n.cfg.Runtime.Healthy(ctx)
	}
	if err != nil {
		err = fmt.Errorf("container runtime is down: %w", err)
	} else if images, unlisted := n.cfg.Runtime.Images(ctx); unlisted == nil {
		r.images = images
	} else {
		n.log.Debug("the runtime does not list its images; the status keeps those it has", "err", unlisted)
	}
	down := err
	r.facts, err = n.machine.read(r.info.Dir)
	problem(err)
	problem(down)
	if n.down.Load() {
		problem(errShuttingDown)
	}
	if !n.cfg.ExternalCloud {
		problem(l.noAddress)
	}
	t := &n.cfg.Thresholds
	for i, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if t.short(&r.facts, c) {
			l.pressure[i] = r.now
		}
	}
	lately := func(at time.Time) bool { return !at.IsZero() && r.now.Sub(at) < max(t.Recovery, 1) }
	r.memory, r.disk, r.pids = lately(l.pressure[0]), lately(l.pressure[1]), lately(l.pressure[2])
	return r
}

// refreshAddresses detects the addresses. If it finds none it keeps the last ones.
func (n *Node) refreshAddresses(ctx context.Context) {
	l := &n.status
	ips, err := n.resolve(ctx)
	l.noAddress = nil
	if err != nil && len(l.ips) == 0 {
		l.noAddress = fmt.Errorf("node has no address: %w", err)
	}
	l.addressAt = time.Now().Add(addressPeriod)
	if err != nil {
		l.addressAt = time.Now().Add(n.cfg.StatusUpdate)
		return
	}
	l.ips = ips
	list := make([]string, 0, len(ips))
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	n.addresses.Store(&list)
}

// self caches the node's own object.
type self struct {
	changed func() // called without the lock held

	mu     sync.Mutex
	latest *corev1.Node
}

func (s *self) node() *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

func (s *self) set(n *corev1.Node) {
	s.mu.Lock()
	s.latest = n
	s.mu.Unlock()
	s.changed()
}

// run watches the object until ctx is done.
func (s *self) run(ctx context.Context, cfg Config) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, cfg.Name).String()
	api := cfg.API.Nodes
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
			o.FieldSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return api.Watch(ctx, o)
		},
	}
	// In-memory clients do not support watch-list.
	lister := cache.ToListWatcherWithWatchListSemantics(lw, cfg.API)
	cache.NewReflectorWithOptions(lister, &corev1.Node{}, store{s, cfg.Name}, cache.ReflectorOptions{Name: "node", Backoff: pods.WatchBackoff()}).RunWithContext(ctx)
}

// A store puts what a reflector finds into self.
type store struct {
	s    *self
	name string
}

// Add implements cache.ReflectorStore.
func (st store) Add(obj any) error { return st.Update(obj) }

// Update implements cache.ReflectorStore.
func (st store) Update(obj any) error {
	if n, ok := obj.(*corev1.Node); ok && n.Name == st.name {
		st.s.set(n)
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (st store) Delete(obj any) error {
	if n, ok := obj.(*corev1.Node); ok && n.Name == st.name {
		st.s.set(nil)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (st store) Replace(list []any, _ string) error {
	for _, obj := range list {
		if n, ok := obj.(*corev1.Node); ok && n.Name == st.name {
			st.s.set(n)
			return nil
		}
	}
	st.s.set(nil)
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (st store) Resync() error { return nil }
