// Services: how many, and how many node ports and load balancers.

package quota

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

var serviceResources = []corev1.ResourceName{
	objects("services"), corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

// Services is the evaluator of services.
func Services(list Lister) quota.Evaluator { return &services{list: list} }

type services struct {
	unscoped
	list Lister
}

func (*services) GroupResource() schema.GroupResource { return corev1.Resource("services") }

// Handles: an update can change the type.
func (*services) Handles(a admission.Attributes) bool {
	return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
}

func (s *services) Matches(q *corev1.ResourceQuota, obj runtime.Object) (bool, error) {
	return generic.Matches(q, obj, s.MatchingResources, generic.MatchesNoScopeFunc)
}

func (*services) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	return quota.Intersection(names, serviceResources)
}

// Usage goes by the ports that a service is about to get: it has no node ports yet when
// it is measured first.
func (*services) Usage(obj runtime.Object) (corev1.ResourceList, error) {
	s, err := as[corev1.Service](obj)
	if err != nil {
		return nil, err
	}
	ports, balancers := 0, 0
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers = 1
		allocate := s.Spec.AllocateLoadBalancerNodePorts
		for i := range s.Spec.Ports {
			if allocate == nil || *allocate || s.Spec.Ports[i].NodePort != 0 {
				ports++
			}
		}
	}
	return corev1.ResourceList{
		objects("services"): number(1), corev1.ResourceServices: number(1),
		corev1.ResourceServicesNodePorts: number(ports), corev1.ResourceServicesLoadBalancers: number(balancers),
	}, nil
}

func (s *services) UsageStats(o quota.UsageStatsOptions) (quota.UsageStats, error) {
	return generic.CalculateUsageStats(o, s.list, generic.MatchesNoScopeFunc, s.Usage)
}
