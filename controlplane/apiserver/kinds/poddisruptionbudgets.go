// The kind PodDisruptionBudget.

package kinds

import (
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func podDisruptionBudgets() Kind {
	return of[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList](policyv1.SchemeGroupVersion, "PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget", Kind{
		short: []string{"pdb"}, status: true, generation: true, conditional: true, anyFinalizer: true,
		rules: Rules{create(validatePodDisruptionBudget), anew(validatePodDisruptionBudget), anew(validatePodDisruptionBudgetStatus)},
		table: disruptionBudgetTable,
	})
}

// validatePodDisruptionBudget checks a disruption budget.
func validatePodDisruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
	p, s := field.NewPath("spec"), &b.Spec
	var errs field.ErrorList
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(p, *s, "minAvailable and maxUnavailable cannot be both set"))
	}
	for _, f := range []struct {
		name  string
		value *intstr.IntOrString
	}{{"minAvailable", s.MinAvailable}, {"maxUnavailable", s.MaxUnavailable}} {
		if f.value != nil {
			errs = append(errs, intOrPercent(*f.value, p.Child(f.name))...)
			errs = append(errs, notMoreThan100Percent(*f.value, p.Child(f.name))...)
		}
	}
	errs = append(errs, labelSelector(s.Selector, p.Child("selector"))...)
	return append(errs, optionalOneOf(s.UnhealthyPodEvictionPolicy, p.Child("unhealthyPodEvictionPolicy"), policyv1.AlwaysAllow, policyv1.IfHealthyBudget)...)
}

// validatePodDisruptionBudgetStatus checks a budget's status.
func validatePodDisruptionBudgetStatus(b *policyv1.PodDisruptionBudget) field.ErrorList {
	p, s := field.NewPath("status"), &b.Status
	errs := metav1validation.ValidateConditions(s.Conditions, p.Child("conditions"))
	errs = append(errs, nonNegative(s.DisruptionsAllowed, p.Child("disruptionsAllowed"))...)
	errs = append(errs, nonNegative(s.CurrentHealthy, p.Child("currentHealthy"))...)
	errs = append(errs, nonNegative(s.DesiredHealthy, p.Child("desiredHealthy"))...)
	return append(errs, nonNegative(s.ExpectedPods, p.Child("expectedPods"))...)
}

func disruptionBudgetTable(gr schema.GroupResource) rest.TableConvertor {
	doc := policyv1.PodDisruptionBudgetSpec{}.SwaggerDoc()
	cell := func(v *intstr.IntOrString) string {
		if v == nil {
			return "N/A"
		}
		return v.String()
	}
	return newTable(gr, columns{
		nameColumn(),
		text("Min Available", doc["minAvailable"]),
		text("Max Unavailable", doc["maxUnavailable"]),
		integer("Allowed Disruptions", policyv1.PodDisruptionBudgetStatus{}.SwaggerDoc()["disruptionsAllowed"]),
		ageColumn(),
	}, func(o *policyv1.PodDisruptionBudget, now time.Time) []any {
		return []any{
			o.Name, cell(o.Spec.MinAvailable), cell(o.Spec.MaxUnavailable), int64(o.Status.DisruptionsAllowed), age(o.CreationTimestamp, now),
		}
	})
}
