package downward

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "ns", UID: "u",
			Labels: map[string]string{"b": "2", "a": "1"}, Annotations: map[string]string{"note": "two\nlines \"quoted\""},
		},
		Spec: corev1.PodSpec{NodeName: "n", ServiceAccountName: "sa", Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{"memory": resource.MustParse("100Mi"), "cpu": resource.MustParse("1500m")},
			Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")},
		}}, {Name: "bare"}}},
	}
	facts = Facts{
		NodeName: "n", PodIPs: []string{"10.0.0.1", "fd00::1"}, HostIPs: []string{"192.0.2.1"},
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi")},
	}
)

func TestField(t *testing.T) {
	for path, want := range map[string]string{
		"metadata.name":                "p",
		"metadata.namespace":           "ns",
		"metadata.uid":                 "u",
		"metadata.labels":              "a=\"1\"\nb=\"2\"",
		"metadata.labels['a']":         "1",
		"metadata.labels['none']":      "",
		"metadata.annotations":         `note="two\nlines \"quoted\""`,
		"metadata.annotations['note']": "two\nlines \"quoted\"",
		"spec.nodeName":                "n",
		"spec.serviceAccountName":      "sa",
		"status.podIP":                 "10.0.0.1",
		"status.podIPs":                "10.0.0.1,fd00::1",
		"status.hostIP":                "192.0.2.1",
		"status.hostIPs":               "192.0.2.1",
		"spec.restartPolicy":           "error",
		"metadata.finalizers['x']":     "error",
		"metadata.labels['a":           "error",
		"":                             "error",
	} {
		got, err := Field(pod, facts, path)
		if want == "error" {
			if err == nil || !strings.Contains(err.Error(), "unsupported field path") {
				t.Errorf("%s: %q, %v; want an error", path, got, err)
			}
			continue
		}
		if got != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
}

func TestResource(t *testing.T) {
	for _, tt := range []struct{ container, resource, divisor, want string }{
		{"c", "limits.cpu", "", "2"},
		{"c", "limits.cpu", "1m", "1500"},
		{"c", "requests.cpu", "", "1"},
		{"c", "requests.cpu", "1m", "250"},
		{"c", "limits.memory", "", "104857600"},
		{"c", "limits.memory", "1Mi", "100"},
		{"c", "limits.memory", "1Gi", "1"},
		{"c", "requests.memory", "", "0"},
		{"bare", "limits.cpu", "", "4"},
		{"bare", "limits.memory", "1Gi", "8"},
		{"bare", "limits.hugepages-2Mi", "", "0"},
		{"none", "limits.cpu", "", "error"},
		{"c", "limits.gpu", "", "error"},
		{"c", "usage.cpu", "", "error"},
		{"c", "cpu", "", "error"},
	} {
		sel := &corev1.ResourceFieldSelector{ContainerName: tt.container, Resource: tt.resource}
		if tt.divisor != "" {
			sel.Divisor = resource.MustParse(tt.divisor)
		}
		got, err := Resource(pod, facts, "bare", sel)
		if tt.want == "error" {
			if err == nil {
				t.Errorf("%+v: %q, want an error", tt, got)
			}
			continue
		}
		if got != tt.want || err != nil {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

// TestResourceOfPod: the limits of the pod as a whole are those of its containers without.
func TestResourceOfPod(t *testing.T) {
	limited := pod.DeepCopy()
	limited.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("3"), "memory": resource.MustParse("1Gi")}}
	for _, tt := range []struct{ container, resource, divisor, want string }{
		{"bare", "limits.cpu", "1", "3"},
		{"bare", "limits.memory", "1Mi", "1024"},
		{"bare", "limits.hugepages-2Mi", "1", "0"},
		{"bare", "limits.ephemeral-storage", "1", "7"},
		{"bare", "requests.cpu", "1", "0"},
		{"c", "limits.cpu", "1m", "1500"},
		{"c", "limits.memory", "1Mi", "100"},
	} {
		sel := &corev1.ResourceFieldSelector{ContainerName: tt.container, Resource: tt.resource, Divisor: resource.MustParse(tt.divisor)}
		f := facts
		f.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "ephemeral-storage": resource.MustParse("7")}
		if got, err := Resource(limited, f, "", sel); got != tt.want || err != nil {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}
