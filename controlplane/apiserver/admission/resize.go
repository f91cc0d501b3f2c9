// Resizes that a pod's node cannot do.

package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Reasons that clients are told, as by Kubernetes.
const (
	causeNodeCapacity        metav1.CauseType = "NodeCapacity"
	causeUnsupportedPlatform metav1.CauseType = "UnsupportedPlatform"
)

// PodResizeValidator refuses a resize after which a pod requests more CPU or memory than is
// allocatable on its node, one of a pod whose node does not run Linux, and one that needs a feature
// that the node does not declare, as Kubernetes' NodeDeclaredFeatureValidator does.
//
// Node returns a node; it is asked for each such request, and may answer from memory.
func PodResizeValidator(node func(ctx context.Context, name string) (*corev1.Node, error)) admission.Interface {
	return &podResize{Handler: admission.NewHandler(admission.Update), node: node}
}

// declaredSince is the version of Kubernetes whose features are asked for.
var declaredSince = version.MajorMinor(1, 37)

type podResize struct {
	*admission.Handler
	node func(ctx context.Context, name string) (*corev1.Node, error)
}

// Validate implements admission.ValidationInterface.
func (r *podResize) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != corev1.Resource("pods") || a.GetSubresource() != "resize" {
		return nil
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	old, ok2 := a.GetOldObject().(*corev1.Pod)
	if !ok || !ok2 {
		return apierrors.NewBadRequest(fmt.Sprintf("not a Pod: %T", a.GetObject()))
	}
	if pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	node, err := r.node(ctx, pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return admission.NewForbidden(a, fmt.Errorf("node %q not found", pod.Spec.NodeName))
	}
	if err != nil {
		return fault("node "+pod.Spec.NodeName, err)
	}
	if lacks, err := undeclared(pod, old, node); err != nil || lacks != "" {
		return admission.NewForbidden(a, cmp.Or(err, fmt.Errorf("pod update requires features %s which are not available on node %q", lacks, node.Name)))
	}
	if os, ok := node.Labels[corev1.LabelOSStable]; ok && os != "linux" {
		return resizeForbidden(a, causeUnsupportedPlatform, fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, os))
	}
	if lacks := lacking(pod, node.Status.Allocatable); lacks != "" {
		return resizeForbidden(a, causeNodeCapacity, errors.New("node didn't have enough allocatable resources: "+lacks))
	}
	return nil
}

// undeclared names the features that the change needs and node does not declare; empty for none.
func undeclared(pod, old *corev1.Pod, node *corev1.Node) (string, error) {
	features := nodedeclaredfeatures.DefaultFramework
	needs, err := features.InferForPodUpdate(
		&nodedeclaredfeatures.PodInfo{Spec: &old.Spec, Status: &old.Status}, &nodedeclaredfeatures.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, declaredSince)
	if err != nil {
		return "", fmt.Errorf("failed to infer pod capability requirements: %w", err)
	}
	match, err := features.MatchNode(needs, node)
	if err != nil {
		return "", fmt.Errorf("failed to match pod requirements against node %q: %w", node.Name, err)
	}
	return strings.Join(match.UnsatisfiedRequirements, ", "), nil
}

// lacking says of what pod requests more than allocatable; empty for nothing.
func lacking(pod *corev1.Pod, allocatable corev1.ResourceList) string {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var lacks []string
	if want, have := requests.Cpu(), allocatable.Cpu(); want.Cmp(*have) > 0 {
		lacks = append(lacks, fmt.Sprintf("cpu, requested: %d, allocatable: %d", want.MilliValue(), have.MilliValue()))
	}
	if want, have := requests.Memory(), allocatable.Memory(); want.Cmp(*have) > 0 {
		lacks = append(lacks, fmt.Sprintf("memory, requested: %d, allocatable: %d", want.Value(), have.Value()))
	}
	return strings.Join(lacks, "; ")
}

func resizeForbidden(a admission.Attributes, cause metav1.CauseType, err error) error {
	err = admission.NewForbidden(a, err)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}
