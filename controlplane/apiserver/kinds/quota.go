// Rules for limit ranges and resource quotas.

package kinds

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateLimitRange checks that the bounds of each type do not contradict each
// other: min ≤ default request ≤ default ≤ max.
func ValidateLimitRange(l *corev1.LimitRange) field.ErrorList {
	var errs field.ErrorList
	types := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		it, p := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, limitType(it.Type, p.Child("type"))...)
		if types[it.Type] {
			errs = append(errs, field.Duplicate(p.Child("type"), it.Type))
		}
		types[it.Type] = true
		if it.Type == corev1.LimitTypePod {
			if len(it.Default) > 0 {
				errs = append(errs, field.Forbidden(p.Child("default"), "may not be specified when `type` is 'Pod'"))
			}
			if len(it.DefaultRequest) > 0 {
				errs = append(errs, field.Forbidden(p.Child("defaultRequest"), "may not be specified when `type` is 'Pod'"))
			}
		}
		if it.Type == corev1.LimitTypePersistentVolumeClaim {
			_, hasMin := it.Min[corev1.ResourceStorage]
			_, hasMax := it.Max[corev1.ResourceStorage]
			if !hasMin && !hasMax {
				errs = append(errs, field.Required(p.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
			}
		}
		errs = append(errs, limitOrder(it, p)...)
	}
	return errs
}

func limitType(t corev1.LimitType, p *field.Path) field.ErrorList {
	if t == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	errs := qualifiedName(string(t), p)
	if len(errs) == 0 && !strings.Contains(string(t), "/") {
		errs = append(errs, optionalOneOf(&t, p, corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim)...)
	}
	return errs
}

// limitOrder compares, for each resource, all the bounds that are given.
func limitOrder(it *corev1.LimitRangeItem, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	bounds := []struct {
		name string
		list corev1.ResourceList
	}{{"min", it.Min}, {"defaultRequest", it.DefaultRequest}, {"default", it.Default}, {"max", it.Max}}
	all := corev1.ResourceList{}
	for _, b := range bounds {
		for name, q := range b.list {
			all[name] = q
		}
		for _, name := range sortedNames(b.list) {
			errs = append(errs, limitResourceName(it.Type, name, p.Child(b.name).Key(string(name)))...)
			errs = append(errs, quantityNotNegative(b.list[name], p.Child(b.name).Key(string(name)))...)
		}
	}
	for _, name := range sortedNames(all) {
		var last *resource.Quantity
		lastName := ""
		for _, b := range bounds {
			q, ok := b.list[name]
			if !ok {
				continue
			}
			if last != nil && last.Cmp(q) > 0 {
				errs = append(errs, field.Invalid(p.Child(lastName).Key(string(name)), last.String(), lastName+" value "+last.String()+" is greater than "+b.name+" value "+q.String()))
			}
			last, lastName = &q, b.name
		}
	}
	for _, name := range sortedNames(it.MaxLimitRequestRatio) {
		ratio := it.MaxLimitRequestRatio[name]
		if ratio.Cmp(resource.MustParse("1")) < 0 {
			errs = append(errs, field.Invalid(p.Child("maxLimitRequestRatio").Key(string(name)), ratio.String(), "ratio "+ratio.String()+" is less than 1"))
		}
	}
	return errs
}

// limitResourceName wants a resource of what the limit is for.
func limitResourceName(t corev1.LimitType, name corev1.ResourceName, p *field.Path) field.ErrorList {
	if t == corev1.LimitTypePod || t == corev1.LimitTypeContainer {
		return containerResourceName(name, p)
	}
	return qualifiedName(string(name), p)
}

// quotaResourceName wants the name of a resource that a quota counts. A name
// without a domain is one of Kubernetes' own; count/RESOURCE has one.
func quotaResourceName(name corev1.ResourceName, p *field.Path) field.ErrorList {
	if errs := qualifiedName(string(name), p); len(errs) > 0 {
		return errs
	}
	plain := strings.TrimPrefix(strings.TrimPrefix(string(name), requestsDot), "limits.")
	switch corev1.ResourceName(plain) {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return nil
	}
	if strings.Contains(string(name), "/") || isInteger(name) || name == corev1.ResourceRequestsStorage || IsHugePages(corev1.ResourceName(plain)) {
		return nil
	}
	return field.ErrorList{field.Invalid(p, name, "must be a standard resource for quota")}
}

// ValidateResourceQuota checks a quota's limits and scopes.
func ValidateResourceQuota(q *corev1.ResourceQuota) field.ErrorList {
	p := field.NewPath("spec")
	errs := quotaList(q.Spec.Hard, p.Child("hard"))
	return append(errs, quotaScopes(&q.Spec, p)...)
}

func quotaList(l corev1.ResourceList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sortedNames(l) {
		errs = append(errs, quotaResourceName(name, p.Key(string(name)))...)
		errs = append(errs, ValidateResourceQuantity(name, l[name], p.Key(string(name)))...)
	}
	return errs
}

// quotaScopes checks the two ways to say which objects a quota is about.
func quotaScopes(s *corev1.ResourceQuotaSpec, p *field.Path) field.ErrorList {
	at := p.Child("scopes")
	var errs field.ErrorList
	for _, scope := range s.Scopes {
		errs = append(errs, quotaScope(scope, s.Hard, s.Scopes, at, at)...)
	}
	errs = append(errs, conflictingScopes(s.Scopes, s.Scopes, at)...)
	if s.ScopeSelector == nil {
		return errs
	}
	at = p.Child("scopeSelector")
	var selected []corev1.ResourceQuotaScope
	for i := range s.ScopeSelector.MatchExpressions {
		r, each := &s.ScopeSelector.MatchExpressions[i], at.Child("matchExpressions").Index(i)
		errs = append(errs, quotaScope(r.ScopeName, s.Hard, r.ScopeName, each.Child("scopeName"), each)...)
		errs = append(errs, scopeOperator(r, each)...)
		selected = append(selected, r.ScopeName)
	}
	return append(errs, conflictingScopes(selected, selected, at)...)
}

// quotaScope checks one scope, and that it can select what the quota bounds.
func quotaScope(scope corev1.ResourceQuotaScope, hard corev1.ResourceList, value any, named, applied *field.Path) field.ErrorList {
	var errs field.ErrorList
	var selectable []corev1.ResourceName
	switch scope {
	case corev1.ResourceQuotaScopeBestEffort:
		selectable = []corev1.ResourceName{corev1.ResourcePods}
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		selectable = []corev1.ResourceName{
			corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
			corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
		}
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		selectable = []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage}
	default:
		return append(errs, field.Invalid(named, value, "unsupported scope"))
	}
	for _, name := range sortedNames(hard) {
		plain := corev1.ResourceName(strings.TrimPrefix(string(name), requestsDot))
		if !strings.Contains(string(name), "/") && !IsHugePages(plain) && !slices.Contains(selectable, name) &&
			len(quotaResourceName(name, applied)) == 0 { // which has been told already
			errs = append(errs, field.Invalid(applied, value, "unsupported scope applied to resource "+string(name)))
		}
	}
	return errs
}

func conflictingScopes(scopes []corev1.ResourceQuotaScope, value any, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
	} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			errs = append(errs, field.Invalid(p, value, "conflicting scopes"))
		}
	}
	return errs
}

// scopeOperator checks how a selector selects. Only classes have names to select by.
func scopeOperator(r *corev1.ScopedResourceSelectorRequirement, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	named := r.ScopeName == corev1.ResourceQuotaScopePriorityClass || r.ScopeName == corev1.ResourceQuotaScopeVolumeAttributesClass
	switch r.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(p.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Invalid(p.Child("values"), r.Values, "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector"))
		}
	default:
		return append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	if r.Operator != corev1.ScopeSelectorOpExists && !named {
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "must be 'Exists' when the scope is "+string(r.ScopeName)))
	}
	return errs
}

// ValidateResourceQuotaUpdate checks a change of a quota, whose scopes stay.
func ValidateResourceQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	errs := ValidateResourceQuota(q)
	now, then := slices.Clone(q.Spec.Scopes), slices.Clone(old.Spec.Scopes)
	slices.Sort(now)
	slices.Sort(then)
	if !slices.Equal(now, then) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, "field is immutable"))
	}
	return errs
}

// ValidateResourceQuotaStatus checks what a quota is said to allow and to use.
func ValidateResourceQuotaStatus(q *corev1.ResourceQuota) field.ErrorList {
	p := field.NewPath("status")
	return append(quotaList(q.Status.Hard, p.Child("hard")), quotaList(q.Status.Used, p.Child("used"))...)
}
