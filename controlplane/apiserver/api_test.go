// What every resource can do: create, read, change in each of the ways a client
// may, list, watch, delete.

package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// namespace makes a namespace of its own for a test.
func namespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	ns, err := shared.client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// pod is a small valid pod.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox", Command: []string{"sleep", "1"}}}},
	}
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestReadyInTime(t *testing.T) {
	// The promise is 3 s; a race build on a busy machine gets more.
	if shared.took > 2*time.Minute {
		t.Errorf("ready after %v", shared.took)
	}
}

func TestCreateReadUpdateDelete(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	maps := shared.client.CoreV1().ConfigMaps(ns)
	made := must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "1"}}, metav1.CreateOptions{}))(t)
	if made.UID == "" || made.ResourceVersion == "" || made.CreationTimestamp.IsZero() {
		t.Errorf("system fields missing: %+v", made.ObjectMeta)
	}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	changed := made.DeepCopy()
	changed.Data["k"] = "2"
	must(maps.Update(ctx, changed, metav1.UpdateOptions{}))(t)
	if _, err := maps.Update(ctx, changed, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("update of a stale copy: %v", err)
	}
	if got := must(maps.Get(ctx, "a", metav1.GetOptions{}))(t); got.Data["k"] != "2" {
		t.Errorf("k = %q", got.Data["k"])
	}
	dry := changed.DeepCopy()
	dry.ResourceVersion, dry.Data["k"] = "", "3"
	must(maps.Update(ctx, dry, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	if got := must(maps.Get(ctx, "a", metav1.GetOptions{}))(t); got.Data["k"] != "2" {
		t.Errorf("a dry run wrote %q", got.Data["k"])
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("second delete: %v", err)
	}
}

func TestListInPages(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	maps := shared.client.CoreV1().ConfigMaps(ns)
	for i := range 5 {
		must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i), Labels: map[string]string{"odd": fmt.Sprint(i%2 == 1)}}}, metav1.CreateOptions{}))(t)
	}
	var names []string
	options := metav1.ListOptions{Limit: 2}
	for {
		page := must(maps.List(ctx, options))(t)
		for _, m := range page.Items {
			names = append(names, m.Name)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "m0 m1 m2 m3 m4" {
		t.Errorf("pages gave %s", got)
	}
	if odd := must(maps.List(ctx, metav1.ListOptions{LabelSelector: "odd=true"}))(t); len(odd.Items) != 2 {
		t.Errorf("%d odd ones", len(odd.Items))
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "odd=false"}); err != nil {
		t.Fatal(err)
	}
	if left := must(maps.List(ctx, metav1.ListOptions{}))(t); len(left.Items) != 2 {
		t.Errorf("%d left", len(left.Items))
	}
}

func TestPatches(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	p := pod("p")
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other", Image: "x:1"})
	must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
	for _, c := range []struct {
		kind  types.PatchType
		patch string
		check func(*corev1.Pod) bool
	}{
		{types.MergePatchType, `{"metadata":{"labels":{"a":"1","b":"2"}}}`, func(p *corev1.Pod) bool { return p.Labels["a"] == "1" }},
		{types.MergePatchType, `{"metadata":{"labels":{"a":null}}}`, func(p *corev1.Pod) bool { _, ok := p.Labels["a"]; return !ok && p.Labels["b"] == "2" }},
		{types.JSONPatchType, `[{"op":"replace","path":"/metadata/labels/b","value":"3"}]`, func(p *corev1.Pod) bool { return p.Labels["b"] == "3" }},
		// By name, not by place: the other container stays as it is.
		{types.StrategicMergePatchType, `{"spec":{"containers":[{"name":"other","image":"x:2"}]}}`, func(p *corev1.Pod) bool {
			return len(p.Spec.Containers) == 2 && p.Spec.Containers[0].Image == "busybox" && p.Spec.Containers[1].Image == "x:2"
		}},
		{types.ApplyPatchType, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"applied":"yes"}}}`, func(p *corev1.Pod) bool {
			return p.Labels["applied"] == "yes" && p.Labels["b"] == "3"
		}},
	} {
		options := metav1.PatchOptions{}
		if c.kind == types.ApplyPatchType {
			options.FieldManager = "applier"
		}
		got, err := pods.Patch(ctx, "p", c.kind, []byte(c.patch), options)
		if err != nil || !c.check(got) {
			t.Errorf("%s %s: %v, %+v", c.kind, c.patch, err, got)
		}
	}
	if got := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t); got.Generation != 2 {
		t.Errorf("generation %d after one change of the spec", got.Generation)
	}
	_, err := pods.Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":7}}}`), metav1.PatchOptions{})
	if !apierrors.IsBadRequest(err) && !apierrors.IsInvalid(err) {
		t.Errorf("a patch of the wrong type: %v", err)
	}
}

func TestServerSideApply(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	maps := shared.client.CoreV1().ConfigMaps(ns)
	want := corev1apply.ConfigMap("shared", ns).WithData(map[string]string{"ours": "1"})
	must(maps.Apply(ctx, want, metav1.ApplyOptions{FieldManager: "one"}))(t)
	theirs := corev1apply.ConfigMap("shared", ns).WithData(map[string]string{"ours": "2"})
	_, err := maps.Apply(ctx, theirs, metav1.ApplyOptions{FieldManager: "two"})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), ".data.ours") {
		t.Errorf("apply of another's field: %v", err)
	}
	must(maps.Apply(ctx, theirs, metav1.ApplyOptions{FieldManager: "two", Force: true}))(t)
	// What a manager no longer applies, and nobody else owns, goes.
	got := must(maps.Apply(ctx, corev1apply.ConfigMap("shared", ns).WithData(map[string]string{"other": "3"}), metav1.ApplyOptions{FieldManager: "two"}))(t)
	if len(got.Data) != 1 || got.Data["other"] != "3" {
		t.Errorf("data %v", got.Data)
	}

	// A list by keys, and a status that the main resource cannot take.
	p := must(shared.client.CoreV1().Pods(ns).Create(ctx, pod("p"), metav1.CreateOptions{}))(t)
	apply := corev1apply.Pod("p", ns).
		WithSpec(corev1apply.PodSpec().WithContainers(corev1apply.Container().WithName("main").WithImage("busybox:2"))).
		WithStatus(corev1apply.PodStatus().WithPhase(corev1.PodRunning))
	after := must(shared.client.CoreV1().Pods(ns).Apply(ctx, apply, metav1.ApplyOptions{FieldManager: "x", Force: true}))(t)
	if after.Spec.Containers[0].Image != "busybox:2" || after.Spec.Containers[0].Command[0] != p.Spec.Containers[0].Command[0] {
		t.Errorf("containers %+v", after.Spec.Containers)
	}
	if after.Status.Phase != corev1.PodPending {
		t.Errorf("phase %s", after.Status.Phase)
	}
	for _, m := range after.ManagedFields {
		if m.Manager == "x" && strings.Contains(m.FieldsV1.GetRawString(), "f:status") {
			t.Errorf("the applier owns a status it cannot write: %s", m.FieldsV1.GetRawString())
		}
	}
}

func TestStrictFields(t *testing.T) {
	ns := namespace(t)
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"typo"},"dtaa":{"a":"b"}}`
	post := func(mode string) *rest.Request {
		return shared.client.CoreV1().RESTClient().Post().Namespace(ns).Resource("configmaps").
			Param("fieldValidation", mode).SetHeader("Content-Type", "application/json").Body([]byte(body))
	}
	err := post("Strict").Do(t.Context()).Error()
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "dtaa"`) {
		t.Errorf("strict: %v", err)
	}
	result := post("Warn").Do(t.Context())
	if result.Error() != nil || len(result.Warnings()) != 1 {
		t.Errorf("warn: %v, %v", result.Error(), result.Warnings())
	}
}

func TestWatch(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ns := namespace(t)
	maps := shared.client.CoreV1().ConfigMaps(ns)
	list := must(maps.List(ctx, metav1.ListOptions{}))(t)
	w := must(maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	defer w.Stop()
	m := must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "w"}}, metav1.CreateOptions{}))(t)
	m.Data = map[string]string{"a": "b"}
	must(maps.Update(ctx, m, metav1.UpdateOptions{}))(t)
	if err := maps.Delete(ctx, "w", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		event, ok := <-w.ResultChan()
		if !ok || event.Type != want {
			t.Fatalf("%v, want %s", event, want)
		}
		if got := event.Object.(*corev1.ConfigMap); got.Name != "w" || got.Namespace != ns {
			t.Errorf("%s of %s/%s", event.Type, got.Namespace, got.Name)
		}
	}
}

// TestWatchList asks for the initial state as events, as informers do first.
func TestWatchList(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ns := namespace(t)
	maps := shared.client.CoreV1().ConfigMaps(ns)
	must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "here"}}, metav1.CreateOptions{}))(t)
	yes := true
	w := must(maps.Watch(ctx, metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}))(t)
	defer w.Stop()
	seen := 0
	for event := range w.ResultChan() {
		m := event.Object.(*corev1.ConfigMap)
		if event.Type == watch.Bookmark {
			if m.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
				t.Errorf("bookmark %+v", m.ObjectMeta)
			}
			break
		}
		seen++
	}
	if seen != 1 {
		t.Errorf("%d objects before the bookmark", seen)
	}
}

// TestManyReaders reads one object through every path at once: all of them get it
// from one cache, and must not step on each other's copy.
func TestManyReaders(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	p := must(pods.Create(ctx, pod("p"), metav1.CreateOptions{}))(t)
	must(pods.Get(ctx, "p", metav1.GetOptions{ResourceVersion: p.ResourceVersion}))(t) // the cache has it now
	raw := rest.CopyConfig(shared.config)
	client := must(kubernetes.NewForConfig(raw))(t).CoreV1().RESTClient()
	t.Run("group", func(t *testing.T) {
		for i := range 8 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for range 20 {
					path := "pods/p"
					if i%2 == 0 {
						path = "pods"
					}
					req := client.Get().AbsPath("/api/v1/namespaces", ns, path).Param("resourceVersion", "0")
					if i%4 > 1 {
						req = req.SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
					} else {
						req = req.SetHeader("Accept", "application/json")
					}
					body, err := req.DoRaw(ctx)
					if err != nil {
						t.Fatal(err)
					}
					var kind metav1.TypeMeta
					if err := json.Unmarshal(body, &kind); err != nil || kind.Kind == "" || kind.APIVersion == "" {
						t.Fatalf("kind %+v, %v in %.80s", kind, err, body)
					}
				}
			})
		}
	})
}

func TestFormats(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	must(shared.client.CoreV1().Pods(ns).Create(ctx, pod("p"), metav1.CreateOptions{}))(t)
	proto := rest.CopyConfig(shared.config)
	proto.ContentType, proto.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
	client := must(kubernetes.NewForConfig(proto))(t)
	if p := must(client.CoreV1().Pods(ns).Get(ctx, "p", metav1.GetOptions{}))(t); p.Spec.Containers[0].Image != "busybox" {
		t.Errorf("protobuf gave %+v", p.Spec)
	}
	p := pod("q")
	if p = must(client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}))(t); p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Errorf("no defaults: %+v", p.Spec)
	}
	for accept, want := range map[string]string{
		"application/yaml": "kind: Pod",
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io": `"kind":"PartialObjectMetadata"`,
		"application/json;as=Table;v=v1;g=meta.k8s.io":                 `"name":"Restarts"`,
	} {
		body, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces", ns, "pods/p").SetHeader("Accept", accept).DoRaw(ctx)
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %v, %.200s", accept, err, body)
		}
	}
}

// TestStoredObjects: what authenticators and authorizers read is in the store, and up to date.
func TestStoredObjects(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	secrets := shared.client.CoreV1().Secrets(ns)
	made := must(secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token"}}, metav1.CreateOptions{}))(t)
	if got, err := shared.stored.Secret(ctx, ns, "token"); err != nil || got.UID != made.UID {
		t.Errorf("%v, %v, want the Secret that was made", got, err)
	}
	if _, err := shared.stored.Secret(ctx, "default", "token"); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "secrets") {
		t.Errorf("in another namespace: %v, want that there is no such secret", err)
	}
	if err := secrets.Delete(ctx, "token", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.stored.Secret(ctx, ns, "token"); !apierrors.IsNotFound(err) {
		t.Errorf("after it was deleted: %v", err)
	}
	if _, err := shared.stored.CertificateSigningRequest(ctx, "none"); !apierrors.IsNotFound(err) {
		t.Errorf("a request that nobody made: %v", err)
	}
}
