package usage

// The two resources.

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

// reader is what the two have to be.
type reader interface {
	rest.Storage
	rest.Scoper
	rest.KindProvider
	rest.SingularNameProvider
	rest.Getter
	rest.Lister
}

var (
	_ reader = (*nodeREST)(nil)
	_ reader = (*podREST)(nil)
)

type nodeREST struct{ *sampler }

func (*nodeREST) New() runtime.Object     { return &metricsv1beta1.NodeMetrics{} }
func (*nodeREST) NewList() runtime.Object { return &metricsv1beta1.NodeMetricsList{} }
func (*nodeREST) NamespaceScoped() bool   { return false }
func (*nodeREST) Kind() string            { return "NodeMetrics" }
func (*nodeREST) GetSingularName() string { return "" }

func (*nodeREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return kinds.UsageTable(metricsv1beta1.Resource("nodes")).ConvertToTable(ctx, obj, options)
}

// List returns the nodes that are selected and can be asked.
func (r *nodeREST) List(ctx context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	return r.list(ctx, selecting(o))
}

func (r *nodeREST) list(ctx context.Context, o *metainternalversion.ListOptions) (*metricsv1beta1.NodeMetricsList, error) {
	nodes, err := r.Nodes(ctx, o)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(nodes.Items))
	for i := range nodes.Items {
		names[i] = nodes.Items[i].Name
	}
	used := r.all(ctx, names)
	out := &metricsv1beta1.NodeMetricsList{Items: []metricsv1beta1.NodeMetrics{}}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		a := used[n.Name]
		if a == nil || a.node == nil {
			continue
		}
		out.Items = append(out.Items, metricsv1beta1.NodeMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.NewTime(a.at), Window: window(a.node.window), Usage: a.node.list(),
		})
	}
	return out, nil
}

// Get returns what a node uses, or NotFound if it cannot be asked.
func (r *nodeREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	list, err := r.list(ctx, named(name))
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("nodes"), name)
	}
	return &list.Items[0], nil
}

type podREST struct{ *sampler }

func (*podREST) New() runtime.Object     { return &metricsv1beta1.PodMetrics{} }
func (*podREST) NewList() runtime.Object { return &metricsv1beta1.PodMetricsList{} }
func (*podREST) NamespaceScoped() bool   { return true }
func (*podREST) Kind() string            { return "PodMetrics" }
func (*podREST) GetSingularName() string { return "" }

func (*podREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return kinds.UsageTable(metricsv1beta1.Resource("pods")).ConvertToTable(ctx, obj, options)
}

// List returns the pods that are selected, run, and have nodes that can be asked.
func (r *podREST) List(ctx context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	return r.list(ctx, selecting(o))
}

func (r *podREST) list(ctx context.Context, o *metainternalversion.ListOptions) (*metricsv1beta1.PodMetricsList, error) {
	pods, err := r.Pods(ctx, o)
	if err != nil {
		return nil, err
	}
	used := r.all(ctx, nodesOf(pods.Items))
	out := &metricsv1beta1.PodMetricsList{Items: []metricsv1beta1.PodMetrics{}}
	for i := range pods.Items {
		p := &pods.Items[i]
		a := used[p.Spec.NodeName]
		if !runs(p) || a == nil {
			continue
		}
		names, of, longest := a.pod(p.UID)
		if len(names) == 0 {
			continue
		}
		m := metricsv1beta1.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels, CreationTimestamp: metav1.Now()},
			Timestamp:  metav1.NewTime(a.at), Window: window(longest),
		}
		for _, name := range names {
			m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: of[name].list()})
		}
		out.Items = append(out.Items, m)
	}
	return out, nil
}

// Get returns what a pod uses, or NotFound if it does not run or its node cannot be
// asked.
func (r *podREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	list, err := r.list(ctx, named(name))
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("pods"), name)
	}
	return &list.Items[0], nil
}

// selecting is what of o counts: the whole list is made each time, so there are no
// pages and no versions.
func selecting(o *metainternalversion.ListOptions) *metainternalversion.ListOptions {
	out := &metainternalversion.ListOptions{ResourceVersion: "0"}
	if o != nil {
		out.LabelSelector, out.FieldSelector = o.LabelSelector, o.FieldSelector
	}
	return out
}

func named(name string) *metainternalversion.ListOptions {
	return &metainternalversion.ListOptions{ResourceVersion: "0", FieldSelector: fields.OneTermEqualSelector("metadata.name", name)}
}

func window(d time.Duration) metav1.Duration {
	return metav1.Duration{Duration: d.Round(time.Millisecond)}
}

// list is a as the API says it. The bounds of readings keep it far from overflow.
func (a amount) list() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(a.rate), resource.Nano), //nolint:gosec // at most maxCores
		corev1.ResourceMemory: *resource.NewQuantity(int64(a.memory), resource.BinarySI), //nolint:gosec // at most maxBytes
	}
}
