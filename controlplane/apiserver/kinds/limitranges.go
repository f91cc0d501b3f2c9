// The kind LimitRange.

package kinds

import (
	"fmt"
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
	all := corev1.ResourceList{}
	for _, b := range []struct {
		name string
		list corev1.ResourceList
	}{{"min", it.Min}, {"defaultRequest", it.DefaultRequest}, {"default", it.Default}, {"max", it.Max}, {"maxLimitRequestRatio", it.MaxLimitRequestRatio}} {
		for _, name := range sortedNames(b.list) {
			all[name] = b.list[name]
			errs = append(errs, limitResourceName(it.Type, name, p.Child(b.name).Key(string(name)))...)
			errs = append(errs, quantityNotNegative(b.list[name], p.Child(b.name).Key(string(name)))...)
		}
	}
	for _, name := range sortedNames(all) {
		errs = append(errs, boundsInOrder(it, name, p)...)
		errs = append(errs, limitRatio(it, name, p.Child("maxLimitRequestRatio").Key(string(name)))...)
		of, request := it.Default[name], it.DefaultRequest[name]
		_, limited := it.Default[name]
		_, requested := it.DefaultRequest[name]
		if limited && requested && !mayOvercommit(name) && of.Cmp(request) != 0 {
			errs = append(errs, younger(field.Invalid(p.Child("defaultRequest").Key(string(name)), request.String(),
				fmt.Sprintf("default value %s must equal to defaultRequest value %s in %s", of.String(), request.String(), name)))...)
		}
	}
	return errs
}

// boundsInOrder compares the bounds of one resource.
func boundsInOrder(it *corev1.LimitRangeItem, name corev1.ResourceName, p *field.Path) field.ErrorList {
	type bound struct {
		list corev1.ResourceList
		text string
	}
	low, high := bound{it.Min, "min"}, bound{it.Max, "max"}
	request, limit := bound{it.DefaultRequest, "default request"}, bound{it.Default, "default"}
	var errs field.ErrorList
	for _, c := range []struct {
		less, more bound
		at         string
	}{
		{low, high, "min"},
		{low, request, "defaultRequest"},
		{request, high, "defaultRequest"},
		{request, bound{it.Default, "default limit"}, "defaultRequest"},
		{low, limit, "default"},
		{limit, high, "default"},
	} {
		less, has := c.less.list[name]
		more, too := c.more.list[name]
		if !has || !too || less.Cmp(more) <= 0 {
			continue
		}
		shown := less
		if c.less.text == "min" && c.at == "defaultRequest" || c.less.text == "default" {
			shown = more
		}
		errs = append(errs, field.Invalid(p.Child(c.at).Key(string(name)), shown.String(),
			fmt.Sprintf("%s value %s is greater than %s value %s", c.less.text, less.String(), c.more.text, more.String())))
	}
	return errs
}

// limitRatio checks how many times the request a limit may be: not less than once, and not more
// than the bounds allow anyway.
func limitRatio(it *corev1.LimitRangeItem, name corev1.ResourceName, p *field.Path) field.ErrorList {
	ratio, has := it.MaxLimitRequestRatio[name]
	if !has {
		return nil
	}
	var errs field.ErrorList
	if ratio.Cmp(resource.MustParse("1")) < 0 {
		errs = append(errs, field.Invalid(p, ratio.String(), "ratio "+ratio.String()+" is less than 1"))
	}
	least, bounded := it.Min[name]
	most, both := it.Max[name]
	if !bounded || !both {
		return errs
	}
	if reach := most.AsApproximateFloat64() / least.AsApproximateFloat64(); ratio.AsApproximateFloat64() > reach {
		errs = append(errs, younger(field.Invalid(p, ratio.String(), fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), reach)))...)
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
