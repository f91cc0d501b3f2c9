// Resource quotas as the API server holds to them. No controller counts here: the tests
// write the status.

package apiserver_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

// amounts reads NAME=AMOUNT,…
func amounts(s string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for part := range strings.SplitSeq(s, ",") {
		if name, amount, ok := strings.Cut(part, "="); ok {
			out[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
	}
	return out
}

// makeQuota makes a quota of which nothing is used, and waits until the server goes by it.
func makeQuota(t *testing.T, client kubernetes.Interface, ns, name, hard string, change ...func(*corev1.ResourceQuotaSpec)) {
	t.Helper()
	const probe = "count/configmaps"
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: amounts(hard)}}
	for _, c := range change {
		c(&q.Spec)
	}
	if len(change) == 0 {
		q.Spec.Hard[probe] = resource.MustParse("0")
	}
	q = must(client.CoreV1().ResourceQuotas(ns).Create(t.Context(), q, metav1.CreateOptions{}))(t)
	q.Status.Hard, q.Status.Used = q.Spec.Hard, corev1.ResourceList{}
	for r := range q.Spec.Hard {
		q.Status.Used[r] = resource.Quantity{}
	}
	must(client.CoreV1().ResourceQuotas(ns).UpdateStatus(t.Context(), q, metav1.UpdateOptions{}))(t)
	until(t, "config maps are refused by quota "+name, func() bool {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		_, err := client.CoreV1().ConfigMaps(ns).Create(t.Context(), m, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return len(change) > 0 || apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota: "+name)
	})
}

// expectUsed compares what is charged to a quota.
func expectUsed(t *testing.T, client kubernetes.Interface, ns, name, want string) {
	t.Helper()
	q := must(client.CoreV1().ResourceQuotas(ns).Get(t.Context(), name, metav1.GetOptions{}))(t)
	for r, amount := range amounts(want) {
		if used := q.Status.Used[r]; used.Cmp(amount) != 0 {
			t.Errorf("of %s %s are used, want %s", r, used.String(), amount.String())
		}
	}
}

func expectForbidden(t *testing.T, err error, want string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// asking is a pod with requests and limits.
func asking(name, requests, limits string) *corev1.Pod {
	p := pod(name)
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}
	return p
}

func TestQuotaOfPods(t *testing.T) {
	ctx, ns, other := t.Context(), namespace(t), namespace(t)
	pods := shared.client.CoreV1().Pods(ns)
	create := func(p *corev1.Pod, dry ...string) error {
		_, err := pods.Create(ctx, p, metav1.CreateOptions{DryRun: dry})
		return err
	}
	makeQuota(t, shared.client, ns, "q", "pods=2,requests.cpu=1,limits.cpu=2,count/pods=10")
	makeQuota(t, shared.client, other, "none", "pods=0")
	expectForbidden(t, create(pod("p")), "failed quota: q: must specify limits.cpu for: main; requests.cpu for: main")
	expectForbidden(t, create(asking("p", "cpu=2", "cpu=2")), "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1")
	small := asking("p", "cpu=400m", "cpu=1")
	if err := create(small, metav1.DryRunAll); err != nil {
		t.Error(err)
	}
	expectUsed(t, shared.client, ns, "q", "pods=0,count/pods=0")
	bad := asking("p", "cpu=400m", "cpu=1")
	bad.Spec.Containers[0].Image = ""
	if err := create(bad); !apierrors.IsInvalid(err) {
		t.Error(err)
	}
	expectUsed(t, shared.client, ns, "q", "pods=0,count/pods=0")
	if err := create(small); err != nil {
		t.Fatal(err)
	}
	expectUsed(t, shared.client, ns, "q", "pods=1,count/pods=1,requests.cpu=400m,limits.cpu=1")
	expectUsed(t, shared.client, other, "none", "pods=0")
	testQuotaOfGrowth(t, ns)
	if err := create(asking("p2", "cpu=50m", "cpu=500m")); err != nil {
		t.Fatal(err)
	}
	expectForbidden(t, create(asking("p3", "cpu=1m", "cpu=1m")), "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2")
}

// testQuotaOfGrowth: of the pod p, which asks for 400m and has a limit of 1.
func testQuotaOfGrowth(t *testing.T, ns string) {
	ctx, pods := t.Context(), shared.client.CoreV1().Pods(ns)
	resize := func(requests string) error {
		p := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
		p.Spec.Containers[0].Resources.Requests = amounts(requests)
		_, err := pods.UpdateResize(ctx, "p", p, metav1.UpdateOptions{})
		return err
	}
	if err := resize("cpu=900m"); err != nil {
		t.Error(err)
	}
	expectUsed(t, shared.client, ns, "q", "pods=1,requests.cpu=900m")
	p := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts("cpu=2"), Limits: amounts("cpu=2")}
	_, err := pods.UpdateResize(ctx, "p", p, metav1.UpdateOptions{})
	expectForbidden(t, err, "exceeded quota: q, requested: requests.cpu=1100m, used: requests.cpu=900m, limited: requests.cpu=1")
	// What a pod asks for as a whole grows as well.
	p = must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu=1100m"), Limits: amounts("cpu=2")}
	_, err = pods.UpdateResize(ctx, "p", p, metav1.UpdateOptions{})
	expectForbidden(t, err, "exceeded quota: q, requested: requests.cpu=200m, used: requests.cpu=900m, limited: requests.cpu=1")
	// A guest asks for nothing, and may not.
	p = must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "guest", Image: "busybox"}}}
	p = must(pods.UpdateEphemeralContainers(ctx, "p", p, metav1.UpdateOptions{}))(t)
	if err := resize("cpu=900m"); err != nil {
		t.Errorf("resized beside a guest: %v", err)
	}
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "greedy", Image: "busybox", Resources: corev1.ResourceRequirements{Requests: amounts("cpu=9")},
	}})
	if _, err := pods.UpdateEphemeralContainers(ctx, "p", p, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a guest with requests: %v", err)
	}
	p = must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	p.Labels = map[string]string{"a": "b"}
	p = must(pods.Update(ctx, p, metav1.UpdateOptions{}))(t)
	p.Status.Phase = corev1.PodRunning
	must(pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}))(t)
	expectUsed(t, shared.client, ns, "q", "pods=1,requests.cpu=900m")
}

// A quota with scopes is of the pods in them, also of one that comes into them later.
func TestQuotaWithScopes(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	scoped := func(scope corev1.ResourceQuotaScope) func(*corev1.ResourceQuotaSpec) {
		return func(s *corev1.ResourceQuotaSpec) { s.Scopes = []corev1.ResourceQuotaScope{scope} }
	}
	makeQuota(t, shared.client, ns, "short", "pods=1", scoped(corev1.ResourceQuotaScopeTerminating))
	makeQuota(t, shared.client, ns, "idle", "pods=2", scoped(corev1.ResourceQuotaScopeBestEffort))
	makeQuota(t, shared.client, ns, "seen", "") // so that the others have been seen
	pods := shared.client.CoreV1().Pods(ns)
	for _, p := range []*corev1.Pod{asking("a", "cpu=1", ""), asking("b", "cpu=1", ""), pod("c")} {
		must(pods.Create(ctx, p, metav1.CreateOptions{}))(t)
	}
	expectUsed(t, shared.client, ns, "short", "pods=0")
	expectUsed(t, shared.client, ns, "idle", "pods=1")
	for i, name := range []string{"a", "b"} {
		p := must(pods.Get(ctx, name, metav1.GetOptions{}))(t)
		p.Spec.ActiveDeadlineSeconds = ptr.To[int64](60)
		_, err := pods.Update(ctx, p, metav1.UpdateOptions{})
		if i == 0 && err != nil {
			t.Error(err)
		}
		if i == 1 {
			expectForbidden(t, err, "exceeded quota: short, requested: pods=1, used: pods=1, limited: pods=1")
		}
	}
}

func TestQuotaOfOtherKinds(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	makeQuota(t, shared.client, ns, "q", "services=1,services.nodeports=1,secrets=1,count/serviceaccounts=0,requests.storage=1Gi,fast.storageclass.storage.k8s.io/persistentvolumeclaims=1")
	services, v1 := shared.client.CoreV1().Services(ns), shared.client.CoreV1()
	plain := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81}}}}
	s := must(services.Create(ctx, plain, metav1.CreateOptions{}))(t)
	s.Spec.Type = corev1.ServiceTypeNodePort
	_, err := services.Update(ctx, s, metav1.UpdateOptions{})
	expectForbidden(t, err, "exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=0, limited: services.nodeports=1")
	s.Spec.Ports = s.Spec.Ports[:1]
	must(services.Update(ctx, s, metav1.UpdateOptions{}))(t)
	expectUsed(t, shared.client, ns, "q", "services=1,services.nodeports=1")
	must(v1.Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}))(t)
	_, err = v1.Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
	expectForbidden(t, err, "exceeded quota: q, requested: secrets=1, used: secrets=1, limited: secrets=1")
	_, err = v1.ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.CreateOptions{})
	expectForbidden(t, err, "exceeded quota: q, requested: count/serviceaccounts=1")
	claim := func(name, size, class string) error {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage=" + size)},
		}}
		_, err := v1.PersistentVolumeClaims(ns).Create(ctx, c, metav1.CreateOptions{})
		return err
	}
	expectForbidden(t, claim("c", "2Gi", "slow"), "exceeded quota: q, requested: requests.storage=2Gi")
	if err := claim("c", "500Mi", "fast"); err != nil {
		t.Error(err)
	}
	expectForbidden(t, claim("d", "1Mi", "fast"), "requested: fast.storageclass.storage.k8s.io/persistentvolumeclaims=1")
	// Events are not counted, and questions are not stored.
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Namespace: ns}}
	must(v1.Events(ns).Create(ctx, event, metav1.CreateOptions{}))(t)
}

// What a user writes into the quota itself is not its status; and a quota whose use
// nobody has counted yet has no room.
func TestQuotaStatus(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	makeQuota(t, shared.client, ns, "q", "pods=1")
	quotas, pods := shared.client.CoreV1().ResourceQuotas(ns), shared.client.CoreV1().Pods(ns)
	must(pods.Create(ctx, pod("a"), metav1.CreateOptions{}))(t)
	q := must(quotas.Get(ctx, "q", metav1.GetOptions{}))(t)
	q.Spec.Hard["pods"], q.Status.Hard["pods"], q.Status.Used["pods"] = resource.MustParse("5"), resource.MustParse("5"), resource.Quantity{}
	must(quotas.Update(ctx, q, metav1.UpdateOptions{}))(t)
	expectUsed(t, shared.client, ns, "q", "pods=1")
	_, err := pods.Create(ctx, pod("b"), metav1.CreateOptions{})
	expectForbidden(t, err, "limited: pods=1")
	q = must(quotas.Get(ctx, "q", metav1.GetOptions{}))(t)
	q.Status.Used["pods"] = resource.MustParse("-1")
	if _, err := quotas.UpdateStatus(ctx, q, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("less than nothing is used: %v", err)
	}
	delete(q.Status.Used, "pods")
	must(quotas.UpdateStatus(ctx, q, metav1.UpdateOptions{}))(t)
	until(t, "the use is unknown", func() bool {
		_, err := pods.Create(ctx, pod("b"), metav1.CreateOptions{})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "status unknown for quota: q, resources: pods")
	})
}

// A quota of a thousand names is a quota like any other.
func TestQuotaOfManyNames(t *testing.T) {
	ctx, ns := t.Context(), namespace(t)
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("requests.example.com/r%d=1", i)
	}
	makeQuota(t, shared.client, ns, "q", strings.Join(names, ",")+",pods=3")
	p := asking("a", "example.com/r7=1", "example.com/r7=1")
	must(shared.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}))(t)
	expectUsed(t, shared.client, ns, "q", "requests.example.com/r7=1,requests.example.com/r8=0,pods=1")
	p.Name = "b"
	_, err := shared.client.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{})
	expectForbidden(t, err, "exceeded quota: q, requested: requests.example.com/r7=1")
}

// TestLastPlaces: whoever asks, on whichever server of two, there are as many pods as
// places.
func TestLastPlaces(t *testing.T) {
	dir := t.TempDir()
	ownStore(t, dir)
	var servers []*instance
	for range 2 {
		in := must(startWith(dir, func(c *apiserver.Config) {
			c.Etcd = etcd.Config{}
			c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
		}))(t)
		t.Cleanup(func() {
			if err := in.stop(); err != nil {
				t.Error(err)
			}
		})
		servers = append(servers, in)
	}
	const places, asked = 3, 16
	makeQuota(t, servers[0].client, "default", "q", fmt.Sprint("pods=", places))
	until(t, "the other server knows the quota", func() bool {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		_, err := servers[1].client.CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	})
	var wg sync.WaitGroup
	for i := range asked {
		wg.Go(func() {
			for {
				_, err := servers[i%2].client.CoreV1().Pods("default").Create(t.Context(), pod(fmt.Sprint("p", i)), metav1.CreateOptions{})
				if apierrors.IsConflict(err) { // the other server was faster, and there may be room
					continue
				}
				if err != nil {
					expectForbidden(t, err, "exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3")
				}
				return
			}
		})
	}
	wg.Wait()
	if all := must(servers[0].client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}))(t); len(all.Items) != places {
		t.Errorf("%d pods in %d places", len(all.Items), places)
	}
	expectUsed(t, servers[1].client, "default", "q", fmt.Sprint("pods=", places))
}

// TestUnreadableQuota: one that cannot be read stops its own namespace and no other.
func TestUnreadableQuota(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := ownStore(t, dir)
	must(store.Client().Put(t.Context(), "/registry/resourcequotas/default/unreadable", "k8s\x00garbage"))(t)
	in := must(startWith(dir, func(c *apiserver.Config) {
		c.Etcd = etcd.Config{}
		c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
		c.ReadyBound = time.Second
	}))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	must(in.client.CoreV1().Pods("kube-system").Create(t.Context(), pod("p"), metav1.CreateOptions{}))(t)
	if _, err := in.client.CoreV1().Pods("default").Create(t.Context(), pod("p"), metav1.CreateOptions{}); err == nil {
		t.Error("a pod was made beside a quota that cannot be read")
	}
}
