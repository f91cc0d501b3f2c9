// A controller and nodes by the libraries of others: what client-go offers to
// controllers, and a node that is no more than the API says a node is.

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

func TestOthers(t *testing.T) {
	t.Parallel()
	c := startUp(t, "--nodes", "0",
		"--server-arg=--node-monitor-period=1s", "--server-arg=--node-monitor-grace-period=8s",
		"--server-arg=--node-eviction-rate=10", "--server-arg=--default-unreachable-toleration-seconds=2",
		"--server-arg=--pod-gc-sync-period=1s", "--server-arg=--pod-gc-orphan-quarantine=1s")
	t.Run("controller", func(t *testing.T) { testController(t, c) })
	t.Run("clocks", func(t *testing.T) { testClocks(t, c) })
	t.Run("node", func(t *testing.T) { testNodeOfOthers(t, c) })
}

const (
	kept   = "others.example.com/kept"  // label of what a keeper looks after
	unkept = "others.example.com/clean" // its finalizer
)

// A keeper keeps a second ConfigMap, owned by the first, for each that is
// labelled.
type keeper struct {
	id     string
	client kubernetes.Interface
	events record.EventRecorder
	queue  workqueue.TypedRateLimitingInterface[string]
	lister cache.Indexer
}

// runKeeper is a replica of the controller: it works while it is the leader.
func runKeeper(ctx context.Context, client kubernetes.Interface, id string) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&clientv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	k := &keeper{
		id: id, client: client,
		events: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "keeper"}),
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	leading := make(chan struct{})
	var worker sync.WaitGroup
	defer worker.Wait()
	worker.Go(func() {
		select {
		case <-leading:
			k.work(ctx)
		case <-ctx.Done():
		}
	})
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "keeper"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: id, EventRecorder: k.events},
		},
		LeaseDuration: 30 * time.Second, RenewDeadline: 20 * time.Second, RetryPeriod: 200 * time.Millisecond, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(leading) },
			OnStoppedLeading: k.queue.ShutDown,
		},
	})
}

func (k *keeper) work(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = kept }))
	informer := factory.Core().V1().ConfigMaps().Informer()
	k.lister = informer.GetIndexer()
	queue := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			k.queue.Add(key)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: queue, UpdateFunc: func(_, o any) { queue(o) }}); err != nil {
		return
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	for {
		key, shut := k.queue.Get()
		if shut {
			return
		}
		if err := k.sync(ctx, key); err != nil {
			k.queue.AddRateLimited(key)
		} else {
			k.queue.Forget(key)
		}
		k.queue.Done(key)
	}
}

func (k *keeper) sync(ctx context.Context, key string) error {
	o, ok, err := k.lister.GetByKey(key)
	if err != nil || !ok {
		return err
	}
	m := o.(*corev1.ConfigMap).DeepCopy()
	maps := k.client.CoreV1().ConfigMaps(m.Namespace)
	switch {
	case m.DeletionTimestamp != nil:
		m.Finalizers = nil
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
		return ignore(err, apierrors.IsNotFound)
	case len(m.Finalizers) == 0:
		m.Finalizers = []string{unkept}
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
		return err
	}
	second := coreapply.ConfigMap(m.Name+"-kept", m.Namespace).WithData(map[string]string{"by": k.id}).
		WithOwnerReferences(metaapply.OwnerReference().WithAPIVersion("v1").WithKind("ConfigMap").WithName(m.Name).WithUID(m.UID).
			WithController(true).WithBlockOwnerDeletion(true))
	if _, err = maps.Apply(ctx, second, metav1.ApplyOptions{FieldManager: "keeper", Force: true}); err != nil {
		return err
	}
	k.events.Event(m, corev1.EventTypeNormal, "Kept", "Keeping "+m.Name+" by "+k.id)
	return nil
}

func ignore(err error, what func(error) bool) error {
	if what(err) {
		return nil
	}
	return err
}

// testController has two replicas of a controller, one of which is lost.
func testController(t *testing.T, c *cluster) {
	conf := rest.CopyConfig(c.rest)
	conf.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(conf)
	if err != nil {
		t.Fatal(err)
	}
	replica := func(id string) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); runKeeper(ctx, client, id) }()
		return func() { cancel(); <-ended }
	}
	maps := c.client.CoreV1().ConfigMaps("default")
	keep := func(name, by string) {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{kept: ""}}}
		if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" is kept by "+by, func() error {
			second, err := maps.Get(t.Context(), name+"-kept", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if second.Data["by"] != by || len(second.OwnerReferences) != 1 || len(second.ManagedFields) != 1 || second.ManagedFields[0].Manager != "keeper" {
				return fmt.Errorf("it is %+v", second)
			}
			return nil
		})
	}
	stopFirst := replica("first")
	keep("one", "first")
	stopSecond := replica("second")
	defer stopSecond()
	stopFirst()
	keep("two", "second")
	eventually(t, "events", func() error {
		list, err := c.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Kept,involvedObject.name=two"})
		if err == nil && len(list.Items) == 0 {
			err = fmt.Errorf("none of %d", len(list.Items))
		}
		return err
	})
	for _, name := range []string{"one", "two"} {
		if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, gone := range []string{name, name + "-kept"} {
			eventually(t, gone+" is gone", func() error {
				_, err := maps.Get(t.Context(), gone, metav1.GetOptions{})
				if err == nil {
					return fmt.Errorf("it is there")
				}
				return ignore(err, apierrors.IsNotFound)
			})
		}
	}
}

// joinForeign makes a node that has a lease and a status, and neither an agent
// nor a tunnel. It lives until stop is called.
func joinForeign(t *testing.T, c *cluster, name string) (stop func()) {
	t.Helper()
	return joinForeignAt(t, c, name, clock.RealClock{})
}

// joinForeignAt is joinForeign with a clock for it.
func joinForeignAt(t *testing.T, c *cluster, name string, at clock.Clock) (stop func()) {
	t.Helper()
	nodes := c.client.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":%q}],
		"capacity":{"cpu":"2","memory":"4Gi","pods":"10"},"allocatable":{"cpu":"2","memory":"4Gi","pods":"10"}}}`, at.Now().UTC().Format(time.RFC3339))
	if _, err = nodes.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	return beat(t, c, name, at)
}

// testNodeOfOthers has a node die that Hawser knows nothing about but what the
// API says: there is no other explanation for its silence, so it is evicted from
// in the documented time, and nothing is said about a tunnel that it has not.
func testNodeOfOthers(t *testing.T, c *cluster) {
	h := c.watch(t)
	stop := joinForeign(t, c, "foreign-1")
	joinForeign(t, c, "foreign-2")
	for _, name := range []string{"foreign-1", "foreign-2"} {
		h.node(t, name, "may be used", func(n *corev1.Node) bool {
			return is(corev1.NodeReady, corev1.ConditionTrue)(n) && len(n.Spec.Taints) == 0
		})
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "foreign-1", TerminationGracePeriodSeconds: ptr.To(int64(1)), Containers: []corev1.Container{{Name: "main", Image: "none"}},
	}}
	pod, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	dead := h.node(t, "foreign-1", "is evicted from", func(n *corev1.Node) bool { return evicting(n) != nil })
	h.pod(t, "is told to go", func(p *corev1.Pod) bool { return p.UID == pod.UID && p.DeletionTimestamp != nil })
	if ready := condition(dead, corev1.NodeReady); ready.Status != corev1.ConditionUnknown || ready.Reason != "NodeStatusUnknown" {
		t.Errorf("the dead node is %v: %s", ready.Status, ready.Reason)
	}
	if err := c.client.CoreV1().Nodes().Delete(t.Context(), "foreign-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.lost(t, pod)
	if n := h.told("EvictionFrozen", "foreign-1", ""); n != 0 {
		t.Errorf("%d times evictions were said to wait", n)
	}
	for _, name := range []string{"foreign-1", "foreign-2"} {
		for _, n := range h.versions(name) {
			for _, cond := range n.Status.Conditions {
				if strings.HasPrefix(string(cond.Type), "hawser.dev/") {
					t.Errorf("%s has no tunnel, and the condition %s: %s", name, cond.Type, cond.Reason)
				}
			}
		}
	}
}
