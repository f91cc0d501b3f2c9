// Rules for disruption budgets, priority classes and runtime classes.

package kinds

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxUserPriority is the highest value a class can have that is not one of the
// system's own, whose names begin with system-.
const (
	maxUserPriority = 1_000_000_000
	systemPrefix    = "system-"
)

// ValidatePodDisruptionBudget checks a disruption budget.
func ValidatePodDisruptionBudget(b *policyv1.PodDisruptionBudget) field.ErrorList {
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

// ValidatePodDisruptionBudgetStatus checks a budget's status.
func ValidatePodDisruptionBudgetStatus(b *policyv1.PodDisruptionBudget) field.ErrorList {
	p, s := field.NewPath("status"), &b.Status
	errs := metav1validation.ValidateConditions(s.Conditions, p.Child("conditions"))
	errs = append(errs, nonNegative(s.DisruptionsAllowed, p.Child("disruptionsAllowed"))...)
	errs = append(errs, nonNegative(s.CurrentHealthy, p.Child("currentHealthy"))...)
	errs = append(errs, nonNegative(s.DesiredHealthy, p.Child("desiredHealthy"))...)
	return append(errs, nonNegative(s.ExpectedPods, p.Child("expectedPods"))...)
}

// ValidatePriorityClass checks a priority class. The names and values above
// what users can have belong to the two classes of the system.
func ValidatePriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	known := map[string]int32{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}
	name, value := field.NewPath("metadata", "name"), field.NewPath("value")
	if strings.HasPrefix(c.Name, systemPrefix) {
		want, ok := known[c.Name]
		switch {
		case !ok:
			errs = append(errs, field.Forbidden(name, "priority class names with 'system-' prefix are reserved for system use only. error: "+
				fmt.Sprintf("%s is not a known system priority class", c.Name)))
		case c.Value != want:
			errs = append(errs, field.Forbidden(name, "priority class names with 'system-' prefix are reserved for system use only. error: "+
				fmt.Sprintf("value of %s PriorityClass must be %d", c.Name, want)))
		case c.GlobalDefault:
			errs = append(errs, field.Forbidden(name, "priority class names with 'system-' prefix are reserved for system use only. error: "+
				fmt.Sprintf("globalDefault of %s PriorityClass must be false", c.Name)))
		}
	} else if c.Value > maxUserPriority {
		errs = append(errs, field.Forbidden(value, fmt.Sprintf("maximum allowed value of a user defined priority is %d", maxUserPriority)))
	}
	return append(errs, optionalOneOf(c.PreemptionPolicy, field.NewPath("preemptionPolicy"), corev1.PreemptLowerPriority, corev1.PreemptNever)...)
}

// ValidatePriorityClassUpdate checks a change of a class: pods carry its value,
// so it stays.
func ValidatePriorityClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs, immutable(c.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
}

// ValidateRuntimeClass checks a runtime class.
func ValidateRuntimeClass(c *nodev1.RuntimeClass) field.ErrorList {
	errs := required(c.Handler, field.NewPath("handler"))
	if c.Handler != "" {
		errs = append(errs, dnsLabel(c.Handler, field.NewPath("handler"))...)
	}
	if c.Overhead != nil {
		p := field.NewPath("overhead", "podFixed")
		for _, name := range sortedNames(c.Overhead.PodFixed) {
			errs = append(errs, containerResourceName(name, p.Key(string(name)))...)
			errs = append(errs, ValidateResourceQuantity(name, c.Overhead.PodFixed[name], p.Key(string(name)))...)
		}
	}
	if s := c.Scheduling; s != nil {
		p := field.NewPath("scheduling")
		errs = append(errs, labels(s.NodeSelector, p.Child("nodeSelector"))...)
		errs = append(errs, ValidateTolerations(s.Tolerations, p.Child("tolerations"))...)
	}
	return errs
}

// ValidateRuntimeClassUpdate checks a change of a class, whose handler stays.
func ValidateRuntimeClassUpdate(c, old *nodev1.RuntimeClass) field.ErrorList {
	return append(ValidateRuntimeClass(c), immutable(c.Handler, old.Handler, field.NewPath("handler"))...)
}
