// The kind ResourceQuota.

package kinds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

func resourceQuotas() Kind {
	return of[corev1.ResourceQuota, corev1.ResourceQuotaList](corev1.SchemeGroupVersion, "ResourceQuota", "resourcequotas", "resourcequota", Kind{
		short: []string{"quota"}, status: true,
		rules:    Rules{create(validateResourceQuota), update(validateResourceQuotaUpdate), anew(validateResourceQuotaStatus)},
		defaults: defaulting(defaultResourceQuota),
		table:    resourceQuotaTable,
	})
}

func defaultResourceQuota(o *corev1.ResourceQuota) {
	defaultResourceList(o.Spec.Hard)
	defaultResourceList(o.Status.Hard)
	defaultResourceList(o.Status.Used)
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

// validateResourceQuota checks a quota's limits and scopes.
func validateResourceQuota(q *corev1.ResourceQuota) field.ErrorList {
	p := field.NewPath("spec")
	errs := quotaList(q.Spec.Hard, p.Child("hard"))
	return append(errs, quotaScopes(&q.Spec, p)...)
}

func quotaList(l corev1.ResourceList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sortedNames(l) {
		errs = append(errs, quotaResourceName(name, p.Key(string(name)))...)
		errs = append(errs, validateResourceQuantity(name, l[name], p.Key(string(name)))...)
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

// validateResourceQuotaUpdate checks a change of a quota, whose scopes stay.
func validateResourceQuotaUpdate(q, old *corev1.ResourceQuota) field.ErrorList {
	errs := validateResourceQuota(q)
	now, then := slices.Clone(q.Spec.Scopes), slices.Clone(old.Spec.Scopes)
	slices.Sort(now)
	slices.Sort(then)
	if !slices.Equal(now, then) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, "field is immutable"))
	}
	return errs
}

// validateResourceQuotaStatus checks what a quota is said to allow and to use.
func validateResourceQuotaStatus(q *corev1.ResourceQuota) field.ErrorList {
	p := field.NewPath("status")
	return append(quotaList(q.Status.Hard, p.Child("hard")), quotaList(q.Status.Used, p.Child("used"))...)
}

func resourceQuotaTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("Request", "Request represents a minimum amount of cpu/memory that a container may consume."),
		text("Limit", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
		ageColumn(),
	}, func(o *corev1.ResourceQuota, now time.Time) []any {
		var requests, limits []string
		for _, name := range slices.Sorted(maps.Keys(o.Status.Hard)) {
			used, hard := o.Status.Used[name], o.Status.Hard[name]
			cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
			if strings.HasPrefix(string(name), "limits.") {
				limits = append(limits, cell)
			} else {
				requests = append(requests, cell)
			}
		}
		return []any{o.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(o.CreationTimestamp, now)}
	})
}
