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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
	own := true
	pod := func(name string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: labels, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID, Controller: &own}},
			},
			Spec: corev1.PodSpec{NodeName: m.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
	}
	if _, err := m.CoreV1().Pods("kube-system").Create(ctx, pod("static-"+m.name, map[string]string{"k8s-app": "kube-dns"}), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a backend of another's service: %v", err)
	}
	if _, err := m.CoreV1().Pods("kube-system").Create(ctx, pod("static-"+m.name, nil), metav1.CreateOptions{}); err != nil {
		t.Errorf("a mirror pod: %v", err)
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
