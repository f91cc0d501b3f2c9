package controlplane

// What a node tries on a real API server beside what it is for: with its own
// certificate, by the verbs that it has.

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// claimsNothing has m write what moves others, in every way, and one that is
// another node's pod.
func claimsNothing(t *testing.T, c *cluster, m *machine, others *corev1.Pod) {
	for patch, field := range map[string]string{
		`{"metadata":{"finalizers":["example.com/never"]}}`:                                         "metadata.finalizers",
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"y"}]}}`: "metadata.ownerReferences",
		`{"metadata":{"annotations":{"node.hawser.dev/autonomy-duration":"2000000h"}}}`:             "metadata.annotations",
		`{"metadata":{"annotations":{"site.hawser.dev/autonomy-duration":"2000000h"}}}`:             "metadata.annotations",
		`{"metadata":{"labels":{"node-restriction.kubernetes.io/site":"x"}}}`:                       "metadata.labels",
		`{"metadata":{"labels":{"topology.kubernetes.io/zone":"x"}}}`:                               "metadata.labels",
		`{"metadata":{"labels":{"failure-domain.beta.kubernetes.io/zone":"x"}}}`:                    "metadata.labels",
		`{"spec":{"taints":[]}}`:                                                            "",
		`{"spec":{"podCIDR":"0.0.0.0/0","podCIDRs":["0.0.0.0/0"]}}`:                         "spec.podCIDR",
		`{"status":{"conditions":[{"type":"hawser.dev/TunnelConnected","status":"True"}]}}`: "status.conditions",
		`{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}]}}`:            "status.addresses",
		`{"status":{"volumesAttached":[{"name":"v","devicePath":"/dev/sda"}]}}`:             "status.volumesAttached",
	} {
		for _, sub := range []string{"", "status"} {
			before, err := c.admin.CoreV1().Nodes().Get(t.Context(), m.name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = m.CoreV1().Nodes().Patch(t.Context(), m.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subs(sub)...)
			after, err2 := c.admin.CoreV1().Nodes().Get(t.Context(), m.name, metav1.GetOptions{})
			// A subresource that takes no notice of the field is as good as one that refuses it.
			refused := apierrors.IsForbidden(err) && field != "" && strings.Contains(err.Error(), field)
			if err2 != nil || !refused && !equal(t, before, after) {
				t.Errorf("%q %s: %v", sub, patch, err)
			}
		}
	}
	ctx := t.Context()
	for name, err := range map[string]error{
		"another's status": second(m.CoreV1().Pods("work").Patch(ctx, others.Name, types.StrategicMergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")),
		"its own Node":     m.CoreV1().Nodes().Delete(ctx, m.name, metav1.DeleteOptions{}),
		"an event": second(m.CoreV1().Events("work").Create(ctx, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: "forged"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "work", Name: others.Name},
			Source: corev1.EventSource{Host: m.name}, Reason: "R", Message: "m",
		}, metav1.CreateOptions{})),
		"a lease": second(m.CoordinationV1().Leases("kube-node-lease").Patch(ctx, m.name, types.MergePatchType, []byte(`{"spec":{"holderIdentity":"node-2"}}`), metav1.PatchOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	showsItself(t, m)
	cleanPaths(t, c)
}

func subs(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

func second[T any](_ T, err error) error { return err }

// equal compares nodes but for what every write changes.
func equal(t *testing.T, a, b *corev1.Node) bool {
	t.Helper()
	text := func(n *corev1.Node) string {
		n = n.DeepCopy()
		n.ManagedFields, n.ResourceVersion = nil, ""
		out, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	return text(a) == text(b)
}

// showsItself: a mirror pod is shown, and is nobody's backend.
func showsItself(t *testing.T, m *machine) {
	ctx := t.Context()
	n, err := m.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	backend := mirrorPod(n, "static")
	backend.Labels = map[string]string{"k8s-app": "kube-dns"}
	if _, err := m.CoreV1().Pods("kube-system").Create(ctx, backend, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a backend of another's service: %v", err)
	}
	if _, err := m.CoreV1().Pods("kube-system").Create(ctx, mirrorPod(n, "static"), metav1.CreateOptions{}); err != nil {
		t.Errorf("a mirror pod: %v", err)
	}
}

// mirrorPod is a static pod as its node shows it.
func mirrorPod(n *corev1.Node, name string) *corev1.Pod {
	own := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-" + n.Name, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID, Controller: &own}},
		},
		Spec: corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
}

// TestMirrorPodsHoldNobody: what a node shows in a namespace takes nothing of its quotas,
// even if those demand that pods say what they take, and does not keep it from being
// deleted. Nobody else has a pod that counts for nothing.
func TestMirrorPodsHoldNobody(t *testing.T) {
	c := workload{startCluster(t)}
	ctx, m := t.Context(), c.join(c.token("aaaaaa", time.Hour), "node-1")
	n, err := m.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	alice := c.someone()
	if _, err = c.admin.CoreV1().ResourceQuotas("a").Create(ctx, quotaOf("q", map[corev1.ResourceName]string{"pods": "1", "count/pods": "1", "requests.cpu": "1"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func() string {
		return strings.Join([]string{c.used("a", "q", "pods"), c.used("a", "q", "count/pods"), c.used("a", "q", "requests.cpu")}, " ")
	}
	c.becomes("0 0 0", used)
	for _, name := range []string{"one", "two"} {
		p := mirrorPod(n, name)
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1 << 40)
		c.becomes("", func() string { // the server may still hold the quota's status for unknown
			_, err := m.CoreV1().Pods("a").Create(ctx, p, metav1.CreateOptions{})
			return text(err)
		})
	}
	hers := func(p *corev1.Pod) error {
		p.Spec.NodeSelector = map[string]string{"no": "where"}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
		_, err := alice.CoreV1().Pods("a").Create(ctx, p, metav1.CreateOptions{})
		return err
	}
	if err = hers(mirrorPod(n, "forged")); !apierrors.IsForbidden(err) || !strings.Contains(text(err), "only node node-1 itself") {
		t.Errorf("one that only says that a node shows it: %v", err)
	}
	c.becomes("", func() string {
		return text(hers(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "hers"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}))
	})
	if err := c.admin.CoreV1().Pods("a").Delete(ctx, "two-node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.CoreV1().Pods("a").Get(ctx, "two-node-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted, and there: %v", err)
	}
	c.becomes("1 1 1", used)
	if err := c.admin.CoreV1().Namespaces().Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.becomes("NotFound", func() string {
		_, err := c.admin.CoreV1().Namespaces().Get(ctx, "a", metav1.GetOptions{})
		return string(apierrors.ReasonForError(err))
	})
}

// TestStatusTakesNoQuota: whatever a node says that its pod has, the pod's namespace is charged
// for what the pod asks for.
func TestStatusTakesNoQuota(t *testing.T) {
	c := workload{startCluster(t)}
	ctx, m := t.Context(), c.join(c.token("aaaaaa", time.Hour), "node-1")
	if _, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := c.pod("hers", "100m", m.name)
	if _, err := c.admin.CoreV1().ResourceQuotas("work").Create(ctx, quotaOf("q", map[corev1.ResourceName]string{"requests.cpu": "2"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used := func() string { return c.used("work", "q", "requests.cpu") }
	c.becomes("100m", used)
	says := func(amounts string) error {
		status := `{"status":{"containerStatuses":[{"name":"c","image":"none","imageID":"","ready":false,"restartCount":0,"allocatedResources":` + amounts + `,"resources":{"requests":` + amounts + `}}]}}`
		return second(m.CoreV1().Pods("work").Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"))
	}
	for _, amounts := range []string{`{"cpu":"-100"}`, `{"cpu":"100m","example.com/x":"1"}`} {
		if err := says(amounts); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", amounts, err)
		}
	}
	if err := says(`{"cpu":"1M"}`); err != nil {
		t.Fatal(err)
	}
	// The quota's status is counted anew before the next pod is asked for.
	c.becomes("1100m", func() string {
		q, err := c.admin.CoreV1().ResourceQuotas("work").Get(ctx, "q", metav1.GetOptions{})
		if err == nil && q.Spec.Hard.Name("requests.cpu", resource.DecimalSI).String() == "2" {
			q.Spec.Hard = corev1.ResourceList{"requests.cpu": resource.MustParse("1100m")}
			_, err = c.admin.CoreV1().ResourceQuotas("work").Update(ctx, q, metav1.UpdateOptions{})
		}
		if err != nil {
			return text(err)
		}
		return q.Status.Hard.Name("requests.cpu", resource.DecimalSI).String()
	})
	c.becomes("100m", used)
	_, err := c.admin.CoreV1().Pods("work").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "next"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Errorf("another pod: %v", err)
	}
}

// cleanPaths: a path that could be cleaned to another is answered like any other.
func cleanPaths(t *testing.T, c *cluster) {
	transport, err := rest.TransportFor(&rest.Config{Host: c.host, TLSClientConfig: rest.TLSClientConfig{CAFile: c.ca}})
	if err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context, path string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	want, _ := get(t.Context(), "/metrics")
	for _, path := range []string{
		"/x", "/healthz/../x", "//healthz", "/healthz/%2e%2e/metrics", "/healthz%2f..%2fmetrics", "/livez/", "/readyz/../api/v1/secrets", "/version/..", "/livez//etcd",
	} {
		if code, body := get(t.Context(), path); code != want || want != http.StatusForbidden {
			t.Errorf("%s: %d %.80s, want %d", path, code, body, want)
		}
	}
	if code, _ := get(t.Context(), "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
}
