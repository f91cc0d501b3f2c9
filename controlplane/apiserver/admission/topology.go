// Where pods run, as their labels.

package admission

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// PodTopologyLabels gives a pod the labels of its node that say where that is,
// topology.kubernetes.io/zone and region, so that its containers can be told
// (KEP-4742). It gets them when it is bound, by way of the Binding, or when it is
// made if that names a node. They stay as they are if the node's change. A node that
// does not exist is nobody's concern here.
//
// Node returns a node; it is asked for each such pod, and may answer from memory.
func PodTopologyLabels(node func(ctx context.Context, name string) (*corev1.Node, error)) admission.Interface {
	return &topology{Handler: admission.NewHandler(admission.Create), node: node}
}

type topology struct {
	*admission.Handler
	node func(ctx context.Context, name string) (*corev1.Node, error)
}

// Admit implements admission.MutationInterface.
func (t *topology) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") {
		return nil
	}
	switch o := a.GetObject().(type) {
	case *corev1.Pod:
		if a.GetSubresource() == "" && o.Spec.NodeName != "" {
			return t.label(ctx, o.Spec.NodeName, &o.Labels)
		}
	case *corev1.Binding:
		if a.GetSubresource() == "binding" && o.Target.Kind == "Node" {
			return t.label(ctx, o.Target.Name, &o.Labels)
		}
	}
	return nil
}

// label writes the labels of a node over those that are there.
func (t *topology) label(ctx context.Context, node string, labels *map[string]string) error {
	n, err := t.node(ctx, node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fault("topology of node "+node, err)
	}
	found := map[string]string{}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if v, ok := n.Labels[key]; ok {
			found[key] = v
		}
	}
	if *labels == nil && len(found) > 0 {
		*labels = found
		return nil
	}
	maps.Copy(*labels, found)
	return nil
}
