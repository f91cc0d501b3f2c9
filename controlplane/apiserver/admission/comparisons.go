// Tolerations that compare numbers, where they are switched off.

package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
)

// WithoutComparisons refuses pods that tolerate taints by the operators Lt and Gt, as
// Kubernetes does while its gate TaintTolerationComparisonOperators is off. A pod that has
// such a toleration from before can be changed.
func WithoutComparisons() admission.Interface {
	return &withoutComparisons{admission.NewHandler(admission.Create, admission.Update)}
}

type withoutComparisons struct{ *admission.Handler }

// Validate implements admission.ValidationInterface.
func (*withoutComparisons) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	if old, ok := a.GetOldObject().(*corev1.Pod); ok && slices.ContainsFunc(old.Spec.Tolerations, compares) {
		return nil
	}
	var errs field.ErrorList
	for i, t := range pod.Spec.Tolerations {
		if compares(t) {
			at := field.NewPath("spec", "tolerations").Index(i).Child("operator")
			errs = append(errs, field.NotSupported(at, t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), pod.Name, errs)
}

// compares reports whether t compares numbers.
func compares(t corev1.Toleration) bool {
	return t.Operator == corev1.TolerationOpLt || t.Operator == corev1.TolerationOpGt
}
