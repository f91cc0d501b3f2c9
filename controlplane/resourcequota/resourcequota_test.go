package resourcequota

// Tests of what is counted and when, in fake time.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apitest"
	"github.com/hawser-project/hawser/controlplane/loop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disco knows a few kinds, unless broken. Once moved, those of example.com are in v2 only.
type disco struct {
	fakediscovery.FakeDiscovery
	broken, moved, partial atomic.Bool
}

func (d *disco) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	if d.broken.Load() {
		return nil, nil, errors.New("out of order")
	}
	var err error
	if d.partial.Load() {
		err = &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "other.example.com", Version: "v1"}: errors.New("out of order")}}
	}
	version := "v1"
	if d.moved.Load() {
		version = "v2"
	}
	all := metav1.Verbs{"get", "list", "watch", "delete"}
	return nil, []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "configmaps", Namespaced: true, Verbs: all}, {Name: "nodes", Verbs: all}}},
		{GroupVersion: "example.com/" + version, APIResources: []metav1.APIResource{
			{Name: "things", Namespaced: true, Verbs: all}, {Name: "mutes", Namespaced: true, Verbs: metav1.Verbs{"get"}},
		}},
	}, err
}

type client struct {
	*fake.Clientset
	disco *disco
}

func (c client) Discovery() discovery.DiscoveryInterfaces { return c.disco }

// A world is a controller and what it works on.
type world struct {
	*testing.T
	client client
	server *apitest.Server
	meta   *metadatafake.FakeMetadataClient
	counts *apitest.Server // of the kinds that are only counted
	stop   func() error
	writes atomic.Int64 // of status
}

var things = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}

// bubble runs f beside a controller in fake time.
func bubble(t *testing.T, f func(w *world), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		typed, server, err := apitest.New(objs...)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{T: t, client: client{typed, &disco{}}, server: server, meta: metadatafake.NewSimpleMetadataClient(scheme)}
		w.counts = &apitest.Server{ObjectTracker: w.meta.Tracker()}
		w.meta.ReactionChain, w.meta.WatchReactionChain = nil, nil
		w.counts.Serve(&w.meta.Fake)
		typed.PrependReactor("update", "resourcequotas", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() == "status" {
				w.writes.Add(1)
			}
			return false, nil, nil
		})
		_, w.stop = apitest.Start(t, w.client, func(f informers.SharedInformerFactory) (*Controller, error) {
			return New(loop.Deps{Client: w.client, Objects: w.meta, Informers: f}, Config{})
		})
		f(w)
		if err := w.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *world) expect(want string) {
	w.Helper()
	w.pass(time.Second)
	q, err := w.client.CoreV1().ResourceQuotas("ns").Get(w.Context(), "q", metav1.GetOptions{})
	w.must(err)
	var got []string
	for _, name := range slices.Sorted(maps.Keys(q.Status.Used)) {
		used := q.Status.Used[name]
		got = append(got, fmt.Sprintf("%s=%s", name, used.String()))
	}
	if s := strings.Join(got, ","); s != want {
		w.Errorf("used are %s, want %s", s, want)
	}
}

func (w *world) thing(name string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	o.SetGroupVersionKind(things.GroupVersion().WithKind("Thing"))
	return o
}

func amounts(s string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for part := range strings.SplitSeq(s, ",") {
		if name, amount, ok := strings.Cut(part, "="); ok {
			out[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
	}
	return out
}

func quotaOf(hard string, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts(hard), Scopes: scopes}}
}

func podOf(ns, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: amounts("cpu=1")}}},
	}}
}

func service(kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}}}
}

// TestCounts: everything is counted that a quota names, in its namespace.
func TestCounts(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	claim.Spec.Resources.Requests = amounts("storage=1Gi")
	q := quotaOf("pods=9,cpu=9,services.nodeports=9,requests.storage=9Gi,count/things.example.com=9,count/mutes.example.com=9,count/nodes=9")
	bubble(t, func(w *world) {
		w.must(w.counts.Create(things, w.thing("a"), "ns"))
		w.expect("count/things.example.com=1,cpu=2,pods=2,requests.storage=1Gi,services.nodeports=1")
		got, err := w.client.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
		w.must(err)
		if len(got.Status.Hard) != len(got.Spec.Hard) {
			t.Errorf("held to are %v", got.Status.Hard)
		}
		// It settles: nothing is written again and again.
		writes := w.writes.Load()
		w.pass(time.Hour)
		if now := w.writes.Load(); writes == 0 || now != writes {
			t.Errorf("the status was written %d times, and %d later", writes, now-writes)
		}
	}, q, podOf("ns", "a"), podOf("ns", "b"), podOf("other", "c"), service(corev1.ServiceTypeNodePort), claim)
}

// TestGivesBack: what makes room is noticed at once.
func TestGivesBack(t *testing.T) {
	for _, tt := range []struct {
		name, before, after string
		do                  func(w *world)
	}{
		{"deleted", "count/pods=1,cpu=1,pods=1", "count/pods=0,cpu=0,pods=0", func(w *world) {
			w.must(w.client.CoreV1().Pods("ns").Delete(w.Context(), "p", metav1.DeleteOptions{}))
		}},
		{"ended", "count/pods=1,cpu=1,pods=1", "count/pods=1,cpu=0,pods=0", func(w *world) {
			p := podOf("ns", "p")
			p.UID, p.Status.Phase = "p", corev1.PodFailed
			_, err := w.client.CoreV1().Pods("ns").UpdateStatus(w.Context(), p, metav1.UpdateOptions{})
			w.must(err)
		}},
		{"service", "services=1,services.nodeports=1", "services=1,services.nodeports=0", func(w *world) {
			s := service(corev1.ServiceTypeClusterIP)
			s.UID = "s"
			_, err := w.client.CoreV1().Services("ns").Update(w.Context(), s, metav1.UpdateOptions{})
			w.must(err)
		}},
		{"other kind", "count/things.example.com=1", "count/things.example.com=0", func(w *world) {
			w.must(w.counts.Delete(things, "ns", "a"))
		}},
		{"hard", "count/pods=1,cpu=1,pods=1", "cpu=1", func(w *world) {
			q, err := w.client.CoreV1().ResourceQuotas("ns").Get(w.Context(), "q", metav1.GetOptions{})
			w.must(err)
			q.Spec.Hard = amounts("cpu=1")
			_, err = w.client.CoreV1().ResourceQuotas("ns").Update(w.Context(), q, metav1.UpdateOptions{})
			w.must(err)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, s := podOf("ns", "p"), service(corev1.ServiceTypeNodePort)
			p.UID, s.UID = "p", "s"
			hard := strings.ReplaceAll(tt.before, "=1", "=9")
			bubble(t, func(w *world) {
				w.must(w.counts.Create(things, w.thing("a"), "ns"))
				w.expect(tt.before)
				tt.do(w)
				w.expect(tt.after)
			}, quotaOf(hard), p, s)
		})
	}
}

// A pod that gets a deadline leaves the quota of those without.
func TestScopeChanges(t *testing.T) {
	p := podOf("ns", "p")
	p.UID = "p"
	bubble(t, func(w *world) {
		w.expect("pods=1")
		p = p.DeepCopy()
		p.ResourceVersion, p.Spec.ActiveDeadlineSeconds = "", ptr.To[int64](1)
		_, err := w.client.CoreV1().Pods("ns").Update(w.Context(), p, metav1.UpdateOptions{})
		w.must(err)
		w.expect("pods=0")
	}, quotaOf("pods=1", corev1.ResourceQuotaScopeNotTerminating), p)
}

// TestNewObjects: the API server has charged those, and the status is left alone; what it
// has charged for nothing comes back with the next count of all.
func TestNewObjects(t *testing.T) {
	bubble(t, func(w *world) {
		w.expect("pods=0")
		w.pass(time.Minute)
		writes := w.writes.Load()
		charge := func(used string) {
			q, err := w.client.CoreV1().ResourceQuotas("ns").Get(w.Context(), "q", metav1.GetOptions{})
			w.must(err)
			q.Status.Used = amounts(used)
			_, err = w.client.CoreV1().ResourceQuotas("ns").UpdateStatus(w.Context(), q, metav1.UpdateOptions{})
			w.must(err)
		}
		charge("pods=2")
		_, err := w.client.CoreV1().Pods("ns").Create(w.Context(), podOf("ns", "a"), metav1.CreateOptions{})
		w.must(err)
		w.pass(time.Minute)
		if got := w.writes.Load(); got != writes+1 {
			t.Errorf("written %d times", got-writes)
		}
		w.expect("pods=2")
		w.pass(DefaultPeriod)
		w.expect("pods=1")
	}, quotaOf("pods=2"))
}

// TestCountedTooEarly: a pod that was charged and is not stored yet when the quota is
// counted is found missing soon.
func TestCountedTooEarly(t *testing.T) {
	bubble(t, func(w *world) {
		w.expect("pods=1")
		w.pass(time.Minute)
		q, err := w.client.CoreV1().ResourceQuotas("ns").Get(w.Context(), "q", metav1.GetOptions{})
		w.must(err)
		q.Status.Used = amounts("pods=2")
		_, err = w.client.CoreV1().ResourceQuotas("ns").UpdateStatus(w.Context(), q, metav1.UpdateOptions{})
		w.must(err)
		w.must(w.client.CoreV1().Pods("ns").Delete(w.Context(), "a", metav1.DeleteOptions{}))
		w.expect("pods=0")
		_, err = w.client.CoreV1().Pods("ns").Create(w.Context(), podOf("ns", "b"), metav1.CreateOptions{})
		w.must(err)
		w.pass(DefaultRecheck)
		w.expect("pods=1")
	}, quotaOf("pods=2"), podOf("ns", "a"))
}

// TestWatchedWhileNamed: kinds that are only counted are watched for a quota's sake, and
// no longer.
func TestWatchedWhileNamed(t *testing.T) {
	bubble(t, func(w *world) {
		lists := func() (n int) {
			for _, a := range w.meta.Actions() {
				if a.GetVerb() == "list" {
					n++
				}
			}
			return n
		}
		w.pass(time.Hour)
		if n := lists(); n != 0 {
			t.Errorf("%d lists without a quota", n)
		}
		quotas := w.client.CoreV1().ResourceQuotas("ns")
		for i := range 2 {
			_, err := quotas.Create(w.Context(), quotaOf("count/things.example.com=1,configmaps=1"), metav1.CreateOptions{})
			w.must(err)
			w.expect("configmaps=0,count/things.example.com=0")
			if n := lists(); n != 2*(i+1) {
				t.Errorf("%d lists for two kinds, time %d", n, i)
			}
			w.must(quotas.Delete(w.Context(), "q", metav1.DeleteOptions{}))
			w.pass(2 * DefaultPeriod)
		}
	})
}

// TestDiscoveryFails: what is not known yet is counted later, all else at once.
func TestDiscoveryFails(t *testing.T) {
	bubble(t, func(w *world) {
		w.client.disco.broken.Store(true)
		_, err := w.client.CoreV1().ResourceQuotas("ns").Create(w.Context(), quotaOf("pods=1,count/things.example.com=1"), metav1.CreateOptions{})
		w.must(err)
		w.expect("pods=1")
		w.client.disco.broken.Store(false)
		w.expect("pods=1")
		w.pass(2 * DefaultRefresh)
		w.expect("count/things.example.com=0,pods=1")
	}, podOf("ns", "a"))
}

// TestVersionChanges: a kind is counted in the version that is served now. What is told while a
// part of the API cannot be asked changes nothing.
func TestVersionChanges(t *testing.T) {
	bubble(t, func(w *world) {
		w.must(w.counts.Create(things, w.thing("a"), "ns"))
		w.expect("count/things.example.com=1")
		w.meta.PrependReactor("list", "things", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if w.client.disco.moved.Load() && a.GetResource().Version == "v1" {
				return true, nil, apierrors.NewNotFound(things.GroupResource(), "")
			}
			return false, nil, nil
		})
		w.client.disco.partial.Store(true)
		w.client.disco.moved.Store(true)
		now := things
		now.Version = "v2"
		for _, name := range []string{"a", "b"} {
			w.must(w.counts.Create(now, w.thing(name), "ns"))
		}
		w.pass(2 * DefaultPeriod)
		w.expect("count/things.example.com=1")
		w.client.disco.partial.Store(false)
		w.pass(2 * DefaultPeriod)
		w.expect("count/things.example.com=2")
	}, quotaOf("count/things.example.com=9"))
}

// TestConflict: who else wrote the status has won, and the objects are counted again.
func TestConflict(t *testing.T) {
	bubble(t, func(w *world) {
		w.expect("pods=1")
		var failed atomic.Bool
		w.client.PrependReactor("update", "resourcequotas", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failed.CompareAndSwap(false, true) {
				return true, nil, apierrors.NewConflict(corev1.Resource("resourcequotas"), "q", errors.New("changed"))
			}
			return false, nil, nil
		})
		w.must(w.client.CoreV1().Pods("ns").Delete(w.Context(), "a", metav1.DeleteOptions{}))
		w.expect("pods=0")
		if !failed.Load() {
			t.Error("nothing was written")
		}
	}, quotaOf("pods=2"), podOf("ns", "a"))
}
