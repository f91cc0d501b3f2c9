package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

func pod(ns, name, node string, containers ...string) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"of": name}},
		Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c})
	}
	return p
}

func cpu(at time.Time, nanos, rate *uint64) *stats.CPUStats {
	return &stats.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: nanos, UsageNanoCores: rate}
}

func memoryOf(bytes uint64) *stats.MemoryStats { return &stats.MemoryStats{WorkingSetBytes: &bytes} }

func said(p corev1.Pod, containers ...stats.ContainerStats) stats.PodStats {
	return stats.PodStats{PodRef: stats.PodReference{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}, Containers: containers}
}

// a world of nodes that use half a processor each, by their clocks, and their pods.
type world struct {
	*testing.T
	nodes []corev1.Node
	pods  []corev1.Pod
	asked atomic.Int64
	most  atomic.Int64 // asked at a time
	now   atomic.Int64
	ask   Source // nil means half a processor
}

func (w *world) source(ctx context.Context, node string) (*stats.Summary, error) {
	w.asked.Add(1)
	if n := w.now.Add(1); n > w.most.Load() {
		w.most.Store(n)
	}
	defer w.now.Add(-1)
	if w.ask != nil {
		if s, err := w.ask(ctx, node); s != nil || err != nil {
			return s, err
		}
	}
	return w.half(node), nil
}

// half is a summary of a built-in kubelet's kind: counts, and no rates.
func (w *world) half(node string) *stats.Summary {
	at := time.Now().Add(-1000 * time.Hour) // its clock is wrong
	nanos := new(uint64(time.Now().UnixNano() / 2))
	s := &stats.Summary{Node: stats.NodeStats{NodeName: node, CPU: cpu(at, nanos, nil), Memory: memoryOf(1 << 30)}}
	for _, p := range w.pods {
		if p.Spec.NodeName != node {
			continue
		}
		var cs []stats.ContainerStats
		for _, c := range p.Spec.Containers {
			cs = append(cs, stats.ContainerStats{Name: c.Name, CPU: cpu(at, nanos, nil), Memory: memoryOf(1 << 20)})
		}
		s.Pods = append(s.Pods, said(p, cs...))
	}
	return s
}

func (w *world) sampler() *sampler {
	return newSampler(Config{
		Ask: w.source,
		Nodes: func(_ context.Context, o *metainternalversion.ListOptions) (*corev1.NodeList, error) {
			out := &corev1.NodeList{}
			for _, n := range w.nodes {
				if o.FieldSelector == nil || o.FieldSelector.Matches(fields.Set{"metadata.name": n.Name}) {
					out.Items = append(out.Items, n)
				}
			}
			return out, nil
		},
		Pods: func(ctx context.Context, o *metainternalversion.ListOptions) (*corev1.PodList, error) {
			out, ns := &corev1.PodList{}, request.NamespaceValue(ctx)
			for _, p := range w.pods {
				set := fields.Set{"metadata.name": p.Name, "spec.nodeName": p.Spec.NodeName}
				if (ns == "" || ns == p.Namespace) && (o.FieldSelector == nil || o.FieldSelector.Matches(set)) {
					out.Items = append(out.Items, p)
				}
			}
			return out, nil
		},
		Log: nil,
	}.complete())
}

func (w *world) with(nodes int, pods ...corev1.Pod) *world {
	for i := range nodes {
		w.nodes = append(w.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i+1)}})
	}
	w.pods = pods
	return w
}

// lines are a list in words.
func nodeLines(t *testing.T, r *nodeREST) string {
	t.Helper()
	l, err := r.list(t.Context(), selecting(nil))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range l.Items {
		out = append(out, fmt.Sprintf("%s %s %s %s", n.Name, n.Usage.Cpu(), n.Usage.Memory(), n.Window.Duration))
	}
	return strings.Join(out, ", ")
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := (&world{T: t}).with(2)
		r := &nodeREST{w.sampler()}
		defer r.Destroy()
		want := "node-1 500m 1Gi 1.1s, node-2 500m 1Gi 1.1s"
		if got := nodeLines(t, r); got != want || w.asked.Load() != 4 {
			t.Errorf("at first: %s, asked %d times", got, w.asked.Load())
		}
		if got := nodeLines(t, r); got != want || w.asked.Load() != 4 {
			t.Errorf("at once: %s, asked %d times", got, w.asked.Load())
		}
		time.Sleep(Fresh)
		if got := nodeLines(t, r); got != strings.ReplaceAll(want, "1.1s", "15s") || w.asked.Load() != 6 {
			t.Errorf("later: %s, asked %d times", got, w.asked.Load())
		}
		time.Sleep(maxSpan + time.Second)
		if got := nodeLines(t, r); got != want || w.asked.Load() != 10 {
			t.Errorf("after a pause: %s, asked %d times", got, w.asked.Load())
		}
	})
}

// TestOwnRate: a node that reckons rates by itself is asked once.
func TestOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := (&world{T: t}).with(1)
		w.ask = func(context.Context, string) (*stats.Summary, error) {
			return &stats.Summary{Node: stats.NodeStats{NodeName: "node-1", CPU: cpu(time.Now(), new(uint64(7)), new(uint64(250e6))), Memory: memoryOf(5)}}, nil
		}
		r := &nodeREST{w.sampler()}
		defer r.Destroy()
		if got := nodeLines(t, r); got != "node-1 250m 5 10s" || w.asked.Load() != 1 {
			t.Errorf("%s, asked %d times", got, w.asked.Load())
		}
	})
}

// TestUnreachable: nodes that cannot be asked are left out, hold up a list no longer than
// a question may take, and are left alone for a while.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := (&world{T: t}).with(4)
		w.ask = func(ctx context.Context, node string) (*stats.Summary, error) {
			switch node {
			case "node-1":
				return nil, errors.New("no agent is connected")
			case "node-2":
				<-ctx.Done()
				return nil, ctx.Err()
			case "node-3":
				return &stats.Summary{}, nil
			}
			return nil, nil
		}
		r := &nodeREST{w.sampler()}
		defer r.Destroy()
		began := time.Now()
		if got := nodeLines(t, r); got != "node-4 500m 1Gi 1.1s" || time.Since(began) != AskTimeout {
			t.Errorf("after %v: %s", time.Since(began), got)
		}
		before := w.asked.Load()
		if got := nodeLines(t, r); got != "node-4 500m 1Gi 1.1s" || w.asked.Load() != before {
			t.Errorf("again, asked %d times more: %s", w.asked.Load()-before, got)
		}
		if _, err := r.Get(t.Context(), "node-1", nil); !apierrors.IsNotFound(err) {
			t.Errorf("one that cannot be asked: %v", err)
		}
	})
}

// TestManyNodes: few are asked at a time, and a list does not wait for ever.
func TestManyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := (&world{T: t}).with(1000)
		w.ask = func(ctx context.Context, _ string) (*stats.Summary, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		r := &nodeREST{w.sampler()}
		began := time.Now()
		if got := nodeLines(t, r); got != "" || time.Since(began) != ListTimeout || w.most.Load() > MaxAsked {
			t.Errorf("after %v, %d at a time: %s", time.Since(began), w.most.Load(), got)
		}
		r.Destroy()
		if a, wait := r.look(t.Context(), "node-1"); a != nil || wait != nil {
			t.Error("asked after the end")
		}
	})
}

// TestOneQuestion: requests that come together ask once, and one that goes takes the
// answer from nobody.
func TestOneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := (&world{T: t}).with(1)
		s := w.sampler()
		defer s.Destroy()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan int)
		go func() { gone <- len(s.all(ctx, []string{"node-1"})) }()
		synctest.Wait()
		stays := make(chan int)
		go func() { stays <- len(s.all(t.Context(), []string{"node-1"})) }()
		synctest.Wait()
		cancel()
		if n := <-gone; n != 0 {
			t.Errorf("one that went has %d", n)
		}
		if n := <-stays; n != 1 || w.asked.Load() != 2 {
			t.Errorf("one that stayed has %d, asked %d times", n, w.asked.Load())
		}
		time.Sleep(2 * maxSpan)
		s.forget()
		if len(s.nodes) != 0 {
			t.Error("what is old is kept")
		}
	})
}

func TestPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := pod("work", "idle", "node-1", "c")
		idle.Status.Phase = corev1.PodSucceeded
		w := (&world{T: t}).with(3, pod("work", "a", "node-1", "d", "c"), pod("work", "b", "node-2", "c"), pod("other", "c", "node-3", "c"), idle)
		r := &podREST{w.sampler()}
		defer r.Destroy()
		work := request.WithNamespace(t.Context(), "work")
		obj, err := r.List(work, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range obj.(*metricsv1beta1.PodMetricsList).Items {
			for _, c := range p.Containers {
				got = append(got, fmt.Sprintf("%s/%s/%s %s %s %s", p.Namespace, p.Name, c.Name, c.Usage.Cpu(), c.Usage.Memory(), p.Labels["of"]))
			}
		}
		want := []string{"work/a/c 500m 1Mi a", "work/a/d 500m 1Mi a", "work/b/c 500m 1Mi b"}
		if !slices.Equal(got, want) || w.asked.Load() != 4 {
			t.Errorf("asked %d times: %q", w.asked.Load(), got)
		}
		if _, err := r.Get(work, "idle", nil); !apierrors.IsNotFound(err) {
			t.Errorf("one that has ended: %v", err)
		}
		if obj, err := r.Get(work, "b", nil); err != nil || obj.(*metricsv1beta1.PodMetrics).Name != "b" {
			t.Errorf("one: %v, %v", obj, err)
		}
	})
}

// TestNotBelieved: what a node says of others, and what cannot be.
func TestNotBelieved(t *testing.T) {
	mine, static, others := pod("ns", "mine", "node-1", "c", "d"), pod("ns", "static", "node-1", "c"), pod("ns", "others", "node-2", "c")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	bound := []corev1.Pod{mine, static, others}
	now := time.Now()
	good := func(name string) stats.ContainerStats {
		return stats.ContainerStats{Name: name, CPU: cpu(now, new(uint64(1)), new(uint64(1e9))), Memory: memoryOf(1)}
	}
	wrong := said(mine, good("c"))
	wrong.PodRef.UID = "of one before"
	hashed := said(static, good("c"))
	hashed.PodRef.UID = "hash"
	for _, tc := range []struct {
		name string
		node string
		cpu  *stats.CPUStats
		mem  *stats.MemoryStats
		pods []stats.PodStats
		want string
	}{
		{"all well", "node-1", cpu(now, nil, new(uint64(1e9))), memoryOf(1), []stats.PodStats{said(mine, good("c"), good("d")), hashed}, "node mine:2 static:1"},
		{"another node's name", "node-2", cpu(now, nil, new(uint64(1e9))), memoryOf(1), []stats.PodStats{said(mine, good("c"))}, ""},
		{"a pod of another node", "node-1", nil, nil, []stats.PodStats{said(others, good("c"))}, ""},
		{"a pod that there is not", "node-1", nil, nil, []stats.PodStats{said(pod("ns", "none", "node-1"), good("c"))}, ""},
		{"a pod of before", "node-1", nil, nil, []stats.PodStats{wrong}, ""},
		{"a container that is not declared", "node-1", nil, nil, []stats.PodStats{said(mine, good("c"), good("x"))}, "mine:1"},
		{"a container twice", "node-1", nil, nil, []stats.PodStats{said(mine, good("c"), good("c"))}, "mine:1"},
		{"too many processors", "node-1", cpu(now, nil, new(uint64(1<<16+1)*1e9)), memoryOf(1), nil, ""},
		{"too much memory", "node-1", cpu(now, nil, new(uint64(1))), memoryOf(1<<50 + 1), nil, ""},
		{"no memory", "node-1", cpu(now, nil, new(uint64(1))), &stats.MemoryStats{}, nil, ""},
		{"nothing of processors", "node-1", cpu(now, nil, nil), memoryOf(1), nil, ""},
		{"a container of nothing", "node-1", nil, nil, []stats.PodStats{said(mine, stats.ContainerStats{Name: "c"})}, ""},
	} {
		s := &stats.Summary{Node: stats.NodeStats{NodeName: tc.node, CPU: tc.cpu, Memory: tc.mem}, Pods: tc.pods}
		var got []string
		r := newReading(s, "node-1", bound, now)
		if r.node != nil {
			got = append(got, "node")
		}
		for _, p := range bound {
			if n := len(r.pods[p.UID]); n > 0 {
				got = append(got, fmt.Sprintf("%s:%d", p.Name, n))
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestSince(t *testing.T) {
	at := time.Now()
	for _, tc := range []struct {
		name          string
		before, after uint64
		span          time.Duration
		own           *uint64
		want          string
	}{
		{"a rate", 0, 2e9, 4 * time.Second, nil, "500000000 4s"},
		{"a rate is better than one of the node's", 0, 2e9, 4 * time.Second, new(uint64(1)), "500000000 4s"},
		{"begun anew", 5, 2, 4 * time.Second, nil, ""},
		{"begun anew, with one of its own", 5, 2, 4 * time.Second, new(uint64(1)), "1 10s"},
		{"too close", 0, 1e9, time.Millisecond, nil, ""},
		{"a clock that goes back", 0, 1e9, -time.Minute, nil, ""},
		{"too far apart", 0, 1e9, time.Hour, nil, ""},
		{"more than any machine has", 0, 1 << 63, time.Second, nil, ""},
	} {
		before := point{at: at, nanos: &tc.before}
		got := ""
		if a, ok := (point{at: at.Add(tc.span), nanos: &tc.after, rate: tc.own}).since(&before); ok {
			got = fmt.Sprint(a.rate, " ", a.window)
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
