// Rules for namespaces.

package kinds

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateNamespace checks a new namespace.
func ValidateNamespace(n *corev1.Namespace) field.ErrorList {
	return namespaceFinalizers(n, field.NewPath("spec", "finalizers"))
}

// ValidateNamespaceUpdate checks a change of a namespace's metadata, and one of its
// finalizers, which change through the finalize subresource only.
func ValidateNamespaceUpdate(n, _ *corev1.Namespace) field.ErrorList { return ValidateNamespace(n) }

// ValidateNamespaceStatusUpdate checks that the phase says whether the
// namespace is being deleted.
func ValidateNamespaceStatusUpdate(n, _ *corev1.Namespace) field.ErrorList {
	p := field.NewPath("status", "Phase")
	switch {
	case n.DeletionTimestamp == nil && n.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(p, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case n.DeletionTimestamp != nil && n.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(p, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	default:
		return nil
	}
}

func namespaceFinalizers(n *corev1.Namespace, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, f := range n.Spec.Finalizers {
		at := p.Index(i)
		errs = append(errs, qualifiedName(string(f), at)...)
		switch f {
		case corev1.FinalizerKubernetes, metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents:
		default:
			if !strings.Contains(string(f), "/") {
				errs = append(errs, field.Invalid(at, f, "name is neither a standard finalizer name nor is it fully qualified"))
			}
		}
	}
	return errs
}
