package namespace

// Conditions: what stands in the way of a namespace's end.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// findings are what one look at a namespace found.
type findings struct {
	discovery  error
	content    []error
	left       int
	kinds      map[string]int // instances left, by resource
	finalizers map[string]int // instances that wait, by finalizer
}

func (f *findings) remains(gr schema.GroupResource, o *metav1.PartialObjectMetadata) {
	if f.kinds == nil {
		f.kinds, f.finalizers = map[string]int{}, map[string]int{}
	}
	f.left++
	name := gr.Resource + "." + gr.Group
	f.kinds[name]++
	for _, fin := range o.Finalizers {
		f.finalizers[fin]++
	}
}

// conditions are all that a terminating namespace carries, with what f says.
func (f *findings) conditions() []corev1.NamespaceCondition {
	failed := errors.Join(f.content...)
	return []corev1.NamespaceCondition{
		condition(corev1.NamespaceDeletionDiscoveryFailure, f.discovery != nil,
			"DiscoveryFailed", fmt.Sprintf("Discovery failed for some groups: %v", f.discovery),
			"ResourcesDiscovered", "All resources successfully discovered"),
		condition(corev1.NamespaceDeletionGVParsingFailure, false, "", "",
			"ParsedGroupVersions", "All legacy kube types successfully parsed"),
		condition(corev1.NamespaceDeletionContentFailure, failed != nil,
			"ContentDeletionFailed", fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(f.content), failed),
			"ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		condition(corev1.NamespaceContentRemaining, f.left > 0,
			"SomeResourcesRemain", "Some resources are remaining: "+counts(f.kinds, "%s has %d resource instances"),
			"ContentRemoved", "All content successfully removed"),
		condition(corev1.NamespaceFinalizersRemaining, len(f.finalizers) > 0,
			"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+counts(f.finalizers, "%s in %d resource instances"),
			"ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
}

func condition(t corev1.NamespaceConditionType, bad bool, badReason, badMessage, reason, message string) corev1.NamespaceCondition {
	c := corev1.NamespaceCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	if bad {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, badReason, badMessage
	}
	return c
}

func counts(m map[string]int, format string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf(format, k, m[k]))
	}
	return strings.Join(out, ", ")
}

// tell writes the conditions if they have changed. A namespace that is empty at
// the first look is spared it: it will be gone in a moment.
func (c *Controller) tell(ctx context.Context, ns *corev1.Namespace, f *findings) error {
	clean := f.discovery == nil && len(f.content) == 0 && f.left == 0
	if clean && len(ns.Status.Conditions) == 0 {
		return nil
	}
	changed := ns.DeepCopy()
	changed.Status.Phase = corev1.NamespaceTerminating
	if !merge(&changed.Status.Conditions, f.conditions(), metav1.Now()) && ns.Status.Phase == corev1.NamespaceTerminating {
		return nil
	}
	_, err := c.client.CoreV1().Namespaces().UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update the conditions of namespace %s: %w", ns.Name, err)
	}
	return nil
}

// merge puts each of want into have and tells whether that changed anything.
func merge(have *[]corev1.NamespaceCondition, want []corev1.NamespaceCondition, now metav1.Time) bool {
	changed := false
	for _, w := range want {
		w.LastTransitionTime = now
		i := slices.IndexFunc(*have, func(h corev1.NamespaceCondition) bool { return h.Type == w.Type })
		if i < 0 {
			*have, changed = append(*have, w), true
			continue
		}
		h := &(*have)[i]
		if h.Status == w.Status && h.Reason == w.Reason && h.Message == w.Message {
			continue
		}
		if h.Status == w.Status {
			w.LastTransitionTime = h.LastTransitionTime
		}
		*h, changed = w, true
	}
	return changed
}
