// What is special about single kinds.

package apiserver_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

func TestPodStatusIsSplit(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	p := pod("p")
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}
	p = must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
	if p.Status.Phase != corev1.PodPending || p.Status.PodIP != "" || p.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("status after create: %+v", p.Status)
	}
	if p.Generation != 1 {
		t.Errorf("generation %d", p.Generation)
	}
	p.Status.Phase = corev1.PodRunning
	p.Labels = map[string]string{"a": "b"}
	p = must(pods.Update(ctx, p, metav1.UpdateOptions{}))(t)
	if p.Status.Phase != corev1.PodPending || p.Labels["a"] != "b" {
		t.Errorf("after update: %s %v", p.Status.Phase, p.Labels)
	}
	p.Status.Phase, p.Spec.Containers[0].Image = corev1.PodRunning, "other"
	p = must(pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}))(t)
	if p.Status.Phase != corev1.PodRunning || p.Spec.Containers[0].Image != "busybox" || p.Generation != 1 {
		t.Errorf("after status update: %s %s generation %d", p.Status.Phase, p.Spec.Containers[0].Image, p.Generation)
	}
}

func TestBinding(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	p := pod("p")
	p.Labels = map[string]string{"app": "p", "zone": "unknown"}
	p = must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
	p.Status.NominatedNodeName = "n2"
	p = must(pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}))(t)
	bind := func(uid types.UID, node string) error {
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{
				Name: "p", UID: uid, Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"gpu": "3"},
			},
			Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
	}
	if err := bind("another", "n1"); !apierrors.IsConflict(err) {
		t.Errorf("binding of another incarnation: %v", err)
	}
	if err := bind(p.UID, "n1"); err != nil {
		t.Fatal(err)
	}
	err := bind(p.UID, "n2")
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `already assigned to node "n1"`) {
		t.Errorf("second binding: %v", err)
	}
	p = must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	if p.Spec.NodeName != "n1" || len(p.Status.Conditions) != 1 || p.Status.Conditions[0].Type != corev1.PodScheduled || p.Status.Conditions[0].Status != corev1.ConditionTrue || p.Status.Conditions[0].ObservedGeneration != 1 {
		t.Errorf("bound pod: %s %+v", p.Spec.NodeName, p.Status.Conditions)
	}
	if p.Generation != 1 || p.Status.NominatedNodeName != "" {
		t.Errorf("bound pod: generation %d, nominated to %q, want 1 and nowhere", p.Generation, p.Status.NominatedNodeName)
	}
	if want := map[string]string{"app": "p", "zone": "a"}; !maps.Equal(p.Labels, want) || p.Annotations["gpu"] != "3" {
		t.Errorf("bound pod: labels %v, annotations %v; want %v and what the binding brought", p.Labels, p.Annotations, want)
	}
	placed := pod("placed")
	must(pods.Create(ctx, placed, metav1.CreateOptions{}))(t)
	n := must(shared.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "node-of-" + ns, Labels: map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"},
	}}, metav1.CreateOptions{}))(t)
	must(shared.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{ResourceVersion: n.ResourceVersion}))(t) // it is in the cache
	if err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "placed"}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-of-" + ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	placed = must(pods.Get(ctx, "placed", metav1.GetOptions{}))(t)
	if placed.Labels[corev1.LabelTopologyZone] != "z" || placed.Labels[corev1.LabelTopologyRegion] != "r" {
		t.Errorf("bound pod: labels %v, want its node's zone and region", placed.Labels)
	}
	if err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Target: corev1.ObjectReference{Name: "n"}}, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("binding of no pod: %v", err)
	}
}

func TestGracefulDelete(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	gone := func(name string) bool {
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	must(pods.Create(ctx, pod("unbound"), metav1.CreateOptions{}))(t)
	if err := pods.Delete(ctx, "unbound", metav1.DeleteOptions{}); err != nil || !gone("unbound") {
		t.Errorf("a pod without a node stays: %v", err)
	}

	p := pod("bound")
	p.Spec.NodeName, p.Spec.TerminationGracePeriodSeconds = "n", ptr.To[int64](20)
	must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
	if err := pods.Delete(ctx, "bound", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p = must(pods.Get(ctx, "bound", metav1.GetOptions{}))(t)
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil || *p.DeletionGracePeriodSeconds != 20 {
		t.Fatalf("after delete: %v %v", p.DeletionTimestamp, p.DeletionGracePeriodSeconds)
	}
	// Longer is not possible any more, shorter is.
	for seconds, want := range map[int64]int64{60: 20, 5: 5} {
		if err := pods.Delete(ctx, "bound", metav1.DeleteOptions{GracePeriodSeconds: &seconds}); err != nil {
			t.Fatal(err)
		}
		p = must(pods.Get(ctx, "bound", metav1.GetOptions{}))(t)
		if seconds == 60 && *p.DeletionGracePeriodSeconds > 20 || seconds == 5 && *p.DeletionGracePeriodSeconds != want {
			t.Errorf("asked for %d s: %d", seconds, *p.DeletionGracePeriodSeconds)
		}
	}
	// The kubelet ends it: only this incarnation, at once.
	wrong := types.UID("another")
	err := pods.Delete(ctx, "bound", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &wrong}})
	if !apierrors.IsConflict(err) {
		t.Errorf("delete of another incarnation: %v", err)
	}
	err = pods.Delete(ctx, "bound", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if err != nil || !gone("bound") {
		t.Errorf("final delete: %v", err)
	}

	p = pod("done")
	p.Spec.NodeName = "n"
	p = must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
	p.Status.Phase = corev1.PodSucceeded
	must(pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}))(t)
	if err := pods.Delete(ctx, "done", metav1.DeleteOptions{}); err != nil || !gone("done") {
		t.Errorf("a pod that has ended stays: %v", err)
	}
}

func TestFinalizers(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	maps := shared.client.CoreV1().ConfigMaps(ns)
	must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/hold"}}}, metav1.CreateOptions{}))(t)
	if err := maps.Delete(ctx, "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m := must(maps.Get(ctx, "held", metav1.GetOptions{}))(t)
	if m.DeletionTimestamp == nil {
		t.Fatal("not marked")
	}
	m.Finalizers = nil
	must(maps.Update(ctx, m, metav1.UpdateOptions{}))(t)
	if _, err := maps.Get(ctx, "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("released and still there: %v", err)
	}
}

func TestFieldSelectors(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	for name, node := range map[string]string{"a": "n1", "b": "n2", "c": ""} {
		p := pod(name)
		p.Spec.NodeName = node
		must(shared.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}))(t)
	}
	must(shared.client.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}))(t)
	must(shared.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: corev1.NodeSpec{Unschedulable: true}}, metav1.CreateOptions{}))(t)
	for _, c := range []struct{ path, selector, want string }{
		{"pods", "spec.nodeName=n1", "a"},
		{"pods", "spec.nodeName!=n1", "b c"},
		{"pods", "spec.nodeName=", "c"},
		{"pods", "spec.nodeName=n2,status.phase=Pending", "b"},
		{"pods", "status.phase=Running", ""},
		{"pods", "spec.schedulerName=default-scheduler,metadata.name=c", "c"},
		{"pods", "spec.serviceAccountName=default,metadata.namespace=" + ns + ",spec.nodeName=n1", "a"},
		{"secrets", "type=Opaque", "s"},
		{"secrets", "type=other", ""},
	} {
		for _, version := range []string{"", "0"} {
			body, err := shared.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces", ns, c.path).
				Param("fieldSelector", c.selector).Param("resourceVersion", version).SetHeader("Accept", "application/json").DoRaw(ctx)
			if err != nil {
				t.Errorf("%s: %v", c.selector, err)
				continue
			}
			if got := names(t, body); got != c.want && version == "" {
				t.Errorf("%s %s: %q, want %q", c.path, c.selector, got, c.want)
			}
		}
	}
	nodes := must(shared.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "spec.unschedulable=true,metadata.name=" + ns}))(t)
	if len(nodes.Items) != 1 || nodes.Items[0].Name != ns {
		t.Errorf("unschedulable nodes: %d", len(nodes.Items))
	}
	_, err := shared.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.colour=red"})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "field label not supported: spec.colour") {
		t.Errorf("unknown field: %v", err)
	}
}

// names are the names in a list, joined.
func names(t *testing.T, body []byte) string {
	t.Helper()
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range list.Items {
		out = append(out, i.Name)
	}
	return strings.Join(out, " ")
}

// TestWatchByNode is how a kubelet watches: it sees a pod when it is bound, and
// no other.
func TestWatchByNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ns := namespace(t)
	w := must(shared.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + ns}))(t)
	defer w.Stop()
	for _, name := range []string{"other", "mine"} {
		must(shared.client.CoreV1().Pods(ns).Create(ctx, pod(name), metav1.CreateOptions{}))(t)
	}
	for name, node := range map[string]string{"other": "elsewhere", "mine": ns} {
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		if err := shared.client.CoreV1().Pods(ns).Bind(ctx, b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	event := <-w.ResultChan()
	if p, ok := event.Object.(*corev1.Pod); !ok || event.Type != watch.Added || p.Name != "mine" {
		t.Errorf("first event: %v", event)
	}
}

func TestEventsInBothGroups(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	now := metav1.NowMicro()
	_, err := shared.client.EventsV1().Events(ns).Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "untimed"}, Type: "odd", Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "p"},
	}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "eventTime: Required value") || !strings.Contains(err.Error(), "has invalid value: odd") {
		t.Errorf("an event by the rules of the older group: %v", err)
	}
	must(shared.client.EventsV1().Events(ns).Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, EventTime: now, ReportingController: "example.com/c", ReportingInstance: "c-1",
		Action: "Doing", Reason: "Done", Type: corev1.EventTypeNormal, Note: "it is done",
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "p"},
	}, metav1.CreateOptions{}))(t)
	old := must(shared.client.CoreV1().Events(ns).Get(ctx, "new", metav1.GetOptions{}))(t)
	if old.Message != "it is done" || old.InvolvedObject.Name != "p" || old.ReportingController != "example.com/c" {
		t.Errorf("as a core event: %+v", old)
	}
	must(shared.client.CoreV1().Events(ns).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "old"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "q"},
		Reason: "Why", Message: "because", Type: corev1.EventTypeWarning, Source: corev1.EventSource{Component: "kubelet"}, Count: 3,
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(),
	}, metav1.CreateOptions{}))(t)
	list := must(shared.client.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=q,type=Warning"}))(t)
	if len(list.Items) != 1 || list.Items[0].Note != "because" || list.Items[0].DeprecatedCount != 3 || list.Items[0].DeprecatedSource.Component != "kubelet" {
		t.Errorf("as events.k8s.io: %+v", list.Items)
	}
	for selector, want := range map[string]int{"involvedObject.kind=Pod": 2, "reason=Why": 1, "source=kubelet": 1, "reportingComponent=example.com/c": 1} {
		if got := must(shared.client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: selector}))(t); len(got.Items) != want {
			t.Errorf("%s: %d events", selector, len(got.Items))
		}
	}
	patched, err := shared.client.EventsV1().Events(ns).Patch(ctx, "new", types.StrategicMergePatchType,
		[]byte(`{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`), metav1.PatchOptions{})
	if _, err := shared.client.EventsV1().Events(ns).Patch(ctx, "old", types.MergePatchType, []byte(`{"note":"x"}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `message: Invalid value: "x": field is immutable`) {
		t.Errorf("another note: %v", err)
	}
	must(shared.client.CoreV1().Events(ns).Patch(ctx, "old", types.MergePatchType, []byte(`{"message":"x"}`), metav1.PatchOptions{}))(t)
	if err != nil || patched.Series == nil || patched.Series.Count != 2 {
		t.Errorf("series: %v, %+v", err, patched)
	}
}

// TestEventsAreWatched: events are in no watch cache, and are watched all the same, from a
// list on or with all there are first.
func TestEventsAreWatched(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	events := shared.client.CoreV1().Events(ns)
	event := func(name, reason string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "p"}, Reason: reason}
	}
	must(events.Create(ctx, event("first", "Wanted"), metav1.CreateOptions{}))(t)
	list := must(events.List(ctx, metav1.ListOptions{ResourceVersion: "0"}))(t)
	on := must(events.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, FieldSelector: "reason=Wanted"}))(t)
	defer on.Stop()
	all := must(events.Watch(ctx, metav1.ListOptions{
		SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, FieldSelector: "reason=Wanted",
	}))(t)
	defer all.Stop()
	next := func(w watch.Interface, kind watch.EventType, name string) {
		t.Helper()
		e := <-w.ResultChan()
		if got, ok := e.Object.(*corev1.Event); !ok || e.Type != kind || got.Name != name {
			t.Fatalf("%s %v, want %s %s", e.Type, e.Object, kind, name)
		}
	}
	next(all, watch.Added, "first")
	if e := <-all.ResultChan(); e.Type != watch.Bookmark || e.Object.(*corev1.Event).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("%s %v, want the bookmark that ends what there was", e.Type, e.Object)
	}
	must(events.Create(ctx, event("other", "Unwanted"), metav1.CreateOptions{}))(t)
	must(events.Create(ctx, event("second", "Wanted"), metav1.CreateOptions{}))(t)
	if err := events.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, w := range []watch.Interface{on, all} {
		next(w, watch.Added, "second")
		next(w, watch.Deleted, "first")
	}
	metrics := must(shared.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx))(t)
	if strings.Contains(string(metrics), `watch_cache_capacity{group="",resource="events"}`) {
		t.Error("events have a watch cache")
	}
}

func TestNamespaceDeletion(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	namespaces := shared.client.CoreV1().Namespaces()
	got := must(namespaces.Get(ctx, ns, metav1.GetOptions{}))(t)
	if got.Status.Phase != corev1.NamespaceActive || len(got.Spec.Finalizers) != 1 || got.Labels[corev1.LabelMetadataName] != ns {
		t.Errorf("new namespace: %+v", got)
	}
	if err := namespaces.Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	got = must(namespaces.Get(ctx, ns, metav1.GetOptions{}))(t)
	if got.Status.Phase != corev1.NamespaceTerminating || got.DeletionTimestamp == nil {
		t.Errorf("deleted namespace: %+v", got.Status)
	}
	_, err := shared.client.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("create in a terminating namespace: %v", err)
	}
	got.Spec.Finalizers = nil
	must(namespaces.Finalize(ctx, got, metav1.UpdateOptions{}))(t)
	if _, err = namespaces.Get(ctx, ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("finalized and still there: %v", err)
	}
	until(t, "create in no namespace is told that there is none", func() bool { // which admission has from a cache
		_, err = shared.client.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{})
		if err == nil {
			t.Fatal("created in no namespace")
		}
		return apierrors.IsNotFound(err)
	})
	if err = namespaces.Delete(ctx, "kube-system", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete kube-system: %v", err)
	}
}

func TestNodeStatus(t *testing.T) {
	ctx := t.Context()
	nodes := shared.client.CoreV1().Nodes()
	n := must(nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}},
	}, metav1.CreateOptions{}))(t)
	if n.Status.Allocatable.Cpu().Value() != 4 {
		t.Errorf("a node's first status is lost: %+v", n.Status)
	}
	if len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("taints of a new node: %+v", n.Spec.Taints)
	}
	n.Spec.Unschedulable = true
	n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("8")
	n = must(nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{}))(t)
	if n.Spec.Unschedulable || n.Status.Capacity.Cpu().Value() != 8 {
		t.Errorf("after status update: %+v", n)
	}
	n.Spec.Unschedulable = true
	n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("9")
	n = must(nodes.Update(ctx, n, metav1.UpdateOptions{}))(t)
	if !n.Spec.Unschedulable || n.Status.Capacity.Cpu().Value() != 8 {
		t.Errorf("after update: %+v", n)
	}
}

func TestBuiltinObjects(t *testing.T) {
	ctx := t.Context()
	core := shared.client.CoreV1()
	for _, ns := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		must(core.Namespaces().Get(ctx, ns, metav1.GetOptions{}))(t)
	}
	if s := must(core.Services("default").Get(ctx, "kubernetes", metav1.GetOptions{}))(t); s.Spec.ClusterIP != "10.96.0.1" || s.Spec.Ports[0].Port != 443 {
		t.Errorf("service: %+v", s.Spec)
	}
	slice := must(shared.client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{}))(t)
	if len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != "192.0.2.10" {
		t.Errorf("endpoints: %+v", slice.Endpoints)
	}
	for name, value := range map[string]int32{"system-node-critical": 2000001000, "system-cluster-critical": 2000000000} {
		if c := must(shared.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{}))(t); c.Value != value {
			t.Errorf("%s is %d", name, c.Value)
		}
	}
	if m := must(core.ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{}))(t); !strings.Contains(m.Data["client-ca-file"], "BEGIN CERTIFICATE") {
		t.Errorf("authentication: %v", m.Data)
	}
}

// TestBuiltinObjectsComeBack deletes one of them.
func TestBuiltinObjectsComeBack(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	core := shared.client.CoreV1()
	w := must(core.Services("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=kubernetes"}))(t)
	defer w.Stop()
	if err := core.Services("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := false
	for event := range w.ResultChan() {
		if deleted = deleted || event.Type == watch.Deleted; deleted && event.Type == watch.Added {
			return
		}
	}
	t.Error("no service")
}

func TestJobSelector(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	spec := pod("").Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	j := must(shared.client.BatchV1().Jobs(ns).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "j"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
	}, metav1.CreateOptions{}))(t)
	uid := string(j.UID)
	if j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] != uid || j.Spec.Template.Labels[batchv1.ControllerUidLabel] != uid {
		t.Errorf("selector %v, labels %v", j.Spec.Selector, j.Spec.Template.Labels)
	}
	for what, labels := range map[string]map[string]string{"none": {}, "empty": {"job-name": ""}, "another's": {batchv1.JobNameLabel: "j"}} {
		_, err := shared.client.BatchV1().Jobs(ns).Create(ctx, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "other"},
			Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}},
		}, metav1.CreateOptions{})
		if got := apierrors.IsInvalid(err); got != (what != "none") || err != nil && !strings.Contains(err.Error(), "must be 'other'") {
			t.Errorf("labels: %s: %v", what, err)
		}
	}
}

func TestLeases(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	leases := shared.client.CoordinationV1().Leases(ns)
	l := must(leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("me"), LeaseDurationSeconds: ptr.To[int32](40)}}, metav1.CreateOptions{}))(t)
	// A lease is taken by whoever saw its last state: an update must say so.
	blind := l.DeepCopy()
	blind.ResourceVersion = ""
	if _, err := leases.Update(ctx, blind, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("unconditional update: %v", err)
	}
	now := metav1.NowMicro()
	l.Spec.RenewTime = &now
	must(leases.Update(ctx, l, metav1.UpdateOptions{}))(t)
}
