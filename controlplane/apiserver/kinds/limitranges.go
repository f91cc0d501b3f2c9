// The kind LimitRange.

package kinds

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func limitRanges() Kind {
	return of[corev1.LimitRange, corev1.LimitRangeList](corev1.SchemeGroupVersion, "LimitRange", "limitranges", "limitrange", Kind{
		short: []string{"limits"}, upsert: true,
		rules:    Rules{Create: create(validateLimitRange), Update: anew(validateLimitRange)},
		defaults: defaulting(defaultLimitRange),
	})
}

func defaultLimitRange(o *corev1.LimitRange) {
	for i := range o.Spec.Limits {
		l := &o.Spec.Limits[i]
		if l.Type == corev1.LimitTypeContainer {
			inherit(&l.Default, l.Max)
			inherit(&l.DefaultRequest, l.Default)
			inherit(&l.DefaultRequest, l.Min)
		}
		for _, list := range []corev1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
			defaultResourceList(list)
		}
	}
}

// inherit copies to dst what it lacks of src. The result is never nil, which
// is how Kubernetes prints it.
func inherit(dst *corev1.ResourceList, src corev1.ResourceList) {
	if *dst == nil {
		*dst = make(corev1.ResourceList, len(src))
	}
	for name, q := range src {
		if _, ok := (*dst)[name]; !ok {
			(*dst)[name] = q.DeepCopy()
		}
	}
}

// validateLimitRange checks that the bounds of each type do not contradict each
// other: min ≤ default request ≤ default ≤ max.
func validateLimitRange(l *corev1.LimitRange) field.ErrorList {
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
