// What nodes and pods use, which is not stored.

package kinds

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// UsageTable returns the convertor of what nodes or pods use, which is not stored: gr says which.
func UsageTable(gr schema.GroupResource) rest.TableConvertor {
	cols := columns{
		nameColumn(), text("cpu", "Processors in use."), text("memory", "The memory working set."),
		text("Window", "The time over which the use of processors was measured."),
	}
	cells := func(name string, use corev1.ResourceList, window metav1.Duration) []any {
		return []any{name, use.Cpu().String(), use.Memory().String(), window.Duration.String()}
	}
	if gr == metricsv1beta1.Resource("nodes") {
		return newTable(gr, cols, func(o *metricsv1beta1.NodeMetrics, _ time.Time) []any {
			return cells(o.Name, o.Usage, o.Window)
		})
	}
	return newTable(gr, cols, func(o *metricsv1beta1.PodMetrics, _ time.Time) []any {
		sum := corev1.ResourceList{}
		for i := range o.Containers {
			for name, q := range o.Containers[i].Usage {
				have := sum[name]
				have.Add(q)
				sum[name] = have
			}
		}
		return cells(o.Name, sum, o.Window)
	})
}
