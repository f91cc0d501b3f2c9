// Defaults of the kinds of the small groups.

package defaults

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
)

func tokenRequest(o *authenticationv1.TokenRequest) {
	setPtr(&o.Spec.ExpirationSeconds, tokenExpiration)
}

func endpointSlice(o *discoveryv1.EndpointSlice) {
	for i := range o.Ports {
		setPtr(&o.Ports[i].Name, "")
		setPtr(&o.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

func flowSchema(o *flowcontrolv1.FlowSchema) { set(&o.Spec.MatchingPrecedence, 1000) }

func priorityLevel(o *flowcontrolv1.PriorityLevelConfiguration) {
	if e := o.Spec.Exempt; e != nil {
		setPtr(&e.NominalConcurrencyShares, 0)
		setPtr(&e.LendablePercent, 0)
	}
	l := o.Spec.Limited
	if l == nil {
		return
	}
	setPtr(&l.NominalConcurrencyShares, 30)
	setPtr(&l.LendablePercent, 0)
	if q := l.LimitResponse.Queuing; q != nil {
		set(&q.Queues, 64)
		set(&q.HandSize, 8)
		set(&q.QueueLengthLimit, 50)
	}
}

func ingressClass(o *networkingv1.IngressClass) {
	if o.Spec.Parameters != nil {
		setPtr(&o.Spec.Parameters.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
	}
}

// networkPolicy states the directions a policy covers: always ingress, and
// egress where it has a rule for it.
func networkPolicy(o *networkingv1.NetworkPolicy) {
	s := &o.Spec
	for i := range s.Ingress {
		policyPorts(s.Ingress[i].Ports)
	}
	for i := range s.Egress {
		policyPorts(s.Egress[i].Ports)
	}
	if len(s.PolicyTypes) > 0 {
		return
	}
	s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if len(s.Egress) > 0 {
		s.PolicyTypes = append(s.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
}

func policyPorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		setPtr(&ports[i].Protocol, corev1.ProtocolTCP)
	}
}

func runtimeClass(o *nodev1.RuntimeClass) {
	if o.Overhead != nil {
		resourceList(o.Overhead.PodFixed)
	}
}

// subjects completes the references of a role binding, given its subjects and
// the role it refers to.
func subjects(list []rbacv1.Subject, role *rbacv1.RoleRef) {
	set(&role.APIGroup, rbacv1.GroupName)
	for i := range list {
		switch list[i].Kind {
		case rbacv1.UserKind, rbacv1.GroupKind:
			set(&list[i].APIGroup, rbacv1.GroupName)
		}
	}
}

func priorityClass(o *schedulingv1.PriorityClass) {
	setPtr(&o.PreemptionPolicy, corev1.PreemptLowerPriority)
}

func storageClass(o *storagev1.StorageClass) {
	setPtr(&o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	setPtr(&o.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

func csiDriver(o *storagev1.CSIDriver) {
	s := &o.Spec
	setPtr(&s.AttachRequired, true)
	setPtr(&s.PodInfoOnMount, false)
	setPtr(&s.StorageCapacity, false)
	setPtr(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	setPtr(&s.RequiresRepublish, false)
	setPtr(&s.SELinuxMount, false)
}

func volumeAttachment(o *storagev1.VolumeAttachment) {
	if s := o.Spec.Source.InlineVolumeSpec; s != nil {
		persistentVolumeSpec(s)
	}
}
