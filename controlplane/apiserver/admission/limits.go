// Limit ranges: what containers get that they do not ask for, and what nobody gets.

package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	resourcehelper "k8s.io/component-helpers/resource"
)

// limitAnnotation says on a pod what was given to it.
const limitAnnotation = "kubernetes.io/limit-ranger"

// LimitRanger gives containers of new pods the requests and limits that the limit ranges
// of their namespace have for those who name none, and refuses pods and claims that ask
// for less or more than those allow.
//
// Ranges returns a namespace's; it is asked for each such request, and may answer from
// memory.
func LimitRanger(ranges func(ctx context.Context, namespace string) ([]corev1.LimitRange, error)) admission.Interface {
	return &limitRanger{Handler: admission.NewHandler(admission.Create, admission.Update), ranges: ranges}
}

type limitRanger struct {
	*admission.Handler
	ranges func(ctx context.Context, namespace string) ([]corev1.LimitRange, error)
}

// Admit implements admission.MutationInterface.
func (l *limitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	items, err := l.items(ctx, a)
	if err != nil {
		return err
	}
	var told []string
	for i := range items {
		if items[i].Type != corev1.LimitTypeContainer {
			continue
		}
		for j := range pod.Spec.InitContainers {
			told = append(told, give(&items[i], &pod.Spec.InitContainers[j], "init container")...)
		}
		for j := range pod.Spec.Containers {
			told = append(told, give(&items[i], &pod.Spec.Containers[j], "container")...)
		}
	}
	if len(told) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, limitAnnotation, "LimitRanger plugin set: "+strings.Join(told, "; "))
	}
	return nil
}

// Validate implements admission.ValidationInterface. Of a pod's resources only resize
// changes anything after it was made.
func (l *limitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if old, err := meta.Accessor(a.GetOldObject()); err == nil && old.GetDeletionTimestamp() != nil {
		return nil // what goes may lose its finalizers
	}
	var check func(*corev1.LimitRangeItem) []error
	switch o := a.GetObject().(type) {
	case *corev1.Pod:
		made := a.GetOperation() == admission.Create && a.GetSubresource() == ""
		if !made && a.GetSubresource() != "resize" {
			return nil
		}
		check = func(item *corev1.LimitRangeItem) []error { return checkPod(item, o) }
	case *corev1.PersistentVolumeClaim:
		if a.GetSubresource() != "" {
			return nil
		}
		check = func(item *corev1.LimitRangeItem) []error { return checkClaim(item, o) }
	default:
		return nil
	}
	items, err := l.items(ctx, a)
	if err != nil {
		return err
	}
	var errs []error
	for i := range items {
		errs = append(errs, check(&items[i])...)
	}
	if len(errs) == 0 {
		return nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return admission.NewForbidden(a, errors.New(strings.Join(texts, ", ")))
}

// items are those of all limit ranges of the request's namespace.
func (l *limitRanger) items(ctx context.Context, a admission.Attributes) ([]corev1.LimitRangeItem, error) {
	ranges, err := l.ranges(ctx, a.GetNamespace())
	if err != nil {
		return nil, fault("limit ranges of namespace "+a.GetNamespace(), err)
	}
	var items []corev1.LimitRangeItem
	for i := range ranges {
		items = append(items, ranges[i].Spec.Limits...)
	}
	return items, nil
}

// give fills in what c leaves out, and says what that was.
func give(item *corev1.LimitRangeItem, c *corev1.Container, what string) []string {
	var told []string
	for _, part := range []struct {
		name    string
		has     *corev1.ResourceList
		without corev1.ResourceList
	}{{"request", &c.Resources.Requests, item.DefaultRequest}, {"limit", &c.Resources.Limits, item.Default}} {
		var names []string
		for name, amount := range part.without {
			if _, ok := (*part.has)[name]; ok {
				continue
			}
			if *part.has == nil {
				*part.has = corev1.ResourceList{}
			}
			(*part.has)[name] = amount.DeepCopy()
			names = append(names, string(name))
		}
		if len(names) > 0 {
			slices.Sort(names)
			told = append(told, fmt.Sprintf("%s %s for %s %s", strings.Join(names, ", "), part.name, what, c.Name))
		}
	}
	return told
}

func checkPod(item *corev1.LimitRangeItem, pod *corev1.Pod) []error {
	var errs []error
	switch item.Type {
	case corev1.LimitTypeContainer:
		for _, all := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range all {
				errs = append(errs, within(item, all[i].Resources.Requests, all[i].Resources.Limits)...)
			}
		}
	case corev1.LimitTypePod:
		errs = within(item, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}), resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}))
	}
	return errs
}

// checkClaim looks at requests only: a claim has no limits.
func checkClaim(item *corev1.LimitRangeItem, c *corev1.PersistentVolumeClaim) []error {
	if item.Type != corev1.LimitTypePersistentVolumeClaim {
		return nil
	}
	var errs []error
	requests := c.Spec.Resources.Requests
	for _, name := range sorted(item.Min) {
		errs = append(errs, least(item, name, requests, nil))
	}
	for _, name := range sorted(item.Max) {
		most, request := item.Max[name], requests[name]
		bound := fmt.Sprintf("maximum %s usage per %s is %s", name, item.Type, most.String())
		if _, ok := requests[name]; !ok {
			errs = append(errs, fmt.Errorf("%s.  No request is specified", bound))
		} else if request.Cmp(most) > 0 {
			errs = append(errs, fmt.Errorf("%s, but request is %s", bound, request.String()))
		}
	}
	return present(errs)
}

// within says what of a container or pod is outside the bounds of item.
func within(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var errs []error
	for _, name := range sorted(item.Min) {
		errs = append(errs, least(item, name, requests, limits))
	}
	for _, name := range sorted(item.Max) {
		errs = append(errs, most(item, name, requests, limits))
	}
	for _, name := range sorted(item.MaxLimitRequestRatio) {
		errs = append(errs, ratio(item, name, requests, limits))
	}
	return present(errs)
}

func least(item *corev1.LimitRangeItem, name corev1.ResourceName, requests, limits corev1.ResourceList) error {
	lowest := item.Min[name]
	bound := fmt.Sprintf("minimum %s usage per %s is %s", name, item.Type, lowest.String())
	request, ok := requests[name]
	if !ok {
		return fmt.Errorf("%s.  No request is specified", bound)
	}
	if request.Cmp(lowest) < 0 {
		return fmt.Errorf("%s, but request is %s", bound, request.String())
	}
	if limit, ok := limits[name]; ok && limit.Cmp(lowest) < 0 {
		return fmt.Errorf("%s, but limit is %s", bound, limit.String())
	}
	return nil
}

func most(item *corev1.LimitRangeItem, name corev1.ResourceName, requests, limits corev1.ResourceList) error {
	highest := item.Max[name]
	bound := fmt.Sprintf("maximum %s usage per %s is %s", name, item.Type, highest.String())
	limit, ok := limits[name]
	if !ok {
		return fmt.Errorf("%s.  No limit is specified", bound)
	}
	if limit.Cmp(highest) > 0 {
		return fmt.Errorf("%s, but limit is %s", bound, limit.String())
	}
	if request, ok := requests[name]; ok && request.Cmp(highest) > 0 {
		return fmt.Errorf("%s, but request is %s", bound, request.String())
	}
	return nil
}

func ratio(item *corev1.LimitRangeItem, name corev1.ResourceName, requests, limits corev1.ResourceList) error {
	highest := item.MaxLimitRequestRatio[name]
	bound := fmt.Sprintf("%s max limit to request ratio per %s is %s", name, item.Type, highest.String())
	request, limit := requests[name], limits[name]
	if request.IsZero() {
		return fmt.Errorf("%s, but no request is specified or request is 0", bound)
	}
	if limit.IsZero() {
		return fmt.Errorf("%s, but no limit is specified or limit is 0", bound)
	}
	if most := milli(highest) * milli(request) / 1000; milli(limit) > most {
		return fmt.Errorf("%s, but provided ratio is %f", bound, milli(limit)/milli(request))
	}
	return nil
}

// milli is a thousand times q. Thousandths of 1 have no exact number in binary.
func milli(q resource.Quantity) float64 {
	if q.CmpInt64(resource.MaxMilliValue) > 0 {
		return float64(q.Value()) * 1000
	}
	return float64(q.MilliValue())
}

func sorted(list corev1.ResourceList) []corev1.ResourceName {
	return slices.Sorted(maps.Keys(list))
}

// present are the errors that are any.
func present(errs []error) []error {
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}
