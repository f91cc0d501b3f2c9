// Rules for nodes.

package kinds

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// ValidateNode checks a node that registers. It need not say anything but its
// name: a machine that has not reported yet is a node like any other.
func ValidateNode(n *corev1.Node) field.ErrorList {
	spec := field.NewPath("spec")
	errs := taints(n.Spec.Taints, spec.Child("taints"))
	errs = append(errs, podCIDRs(&n.Spec, spec)...)
	return append(errs, nodeStatus(&n.Status, field.NewPath("status"))...)
}

// ValidateNodeUpdate checks a change of a node. What networks and machines are
// built around is set once.
func ValidateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	spec := field.NewPath("spec")
	errs := ValidateNode(n)
	if len(old.Spec.PodCIDRs) > 0 {
		at := spec.Child("podCIDRs")
		if len(n.Spec.PodCIDRs) != len(old.Spec.PodCIDRs) {
			errs = append(errs, field.Forbidden(at, "node updates may not change podCIDR except from \"\" to valid"))
		} else {
			for i, c := range n.Spec.PodCIDRs {
				if c != old.Spec.PodCIDRs[i] {
					errs = append(errs, field.Forbidden(at.Index(i), "node updates may not change podCIDR except from \"\" to valid"))
				}
			}
		}
	}
	if old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID {
		errs = append(errs, field.Forbidden(spec.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	return errs
}

// ValidateNodeStatusUpdate checks what a node reports of itself.
func ValidateNodeStatusUpdate(n, _ *corev1.Node) field.ErrorList {
	return nodeStatus(&n.Status, field.NewPath("status"))
}

func nodeStatus(s *corev1.NodeStatus, p *field.Path) field.ErrorList {
	errs := nodeResources(s.Capacity, p.Child("capacity"))
	errs = append(errs, nodeResources(s.Allocatable, p.Child("allocatable"))...)
	addresses := map[corev1.NodeAddress]bool{}
	for i, a := range s.Addresses {
		if addresses[a] {
			errs = append(errs, field.Duplicate(p.Child("addresses").Index(i), a))
		}
		addresses[a] = true
	}
	types := map[corev1.NodeConditionType]bool{}
	for i, c := range s.Conditions {
		at := p.Child("conditions").Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		} else if types[c.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		types[c.Type] = true
		errs = append(errs, oneOf(c.Status, at.Child("status"), corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown)...)
	}
	return errs
}

// podCIDRs checks the ranges a node gives its pods addresses from: valid, at
// most one of each family, and the older singular field equal to the first.
func podCIDRs(s *corev1.NodeSpec, p *field.Path) field.ErrorList {
	at := p.Child("podCIDRs")
	var errs field.ErrorList
	for i, c := range s.PodCIDRs {
		errs = append(errs, cidr(c, at.Index(i))...)
	}
	if s.PodCIDR != "" && !slices.Equal(s.PodCIDRs[:min(1, len(s.PodCIDRs))], []string{s.PodCIDR}) {
		errs = append(errs, field.Invalid(at.Index(0), s.PodCIDRs, "must be equal to spec.podCIDR"))
	}
	if len(errs) > 0 || len(s.PodCIDRs) < 2 {
		return errs
	}
	dual, err := netutils.IsDualStackCIDRStrings(s.PodCIDRs)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("invalid PodCIDRs: %w", err))}
	}
	if !dual || len(s.PodCIDRs) > 2 {
		errs = append(errs, field.Invalid(at, s.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	return errs
}
