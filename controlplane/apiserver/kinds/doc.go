// Package kinds says what is wrong with an object, field by field, the way
// users of the Kubernetes API know it: a path, what was found there, and what
// would be right.
//
// All functions are pure: they take the object, and for an update the object it
// is to replace, and return a list that is empty if the object is acceptable.
// They expect an object that went through package defaults, but do not panic on
// one that did not. Metadata is not looked at here, apart from the metadata of
// templates and the few annotations that are part of a kind's rules: the API
// server checks it for every kind alike, with the name rule of NameFunc.
//
// The rules are those of Kubernetes 1.37. Where a feature is still alpha there,
// its fields are accepted and only checked for shape, so that a newer client
// is not refused for saying more than this server uses. Nothing here is
// stricter than Kubernetes, but for the bounds of selectors and tolerations.
package kinds

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/api/validate/content"
	apimachineryvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rules are what one kind's strategy calls. A nil func means that the kind has
// no rules for that verb. Objects must be of the kind that the rules were
// asked for; any other is reported as an internal error.
type Rules struct {
	// Create checks a new object.
	Create func(obj runtime.Object) field.ErrorList
	// Update checks obj as the replacement of old, by all but status. It
	// includes what Create checks where Kubernetes checks that again.
	Update func(obj, old runtime.Object) field.ErrorList
	// Status checks obj as the replacement of old through the status subresource.
	Status func(obj, old runtime.Object) field.ErrorList
}

// For returns the rules of a kind. A kind without rules of its own gets the
// zero Rules.
func For(gk schema.GroupKind) Rules {
	r := rulesOf(gk)
	r.Update, r.Status = ratcheting(r.Update), ratcheting(r.Status)
	return timely(r)
}

func rulesOf(gk schema.GroupKind) Rules {
	switch gk.Group {
	case "":
		return coreRules(gk.Kind)
	case "apps":
		return appsRules(gk.Kind)
	case "batch":
		return batchRules(gk.Kind)
	case "rbac.authorization.k8s.io":
		return rbacRules(gk.Kind)
	case "storage.k8s.io":
		return storageRules(gk.Kind)
	case "admissionregistration.k8s.io":
		return admissionRules(gk.Kind)
	case "networking.k8s.io", "discovery.k8s.io":
		return networkRules(gk.Kind)
	default:
		return otherRules(gk)
	}
}

// NameFunc returns the rule for the names of a kind: a DNS subdomain of at most
// 253 characters, unless the kind has its own.
func NameFunc(gk schema.GroupKind) apimachineryvalidation.ValidateNameFunc {
	switch gk.Group {
	case "":
		switch gk.Kind {
		case "Namespace", "Service":
			return apimachineryvalidation.NameIsDNSLabel
		}
	case "rbac.authorization.k8s.io":
		return pathSegment
	case "certificates.k8s.io":
		if gk.Kind == "CertificateSigningRequest" {
			return anyName
		}
	case "networking.k8s.io":
		if gk.Kind == "IPAddress" {
			return ipName
		}
	}
	return apimachineryvalidation.NameIsDNSSubdomain
}

// pathSegment wants a name that can be part of a URL's path. A prefix of one may
// yet become one.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// anyName leaves it to the API server's own check that a name can be part of a
// URL's path.
func anyName(string, bool) []string { return nil }

// ipName wants an IP address in canonical form. No prefix can be one.
func ipName(name string, prefix bool) []string {
	if a, err := netip.ParseAddr(name); prefix || err != nil || a.Zone() != "" || a.String() != name {
		return []string{"must be a canonical form IP address"}
	}
	return nil
}

// create, update and status adapt a typed function.
func create[T runtime.Object](f func(T) field.ErrorList) func(runtime.Object) field.ErrorList {
	return func(obj runtime.Object) field.ErrorList {
		o, ok := obj.(T)
		if !ok {
			return wrongType(obj)
		}
		return f(o)
	}
}

func update[T runtime.Object](f func(obj, old T) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
	return func(obj, old runtime.Object) field.ErrorList {
		o, ok := obj.(T)
		if !ok {
			return wrongType(obj)
		}
		oldO, ok := old.(T)
		if !ok {
			return wrongType(old)
		}
		return f(o, oldO)
	}
}

// anew makes an update function of rules that do not compare with the old object.
func anew[T runtime.Object](f func(T) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
	return update(func(obj, _ T) field.ErrorList { return f(obj) })
}

func coreRules(kind string) Rules {
	switch kind {
	case "Pod":
		return Rules{create(ValidatePod), update(ValidatePodUpdate), update(ValidatePodStatusUpdate)}
	case "Binding":
		return Rules{Create: create(ValidatePodBinding)}
	case "PodTemplate":
		return Rules{Create: create(ValidatePodTemplate), Update: anew(ValidatePodTemplate)}
	case "ReplicationController":
		return Rules{create(ValidateReplicationController), anew(ValidateReplicationController), update(ValidateReplicationControllerStatusUpdate)}
	case "Node":
		return Rules{create(ValidateNode), update(ValidateNodeUpdate), update(ValidateNodeStatusUpdate)}
	case "Namespace":
		return Rules{create(ValidateNamespace), update(ValidateNamespaceUpdate), update(ValidateNamespaceStatusUpdate)}
	case "Service":
		return Rules{create(ValidateService), update(ValidateServiceUpdate), update(ValidateServiceStatusUpdate)}
	case "Endpoints":
		return Rules{Create: create(ValidateEndpoints), Update: anew(ValidateEndpoints)}
	case "Event":
		return Rules{Create: create(ValidateEvent), Update: anew(ValidateEvent)}
	case "Secret":
		return Rules{Create: create(ValidateSecret), Update: update(ValidateSecretUpdate)}
	case "ConfigMap":
		return Rules{Create: create(ValidateConfigMap), Update: update(ValidateConfigMapUpdate)}
	case "ServiceAccount":
		return Rules{Create: create(ValidateServiceAccount), Update: anew(ValidateServiceAccount)}
	case "LimitRange":
		return Rules{Create: create(ValidateLimitRange), Update: anew(ValidateLimitRange)}
	case "ResourceQuota":
		return Rules{create(ValidateResourceQuota), update(ValidateResourceQuotaUpdate), anew(ValidateResourceQuotaStatus)}
	case "PersistentVolume":
		return Rules{create(ValidatePersistentVolume), update(ValidatePersistentVolumeUpdate), nil}
	case "PersistentVolumeClaim":
		return Rules{create(ValidatePersistentVolumeClaim), update(ValidatePersistentVolumeClaimUpdate), anew(ValidatePersistentVolumeClaimStatus)}
	default:
		return Rules{}
	}
}

func appsRules(kind string) Rules {
	switch kind {
	case "Deployment":
		return Rules{create(ValidateDeployment), update(ValidateDeploymentUpdate), update(ValidateDeploymentStatusUpdate)}
	case "ReplicaSet":
		return Rules{create(ValidateReplicaSet), update(ValidateReplicaSetUpdate), update(ValidateReplicaSetStatusUpdate)}
	case "DaemonSet":
		return Rules{create(ValidateDaemonSet), update(ValidateDaemonSetUpdate), update(ValidateDaemonSetStatusUpdate)}
	case "StatefulSet":
		return Rules{create(ValidateStatefulSet), update(ValidateStatefulSetUpdate), update(ValidateStatefulSetStatusUpdate)}
	case "ControllerRevision":
		return Rules{Create: create(ValidateControllerRevision), Update: update(ValidateControllerRevisionUpdate)}
	default:
		return Rules{}
	}
}

func batchRules(kind string) Rules {
	switch kind {
	case "Job":
		return Rules{create(ValidateJob), update(ValidateJobUpdate), update(ValidateJobStatusUpdate)}
	case "CronJob":
		return Rules{Create: create(ValidateCronJob), Update: update(ValidateCronJobUpdate)}
	default:
		return Rules{}
	}
}

func rbacRules(kind string) Rules {
	switch kind {
	case "Role":
		return Rules{Create: create(ValidateRole), Update: anew(ValidateRole)}
	case "ClusterRole":
		return Rules{Create: create(ValidateClusterRole), Update: anew(ValidateClusterRole)}
	case "RoleBinding":
		return Rules{Create: create(ValidateRoleBinding), Update: update(ValidateRoleBindingUpdate)}
	case "ClusterRoleBinding":
		return Rules{Create: create(ValidateClusterRoleBinding), Update: update(ValidateClusterRoleBindingUpdate)}
	default:
		return Rules{}
	}
}

func storageRules(kind string) Rules {
	switch kind {
	case "StorageClass":
		return Rules{Create: create(ValidateStorageClass), Update: update(ValidateStorageClassUpdate)}
	case "CSINode":
		return Rules{Create: create(ValidateCSINode), Update: update(ValidateCSINodeUpdate)}
	case "CSIDriver":
		return Rules{Create: create(ValidateCSIDriver), Update: update(ValidateCSIDriverUpdate)}
	case "VolumeAttachment":
		return Rules{Create: create(ValidateVolumeAttachment), Update: update(ValidateVolumeAttachmentUpdate)}
	default:
		return Rules{}
	}
}

func admissionRules(kind string) Rules {
	switch kind {
	case "ValidatingWebhookConfiguration":
		return Rules{Create: create(ValidateValidatingWebhooks), Update: anew(ValidateValidatingWebhooks)}
	case "MutatingWebhookConfiguration":
		return Rules{Create: create(ValidateMutatingWebhooks), Update: anew(ValidateMutatingWebhooks)}
	case "ValidatingAdmissionPolicy":
		return Rules{Create: create(ValidateAdmissionPolicy), Update: anew(ValidateAdmissionPolicy)}
	case "ValidatingAdmissionPolicyBinding":
		return Rules{Create: create(ValidateAdmissionPolicyBinding), Update: anew(ValidateAdmissionPolicyBinding)}
	default:
		return Rules{}
	}
}

func networkRules(kind string) Rules {
	switch kind {
	case "EndpointSlice":
		return Rules{Create: create(ValidateEndpointSlice), Update: update(ValidateEndpointSliceUpdate)}
	case "NetworkPolicy":
		return Rules{Create: create(ValidateNetworkPolicy), Update: anew(ValidateNetworkPolicy)}
	case "Ingress":
		return Rules{create(ValidateIngress), anew(ValidateIngress), anew(ValidateIngressStatus)}
	case "IngressClass":
		return Rules{Create: create(ValidateIngressClass), Update: update(ValidateIngressClassUpdate)}
	case "ServiceCIDR":
		return Rules{Create: create(ValidateServiceCIDR), Update: update(ValidateServiceCIDRUpdate)}
	case "IPAddress":
		return Rules{Create: create(ValidateIPAddress), Update: update(ValidateIPAddressUpdate)}
	default:
		return Rules{}
	}
}

func otherRules(gk schema.GroupKind) Rules {
	switch gk {
	case schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}:
		return Rules{create(ValidateCertificateSigningRequest), update(ValidateCertificateSigningRequestUpdate), update(ValidateCertificateSigningRequestStatusUpdate)}
	case schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}:
		return Rules{Create: create(ValidateLease), Update: anew(ValidateLease)}
	case schema.GroupKind{Group: "events.k8s.io", Kind: "Event"}:
		return Rules{Create: create(ValidateEventsEvent), Update: update(ValidateEventsEventUpdate)}
	case schema.GroupKind{Group: "flowcontrol.apiserver.k8s.io", Kind: "FlowSchema"}:
		return Rules{create(ValidateFlowSchema), anew(ValidateFlowSchema), anew(ValidateFlowSchemaStatus)}
	case schema.GroupKind{Group: "flowcontrol.apiserver.k8s.io", Kind: "PriorityLevelConfiguration"}:
		return Rules{create(ValidatePriorityLevel), anew(ValidatePriorityLevel), anew(ValidatePriorityLevelStatus)}
	case schema.GroupKind{Group: "node.k8s.io", Kind: "RuntimeClass"}:
		return Rules{Create: create(ValidateRuntimeClass), Update: update(ValidateRuntimeClassUpdate)}
	case schema.GroupKind{Group: "policy", Kind: "PodDisruptionBudget"}:
		return Rules{create(ValidatePodDisruptionBudget), anew(ValidatePodDisruptionBudget), anew(ValidatePodDisruptionBudgetStatus)}
	case schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}:
		return Rules{Create: create(ValidatePriorityClass), Update: update(ValidatePriorityClassUpdate)}
	default:
		return Rules{}
	}
}
