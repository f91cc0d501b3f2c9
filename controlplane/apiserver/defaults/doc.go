// Package defaults fills in what a client left out of an object, as users of
// the Kubernetes API expect it: a pod's restart policy, a service's type, the
// replicas of a deployment.
//
// A defaulting function is pure: it looks at one object, changes only fields
// that are unset, and applied twice it changes nothing the second time. The
// API server applies them through the scheme, once after every decode, so an
// object read from the store gets the defaults of today and not those of the
// day it was written.
//
// The same Go types serve as the v1 and as the internal version here, so the
// things that Kubernetes does while it converts between the two are done here
// as well: stringData of a secret moves to data, and fields that exist in a
// singular and a plural form (podIP and podIPs, podCIDR and podCIDRs) are kept
// in step.
//
// What needs more than the object (admission, allocation of addresses) is not
// here. The few things that need the object's final name or uid are exported
// functions for the strategy's prepare step.
package defaults

import (
	"errors"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme registers a defaulting function for every kind that has
// defaults. The kinds themselves need not be registered yet. It fails only on
// a nil scheme.
func AddToScheme(s *runtime.Scheme) error {
	if s == nil {
		return errors.New("add defaults: scheme is nil")
	}
	addCore(s)
	add(s, func(o *admissionv1.ValidatingWebhookConfiguration) { validatingWebhooks(o) })
	add(s, func(o *admissionv1.MutatingWebhookConfiguration) { mutatingWebhooks(o) })
	add(s, func(o *admissionv1.ValidatingAdmissionPolicy) { admissionPolicy(o) })
	add(s, func(o *admissionv1.ValidatingAdmissionPolicyBinding) { admissionPolicyBinding(o) })
	add(s, func(o *appsv1.Deployment) { deployment(o) })
	add(s, func(o *appsv1.DaemonSet) { daemonSet(o) })
	add(s, func(o *appsv1.ReplicaSet) { replicaSet(o) })
	add(s, func(o *appsv1.StatefulSet) { statefulSet(o) })
	add(s, func(o *batchv1.Job) { job(o) })
	add(s, func(o *batchv1.CronJob) { cronJob(o) })
	add(s, func(o *authenticationv1.TokenRequest) { tokenRequest(o) })
	add(s, func(o *discoveryv1.EndpointSlice) { endpointSlice(o) })
	add(s, func(o *flowcontrolv1.FlowSchema) { flowSchema(o) })
	add(s, func(o *flowcontrolv1.PriorityLevelConfiguration) { priorityLevel(o) })
	add(s, func(o *networkingv1.IngressClass) { ingressClass(o) })
	add(s, func(o *networkingv1.NetworkPolicy) { networkPolicy(o) })
	add(s, func(o *nodev1.RuntimeClass) { runtimeClass(o) })
	add(s, func(o *rbacv1.RoleBinding) { subjects(o.Subjects, &o.RoleRef) })
	add(s, func(o *rbacv1.ClusterRoleBinding) { subjects(o.Subjects, &o.RoleRef) })
	add(s, func(o *schedulingv1.PriorityClass) { priorityClass(o) })
	add(s, func(o *storagev1.StorageClass) { storageClass(o) })
	add(s, func(o *storagev1.CSIDriver) { csiDriver(o) })
	add(s, func(o *storagev1.VolumeAttachment) { volumeAttachment(o) })
	return nil
}

func addCore(s *runtime.Scheme) {
	add(s, func(o *corev1.Pod) { pod(o) })
	add(s, func(o *corev1.PodTemplate) { podTemplateSpec(&o.Template) })
	add(s, func(o *corev1.ReplicationController) { replicationController(o) })
	add(s, func(o *corev1.Service) { service(o) })
	add(s, func(o *corev1.Endpoints) { endpoints(o) }) //nolint:staticcheck // clients still use the kind
	add(s, func(o *corev1.Secret) { secret(o) })
	add(s, func(o *corev1.Namespace) { namespace(o) })
	add(s, func(o *corev1.Node) { node(o) })
	add(s, func(o *corev1.LimitRange) { limitRange(o) })
	add(s, func(o *corev1.ResourceQuota) { resourceQuota(o) })
	add(s, func(o *corev1.PersistentVolume) { persistentVolume(o) })
	add(s, func(o *corev1.PersistentVolumeClaim) { persistentVolumeClaim(o) })
}

// add registers f for the type T. A list has no defaulting of its own: clients
// send single objects, and the store decodes item by item.
func add[T runtime.Object](s *runtime.Scheme, f func(T)) {
	var zero T
	s.AddTypeDefaultingFunc(zero, func(o any) { f(o.(T)) })
}

// set gives *p the value v if it is the zero value.
func set[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// setPtr makes *p point to a new v if it is nil.
func setPtr[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}
