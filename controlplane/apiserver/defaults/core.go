// Defaults of the other kinds of the core group.

package defaults

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NamespaceLabel sets the label kubernetes.io/metadata.name to the namespace's
// name. It does nothing while the name is still to be generated, so a strategy
// calls it again in its prepare step.
func NamespaceLabel(o *corev1.Namespace) {
	if o.Name == "" || o.Labels[corev1.LabelMetadataName] == o.Name {
		return
	}
	if o.Labels == nil {
		o.Labels = make(map[string]string, 1)
	}
	o.Labels[corev1.LabelMetadataName] = o.Name
}

func namespace(o *corev1.Namespace) {
	NamespaceLabel(o)
	set(&o.Status.Phase, corev1.NamespaceActive)
}

// node keeps podCIDR and podCIDRs in step and lets a node that says nothing of
// what is allocatable offer all it has.
func node(o *corev1.Node) {
	switch {
	case o.Spec.PodCIDR != "" && len(o.Spec.PodCIDRs) == 0:
		o.Spec.PodCIDRs = []string{o.Spec.PodCIDR}
	case o.Spec.PodCIDR == "" && len(o.Spec.PodCIDRs) > 0:
		o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	}
	resourceList(o.Status.Capacity)
	if o.Status.Allocatable == nil && o.Status.Capacity != nil {
		o.Status.Allocatable = o.Status.Capacity.DeepCopy()
	}
	resourceList(o.Status.Allocatable)
}

// secret moves stringData, which is only a convenience for writing, into data.
func secret(o *corev1.Secret) {
	set(&o.Type, corev1.SecretTypeOpaque)
	if len(o.StringData) > 0 && o.Data == nil {
		o.Data = make(map[string][]byte, len(o.StringData))
	}
	for k, v := range o.StringData {
		o.Data[k] = []byte(v)
	}
	o.StringData = nil
}

func endpoints(o *corev1.Endpoints) { //nolint:staticcheck // clients still use the kind
	for i := range o.Subsets {
		for j := range o.Subsets[i].Ports {
			set(&o.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

// service sets what does not depend on the cluster. Addresses and families are
// allocated later; see ServiceAddresses.
func service(o *corev1.Service) {
	s := &o.Spec
	set(&s.SessionAffinity, corev1.ServiceAffinityNone)
	switch s.SessionAffinity {
	case corev1.ServiceAffinityNone:
		s.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		setPtr(&s.SessionAffinityConfig, corev1.SessionAffinityConfig{})
		setPtr(&s.SessionAffinityConfig.ClientIP, corev1.ClientIPConfig{})
		setPtr(&s.SessionAffinityConfig.ClientIP.TimeoutSeconds, corev1.DefaultClientIPServiceAffinitySeconds)
	}
	set(&s.Type, corev1.ServiceTypeClusterIP)
	for i := range s.Ports {
		p := &s.Ports[i]
		set(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(s) {
		set(&s.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if s.Type != corev1.ServiceTypeExternalName {
		setPtr(&s.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if s.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	setPtr(&s.AllocateLoadBalancerNodePorts, true)
	for i := range o.Status.LoadBalancer.Ingress {
		if in := &o.Status.LoadBalancer.Ingress[i]; in.IP != "" {
			setPtr(&in.IPMode, corev1.LoadBalancerIPModeVIP)
		}
	}
}

// externallyAccessible tells whether traffic from outside the cluster can
// reach the service at all.
func externallyAccessible(s *corev1.ServiceSpec) bool {
	switch s.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(s.ExternalIPs) > 0
	default:
		return false
	}
}

// ServiceAddresses makes the fields that describe a service's addresses agree:
// clusterIP is the first of clusterIPs, and a service of a single-stack
// cluster of the given family says so. Services of type ExternalName have
// neither. A strategy calls it in its prepare step, before and after it
// allocates an address.
func ServiceAddresses(o *corev1.Service, family corev1.IPFamily) {
	s := &o.Spec
	if s.Type == corev1.ServiceTypeExternalName {
		return
	}
	switch {
	case s.ClusterIP != "" && len(s.ClusterIPs) == 0:
		s.ClusterIPs = []string{s.ClusterIP}
	case s.ClusterIP == "" && len(s.ClusterIPs) > 0:
		s.ClusterIP = s.ClusterIPs[0]
	}
	setPtr(&s.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)
	if len(s.IPFamilies) == 0 {
		s.IPFamilies = []corev1.IPFamily{family}
	}
}

func limitRange(o *corev1.LimitRange) {
	for i := range o.Spec.Limits {
		l := &o.Spec.Limits[i]
		if l.Type == corev1.LimitTypeContainer {
			inherit(&l.Default, l.Max)
			inherit(&l.DefaultRequest, l.Default)
			inherit(&l.DefaultRequest, l.Min)
		}
		for _, list := range []corev1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
			resourceList(list)
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

func resourceQuota(o *corev1.ResourceQuota) {
	resourceList(o.Spec.Hard)
	resourceList(o.Status.Hard)
	resourceList(o.Status.Used)
}

func replicationController(o *corev1.ReplicationController) {
	setPtr(&o.Spec.Replicas, 1)
	t := o.Spec.Template
	if t == nil {
		return
	}
	podTemplateSpec(t)
	if len(o.Spec.Selector) == 0 {
		o.Spec.Selector = maps.Clone(t.Labels)
	}
	if len(o.Labels) == 0 {
		o.Labels = maps.Clone(t.Labels)
	}
}
