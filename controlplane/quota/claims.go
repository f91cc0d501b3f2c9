// Claims to persistent volumes: how many, and how much storage, also of one storage class.

package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/component-helpers/storage/volume"
)

// ofClass stands between a storage class and what is counted of it.
const ofClass = ".storageclass.storage.k8s.io/"

// Claims is the evaluator of claims.
func Claims(list Lister) quota.Evaluator { return &claims{list: list} }

type claims struct {
	unscoped
	list Lister
}

func (*claims) GroupResource() schema.GroupResource { return corev1.Resource("persistentvolumeclaims") }

// Handles: a claim may grow, and its status says how much it was given already.
func (*claims) Handles(a admission.Attributes) bool {
	return a.GetOperation() == admission.Update || a.GetOperation() == admission.Create && a.GetSubresource() == ""
}

func (c *claims) Matches(q *corev1.ResourceQuota, obj runtime.Object) (bool, error) {
	return generic.Matches(q, obj, c.MatchingResources, claimInScope)
}

func (*claims) MatchingScopes(obj runtime.Object, scopes []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	var out []corev1.ScopedResourceSelectorRequirement
	for _, s := range scopes {
		in, err := claimInScope(s, obj)
		if err != nil {
			return nil, err
		}
		if in {
			out = append(out, s)
		}
	}
	return out, nil
}

func (*claims) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	return slices.DeleteFunc(slices.Clone(names), func(name corev1.ResourceName) bool {
		if class, counted, ok := strings.Cut(string(name), ofClass); ok && class != "" {
			name = corev1.ResourceName(counted)
		} else if name == objects("persistentvolumeclaims") {
			return false
		}
		return name != corev1.ResourcePersistentVolumeClaims && name != corev1.ResourceRequestsStorage
	})
}

func (*claims) Usage(obj runtime.Object) (corev1.ResourceList, error) {
	c, err := as[corev1.PersistentVolumeClaim](obj)
	if err != nil {
		return nil, err
	}
	out := corev1.ResourceList{objects("persistentvolumeclaims"): number(1), corev1.ResourcePersistentVolumeClaims: number(1)}
	if size := size(c); size != nil {
		out[corev1.ResourceRequestsStorage] = *size
	}
	if class := volume.GetPersistentVolumeClaimClass(c); class != "" {
		for _, name := range []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage} {
			if amount, ok := out[name]; ok {
				out[corev1.ResourceName(class+ofClass)+name] = amount
			}
		}
	}
	return out, nil
}

// size is what a claim asks for, or more if it was given more, in whole bytes.
func size(c *corev1.PersistentVolumeClaim) *resource.Quantity {
	size, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return nil
	}
	if given, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && given.Cmp(size) > 0 {
		size = given
	}
	size = size.DeepCopy()
	size.RoundUp(0)
	return &size
}

func (c *claims) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	return generic.CalculateUsageStats(o, c.list, claimInScope, c.Usage)
}
