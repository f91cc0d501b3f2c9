// What a service has been given, by its type, and what of it an update keeps. The addresses
// and node ports themselves are given out by the server.

package kinds

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// KeepAllocated fills in what an update leaves out but the service has: clients
// replace a service by what they wrote, without what they were given.
func KeepAllocated(s, old *corev1.Service) {
	if HasClusterIP(s) && HasClusterIP(old) && s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, old.Spec.ClusterIPs
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = old.Spec.IPFamilies
		}
	}
	if HasClusterIP(s) && HasClusterIP(old) && s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
	}
	if HasNodePorts(s) && HasNodePorts(old) {
		keepNodePorts(s, old)
	}
	if s.Spec.HealthCheckNodePort == 0 && WantsHealthPort(s) {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
	dropUnused(s, old)
}

// keepNodePorts gives ports without a node port the one that old gives to the port of that
// name, unless another port asks for it.
func keepNodePorts(s, old *corev1.Service) {
	for i := range s.Spec.Ports {
		p, had := &s.Spec.Ports[i], nodePortOf(old, s.Spec.Ports[i].Name)
		if p.NodePort == 0 && !slices.ContainsFunc(s.Spec.Ports, func(q corev1.ServicePort) bool { return q.NodePort == had }) {
			p.NodePort = had
		}
	}
}

// dropUnused takes from s what its new type cannot have, if the client did not
// ask for it but only sent it along.
func dropUnused(s, old *corev1.Service) {
	is, was := &s.Spec, &old.Spec
	if !HasClusterIP(s) && HasClusterIP(old) && is.ClusterIP == was.ClusterIP {
		is.ClusterIP, is.ClusterIPs, is.IPFamilies, is.IPFamilyPolicy = "", nil, nil, nil
	}
	if !MayHaveNodePorts(s) && MayHaveNodePorts(old) {
		for i := range is.Ports {
			if p := &is.Ports[i]; p.NodePort == nodePortOf(old, p.Name) {
				p.NodePort = 0
			}
		}
	}
	if !WantsHealthPort(s) && is.HealthCheckNodePort == was.HealthCheckNodePort {
		is.HealthCheckNodePort = 0
	}
	if !externallyAccessible(&s.Spec) && externallyAccessible(&old.Spec) && is.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		is.ExternalTrafficPolicy = ""
	}
	if is.Type != corev1.ServiceTypeLoadBalancer && was.Type == corev1.ServiceTypeLoadBalancer {
		if equality.Semantic.DeepEqual(is.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
			is.AllocateLoadBalancerNodePorts = nil
		}
		if equality.Semantic.DeepEqual(is.LoadBalancerClass, was.LoadBalancerClass) {
			is.LoadBalancerClass = nil
		}
	}
}

// nodePortOf is the node port that old gives to the port of that name, 0 if none.
func nodePortOf(old *corev1.Service, name string) int32 {
	for _, q := range old.Spec.Ports {
		if q.Name == name {
			return q.NodePort
		}
	}
	return 0
}

// HasClusterIP tells services that are given an address of the cluster, or say that they
// want none.
func HasClusterIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

// MayHaveNodePorts tells services whose ports may name node ports.
func MayHaveNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// HasNodePorts tells services whose ports are given node ports.
func HasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts)
}

// WantsHealthPort tells services that are given a node port for health checks.
func WantsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}
