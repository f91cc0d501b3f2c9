// Package downward answers what a pod may ask about itself: the fields of its
// metadata, spec and status, and the resources of its containers. It is the
// part that environment variables and downwardAPI volumes have in common.
//
// Everything here is a pure function of the pod, the node and the addresses
// given. It is the Kubernetes "downward API", with the same paths and formats.
package downward

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Facts are what a pod cannot know from its own object.
type Facts struct {
	NodeName string
	PodIPs   []string // primary first
	HostIPs  []string // primary first
	// Allocatable of the node stands in for limits that neither a container nor its pod has.
	Allocatable corev1.ResourceList
	// Memory of the node in bytes, for what is reckoned from it.
	Memory int64
}

// Field returns the value at path, such as metadata.name or
// metadata.labels['app']. A label or annotation that does not exist is the empty
// string, as in Kubernetes; a path that names no field is an error.
func Field(pod *corev1.Pod, f Facts, path string) (string, error) {
	if field, key, ok := subscript(path); ok {
		switch field {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("unsupported field path %q", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return quoted(pod.Labels), nil
	case "metadata.annotations":
		return quoted(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(f.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(f.HostIPs, ","), nil
	case "status.podIP":
		return first(f.PodIPs), nil
	case "status.podIPs":
		return strings.Join(f.PodIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported field path %q", path)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// subscript splits metadata.labels['key'] into its field and key.
func subscript(path string) (field, key string, ok bool) {
	field, rest, ok := strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return field, key, ok
}

// quoted formats a map as downwardAPI volumes show it: one key="value" a line,
// sorted by key.
func quoted(m map[string]string) string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(k + "=" + strconv.Quote(m[k]))
	}
	return b.String()
}

// Resource returns a request or limit of a container of the pod, rounded up to a
// multiple of the selector's divisor and divided by it. Limits a container does
// not have are the pod's, and otherwise the node's allocatable; of huge pages it has none then.
func Resource(pod *corev1.Pod, f Facts, container string, sel *corev1.ResourceFieldSelector) (string, error) {
	if sel.ContainerName != "" {
		container = sel.ContainerName
	}
	c := find(pod, container)
	if c == nil {
		return "", fmt.Errorf("container %q not found in pod %q", container, pod.Name)
	}
	kind, name, ok := strings.Cut(sel.Resource, ".")
	list := c.Resources.Limits
	switch {
	case !ok || kind != "limits" && kind != "requests":
		return "", fmt.Errorf("unsupported container resource %q", sel.Resource)
	case kind == "requests":
		list = c.Resources.Requests
	}
	res := corev1.ResourceName(name)
	switch {
	case res == corev1.ResourceCPU, res == corev1.ResourceMemory, res == corev1.ResourceEphemeralStorage:
	case strings.HasPrefix(name, corev1.ResourceHugePagesPrefix):
	default:
		return "", fmt.Errorf("unsupported container resource %q", sel.Resource)
	}
	q, ok := list[res]
	if (!ok || q.IsZero()) && kind == "limits" {
		q = f.limit(pod, res)
	}
	return divide(q, sel.Divisor, res == corev1.ResourceCPU), nil
}

// limit is that of a container without one of its own, as the kubelet has it: huge pages have none.
func (f Facts) limit(pod *corev1.Pod, res corev1.ResourceName) resource.Quantity {
	switch res {
	case corev1.ResourceCPU, corev1.ResourceMemory:
		if q := podLimit(pod, res); !q.IsZero() {
			return q
		}
		return f.Allocatable[res]
	case corev1.ResourceEphemeralStorage:
		return f.Allocatable[res]
	}
	return resource.Quantity{}
}

// divide works in thousandths for CPU and in units for all else, as those are the
// finest that Kubernetes shows.
func divide(q, divisor resource.Quantity, milli bool) string {
	n, d := q.Value(), divisor.Value()
	if milli {
		n, d = q.MilliValue(), divisor.MilliValue()
	}
	if divisor.IsZero() {
		d = 1
		if milli {
			d = 1000
		}
	}
	return strconv.FormatInt(int64(math.Ceil(float64(n)/float64(d))), 10)
}

func find(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
