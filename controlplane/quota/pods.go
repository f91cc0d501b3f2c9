// Pods: what they ask for, and how many there are.

package quota

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

// mustSpecify are the resources that every container of a pod must name if a quota
// bounds them. Kubernetes calls this a mistake that stays for the sake of who relies
// on it; no other resource is like that.
var mustSpecify = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU,
	corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

// podResources are those a pod counts against, beside huge pages and extended resources.
var podResources = append([]corev1.ResourceName{
	objects("pods"), corev1.ResourcePods,
	corev1.ResourceEphemeralStorage, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsEphemeralStorage,
}, mustSpecify...)

// Pods is the evaluator of pods.
func Pods(list Lister) quota.Evaluator { return &pods{list} }

type pods struct{ list Lister }

func (*pods) GroupResource() schema.GroupResource { return corev1.Resource("pods") }

// Handles: what a pod takes changes when it is resized, and which quotas it counts
// against when it gets a deadline. Mirror pods take nothing.
func (*pods) Handles(a admission.Attributes) bool {
	if p, err := as[corev1.Pod](a.GetObject()); err == nil && kinds.IsMirror(p) {
		return false
	}
	switch a.GetSubresource() {
	case "":
		if a.GetOperation() != admission.Update {
			return a.GetOperation() == admission.Create
		}
		is, err := as[corev1.Pod](a.GetObject())
		was, err2 := as[corev1.Pod](a.GetOldObject())
		return err == nil && err2 == nil && terminating(is) != terminating(was)
	case "resize":
		return a.GetOperation() == admission.Update
	}
	return false
}

// Constraints refuses a pod with containers that do not say how much they take of what
// must be specified.
func (*pods) Constraints(required []corev1.ResourceName, obj runtime.Object) error {
	pod, err := as[corev1.Pod](obj)
	if err != nil {
		return err
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	missing := map[corev1.ResourceName][]string{}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			c := &containers[i]
			has := usage(c.Resources.Requests, c.Resources.Limits)
			for _, name := range required {
				if _, ok := has[name]; !ok && slices.Contains(mustSpecify, name) {
					missing[name] = append(missing[name], c.Name)
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		containers := missing[name]
		slices.Sort(containers)
		parts = append(parts, fmt.Sprintf("%s for: %s", name, strings.Join(slices.Compact(containers), ",")))
	}
	return errors.New("must specify " + strings.Join(parts, "; "))
}

func (p *pods) Matches(q *corev1.ResourceQuota, obj runtime.Object) (bool, error) {
	return generic.Matches(q, obj, p.MatchingResources, podInScope)
}

func (*pods) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range names {
		asked, isRequest := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
		if slices.Contains(podResources, name) || kinds.IsHugePages(corev1.ResourceName(asked)) ||
			isRequest && (!kinds.IsNative(name) || isDeviceClass(corev1.ResourceName(asked))) {
			out = append(out, name)
		}
	}
	return out
}

func (*pods) MatchingScopes(obj runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, s := range scopes {
		in, err := podInScope(s, obj)
		if err != nil {
			return nil, fmt.Errorf("scope %s: %w", s.ScopeName, err)
		}
		if in {
			out = append(out, s)
		}
	}
	return out, nil
}

func (*pods) UncoveredQuotaScopes(limited, covered []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return slices.DeleteFunc(slices.Clone(limited), func(l corev1.ScopedResourceSelectorRequirement) bool {
		return slices.ContainsFunc(covered, func(c corev1.ScopedResourceSelectorRequirement) bool { return c.ScopeName == l.ScopeName })
	}), nil
}

// Usage: a pod that has ended, or should have ended by now, is stored and takes nothing
// else. Others take what they ask for: what they have is what their nodes say, and a node
// could use up the quotas of all namespaces that have a pod on it. A mirror pod takes nothing:
// a node puts it into any namespace without being asked.
func (*pods) Usage(obj runtime.Object) (corev1.ResourceList, error) {
	pod, err := as[corev1.Pod](obj)
	if err != nil {
		return nil, err
	}
	if kinds.IsMirror(pod) {
		return corev1.ResourceList{}, nil
	}
	stored := corev1.ResourceList{objects("pods"): number(1)}
	if over(pod, time.Now()) {
		return stored, nil
	}
	o := resourcehelper.PodResourcesOptions{}
	return quota.Add(stored, usage(resourcehelper.PodRequests(pod, o), resourcehelper.PodLimits(pod, o))), nil
}

func (p *pods) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	return generic.CalculateUsageStats(o, p.list, podInScope, p.Usage)
}

// over: a pod on a node that was lost stays although it should be gone. It must not keep
// another from being made in its place.
func over(p *corev1.Pod, now time.Time) bool {
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if p.DeletionTimestamp == nil || p.DeletionGracePeriodSeconds == nil {
		return false
	}
	return now.After(p.DeletionTimestamp.Add(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second))
}

// usage names requests and limits as quotas do.
func usage(requests, limits corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{corev1.ResourcePods: number(1)}
	for name, amount := range requests {
		switch asked := corev1.DefaultResourceRequestsPrefix + name; {
		case divisible(name) || kinds.IsHugePages(name):
			out[name], out[asked] = amount, amount
		case kinds.IsExtended(name) || isDeviceClass(name):
			out[asked] = amount
		}
	}
	for name, amount := range limits {
		if divisible(name) {
			out["limits."+name] = amount
		}
	}
	return out
}

func divisible(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

// isDeviceClass tells whether a resource is the devices of a class.
func isDeviceClass(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), "deviceclass.resource.kubernetes.io/")
}
