// Quantities and names of resources.

package kinds

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	notNegative = "must be greater than or equal to 0"
	notInteger  = "must be an integer"
	requestsDot = corev1.DefaultResourceRequestsPrefix
)

// quantityNotNegative reports a quantity below zero.
func quantityNotNegative(q resource.Quantity, p *field.Path) field.ErrorList {
	if q.Sign() < 0 {
		return field.ErrorList{field.Invalid(p, q.String(), notNegative)}
	}
	return nil
}

func quantityPositive(q resource.Quantity, p *field.Path) field.ErrorList {
	if q.Sign() <= 0 {
		return field.ErrorList{field.Invalid(p, q.String(), "must be greater than zero")}
	}
	return nil
}

// validateResourceQuantity checks an amount of a resource: never negative, and
// whole where the resource cannot be divided.
func validateResourceQuantity(name corev1.ResourceName, q resource.Quantity, p *field.Path) field.ErrorList {
	errs := quantityNotNegative(q, p)
	if isInteger(name) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(p, q.String(), notInteger))
	}
	return errs
}

// isInteger tells whether a resource comes in whole units only: counts of
// objects, and whatever a device plugin offers.
func isInteger(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
		corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return IsExtended(name)
}

// IsNative tells whether a resource belongs to Kubernetes itself.
func IsNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// IsExtended tells whether name can be a resource that a node advertises beyond
// the native ones. A quota names such a one with the prefix requests., so the
// name must have room for it.
func IsExtended(name corev1.ResourceName) bool {
	if IsNative(name) || strings.HasPrefix(string(name), requestsDot) {
		return false
	}
	return len(validation.IsQualifiedName(requestsDot+string(name))) == 0
}

// IsHugePages tells whether a resource is huge pages of one size.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// mayOvercommit tells whether a request may be lower than the limit.
func mayOvercommit(name corev1.ResourceName) bool {
	return IsNative(name) && !IsHugePages(name)
}

// containerResourceName wants what a container can ask for.
func containerResourceName(name corev1.ResourceName, p *field.Path) field.ErrorList {
	if errs := qualifiedName(string(name), p); len(errs) > 0 {
		return errs
	}
	if !strings.Contains(string(name), "/") {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			return nil
		}
		if !IsHugePages(name) {
			return field.ErrorList{field.Invalid(p, name, "must be a standard resource for containers")}
		}
		return nil
	}
	if !IsNative(name) && !IsExtended(name) {
		return field.ErrorList{field.Invalid(p, name, "doesn't follow extended resource name standard")}
	}
	return nil
}

// containerResources checks the requests and limits of a container, given the
// names of the pod's resource claims.
func containerResources(r *corev1.ResourceRequirements, claims map[string]bool, p *field.Path) field.ErrorList {
	errs := requirements(r, containerResourceName, p)
	seen := map[corev1.ResourceClaim]bool{}
	for i, c := range r.Claims {
		at := p.Child("claims").Index(i)
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at, ""))
		case seen[c]:
			errs = append(errs, field.Duplicate(at, c.Name))
		case !claims[c.Name]:
			errs = append(errs, field.NotFound(at, c.Name))
		}
		seen[c] = true
	}
	return errs
}

// requirements checks requests and limits against each other.
func requirements(r *corev1.ResourceRequirements, nameRule func(corev1.ResourceName, *field.Path) field.ErrorList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, requests := p.Child("limits"), p.Child("requests")
	cpuOrMemory, hugePages := false, false
	note := func(name corev1.ResourceName) {
		cpuOrMemory = cpuOrMemory || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		hugePages = hugePages || IsHugePages(name)
	}
	for _, name := range sortedNames(r.Limits) {
		at := limits.Key(string(name))
		errs = append(errs, nameRule(name, at)...)
		errs = append(errs, validateResourceQuantity(name, r.Limits[name], at)...)
		errs = append(errs, wholePages(name, r.Limits[name], at)...)
		note(name)
	}
	for _, name := range sortedNames(r.Requests) {
		at := requests.Key(string(name))
		q := r.Requests[name]
		errs = append(errs, nameRule(name, at)...)
		errs = append(errs, validateResourceQuantity(name, q, at)...)
		errs = append(errs, wholePages(name, q, at)...)
		note(name)
		limit, limited := r.Limits[name]
		switch {
		case !limited && !mayOvercommit(name):
			errs = append(errs, field.Required(limits, "Limit must be set for non overcommitable resources"))
		case limited && !mayOvercommit(name) && q.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && q.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(requests, q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		}
	}
	if hugePages && !cpuOrMemory {
		errs = append(errs, field.Forbidden(p, "HugePages require cpu or memory"))
	}
	return errs
}

// wholePages wants huge pages of a size, and not a part of one.
func wholePages(name corev1.ResourceName, q resource.Quantity, p *field.Path) field.ErrorList {
	text, is := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !is {
		return nil
	}
	size, err := resource.ParseQuantity(text)
	if err == nil && size.Sign() > 0 && size.MilliValue()%1000 == 0 && q.Value()%size.Value() == 0 {
		return nil
	}
	return younger(field.Invalid(p, q.String(), fmt.Sprintf("%s is not positive integer multiple of %s", q.String(), name)))
}

// sortedNames makes the order of errors the same each time.
func sortedNames(l corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
