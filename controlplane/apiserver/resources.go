// The table of resources.

package apiserver

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// resources is every resource kept in the store. Subresources that are more than
// a status, and resources that are not stored, are added in install.go.
func resources() []row {
	var all []row
	for _, group := range [][]row{coreRows(), workloadRows(), policyRows(), admissionRows(), clusterRows()} {
		all = append(all, group...)
	}
	return all
}

func coreRows() []row {
	v1 := corev1.SchemeGroupVersion
	return []row{
		of[corev1.Namespace, corev1.NamespaceList](v1, "Namespace", "namespaces", "namespace", row{
			short: []string{"ns"}, cluster: true, status: true,
			fields: selecting(namespaceFields), onCreate: creating(newNamespace), onUpdate: updating(keepFinalizers), onStatus: updating(namespaceStatus),
		}),
		of[corev1.Node, corev1.NodeList](v1, "Node", "nodes", "node", row{
			short: []string{"no"}, cluster: true, status: true, ownStatus: true,
			fields: selecting(nodeFields), indexed: "metadata.name",
		}),
		of[corev1.Pod, corev1.PodList](v1, "Pod", "pods", "pod", row{
			short: []string{"po"}, inAll: true, status: true, generation: true,
			fields: selecting(podFields), indexed: "spec.nodeName", grace: podGrace,
			onCreate: creating(newPod), onUpdate: updating(updatePod), onStatus: updating(podStatus),
			statusResets: []string{"metadata.deletionTimestamp", "metadata.ownerReferences"},
		}),
		of[corev1.Secret, corev1.SecretList](v1, "Secret", "secrets", "secret", row{
			fields: selecting(secretFields), indexed: "metadata.name",
		}),
		of[corev1.ConfigMap, corev1.ConfigMapList](v1, "ConfigMap", "configmaps", "configmap", row{
			short: []string{"cm"}, indexed: "metadata.name",
		}),
		of[corev1.ServiceAccount, corev1.ServiceAccountList](v1, "ServiceAccount", "serviceaccounts", "serviceaccount", row{
			short: []string{"sa"},
		}),
		of[corev1.Service, corev1.ServiceList](v1, "Service", "services", "service", row{
			short: []string{"svc"}, inAll: true, status: true, upsert: true,
			fields: selecting(serviceFields), onUpdate: updating(dropBalanced),
		}),
		of[corev1.Endpoints, corev1.EndpointsList](v1, "Endpoints", "endpoints", "endpoints", row{ //nolint:staticcheck // old clients read it still
			short: []string{"ep"}, upsert: true,
		}),
		of[corev1.Event, corev1.EventList](v1, "Event", "events", "event", row{
			short: []string{"ev"}, upsert: true, ttl: true, fields: selecting(eventFields),
		}),
		of[corev1.LimitRange, corev1.LimitRangeList](v1, "LimitRange", "limitranges", "limitrange", row{
			short: []string{"limits"}, upsert: true,
		}),
		of[corev1.ResourceQuota, corev1.ResourceQuotaList](v1, "ResourceQuota", "resourcequotas", "resourcequota", row{
			short: []string{"quota"}, status: true,
		}),
		of[corev1.ReplicationController, corev1.ReplicationControllerList](v1, "ReplicationController", "replicationcontrollers", "replicationcontroller", row{
			short: []string{"rc"}, inAll: true, status: true, generation: true, orphans: true,
			fields: selecting(replicationControllerFields),
		}),
		of[corev1.PodTemplate, corev1.PodTemplateList](v1, "PodTemplate", "podtemplates", "podtemplate", row{
			onCreate: creating(newPodTemplate), onUpdate: updating(updatePodTemplate),
		}),
		of[corev1.PersistentVolume, corev1.PersistentVolumeList](v1, "PersistentVolume", "persistentvolumes", "persistentvolume", row{
			short: []string{"pv"}, cluster: true, status: true, onCreate: creating(newVolume), onStatus: updating(volumeStatus),
		}),
		of[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](v1, "PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim", row{
			short: []string{"pvc"}, status: true, onCreate: creating(newClaim),
		}),
	}
}

func workloadRows() []row {
	apps, batch := appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion
	return []row{
		of[appsv1.Deployment, appsv1.DeploymentList](apps, "Deployment", "deployments", "deployment", row{
			short: []string{"deploy"}, inAll: true, status: true, generation: true,
			onUpdate: updating(updateDeployment), onStatus: updating(deploymentStatus), statusResets: []string{"metadata.labels"},
		}),
		of[appsv1.ReplicaSet, appsv1.ReplicaSetList](apps, "ReplicaSet", "replicasets", "replicaset", row{
			short: []string{"rs"}, inAll: true, status: true, generation: true, fields: selecting(replicaSetFields),
		}),
		of[appsv1.StatefulSet, appsv1.StatefulSetList](apps, "StatefulSet", "statefulsets", "statefulset", row{
			short: []string{"sts"}, inAll: true, status: true, generation: true,
		}),
		of[appsv1.DaemonSet, appsv1.DaemonSetList](apps, "DaemonSet", "daemonsets", "daemonset", row{
			short: []string{"ds"}, inAll: true, status: true, generation: true, onCreate: creating(newDaemonSet), onUpdate: updating(updateDaemonSet),
		}),
		of[appsv1.ControllerRevision, appsv1.ControllerRevisionList](apps, "ControllerRevision", "controllerrevisions", "controllerrevision", row{}),
		of[batchv1.Job, batchv1.JobList](batch, "Job", "jobs", "job", row{
			inAll: true, status: true, generation: true, orphans: true, fields: selecting(jobFields), onCreate: creating(newJob),
		}),
		of[batchv1.CronJob, batchv1.CronJobList](batch, "CronJob", "cronjobs", "cronjob", row{
			short: []string{"cj"}, inAll: true, status: true, generation: true,
		}),
	}
}

func policyRows() []row {
	policy, rbac, flow := policyv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion, flowcontrolv1.SchemeGroupVersion
	return []row{
		of[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList](policy, "PodDisruptionBudget", "poddisruptionbudgets", "poddisruptionbudget", row{
			short: []string{"pdb"}, status: true, generation: true, conditional: true,
		}),
		of[rbacv1.Role, rbacv1.RoleList](rbac, "Role", "roles", "role", row{upsert: true}),
		of[rbacv1.RoleBinding, rbacv1.RoleBindingList](rbac, "RoleBinding", "rolebindings", "rolebinding", row{upsert: true}),
		of[rbacv1.ClusterRole, rbacv1.ClusterRoleList](rbac, "ClusterRole", "clusterroles", "clusterrole", row{cluster: true, upsert: true}),
		of[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList](rbac, "ClusterRoleBinding", "clusterrolebindings", "clusterrolebinding", row{cluster: true, upsert: true}),
		of[schedulingv1.PriorityClass, schedulingv1.PriorityClassList](schedulingv1.SchemeGroupVersion, "PriorityClass", "priorityclasses", "priorityclass", row{
			short: []string{"pc"}, cluster: true, generation: true,
		}),
		of[flowcontrolv1.FlowSchema, flowcontrolv1.FlowSchemaList](flow, "FlowSchema", "flowschemas", "flowschema", row{
			cluster: true, status: true, generation: true,
		}),
		of[flowcontrolv1.PriorityLevelConfiguration, flowcontrolv1.PriorityLevelConfigurationList](flow,
			"PriorityLevelConfiguration", "prioritylevelconfigurations", "prioritylevelconfiguration", row{
				cluster: true, status: true, generation: true,
			}),
		of[nodev1.RuntimeClass, nodev1.RuntimeClassList](nodev1.SchemeGroupVersion, "RuntimeClass", "runtimeclasses", "runtimeclass", row{
			cluster: true, conditional: true,
		}),
		of[certificatesv1.CertificateSigningRequest, certificatesv1.CertificateSigningRequestList](certificatesv1.SchemeGroupVersion,
			"CertificateSigningRequest", "certificatesigningrequests", "certificatesigningrequest", row{
				short: []string{"csr"}, cluster: true, status: true,
				fields: selecting(csrFields), onCreate: creating(newCSR), onUpdate: updating(updateCSR), onStatus: updating(csrStatus),
				statusResets: []string{"status.conditions"},
			}),
	}
}

func admissionRows() []row {
	v1 := admissionv1.SchemeGroupVersion
	return []row{
		of[admissionv1.ValidatingWebhookConfiguration, admissionv1.ValidatingWebhookConfigurationList](v1,
			"ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "validatingwebhookconfiguration", row{
				cluster: true, onCreate: creating(newValidatingWebhooks), onUpdate: updating(updateValidatingWebhooks),
			}),
		of[admissionv1.MutatingWebhookConfiguration, admissionv1.MutatingWebhookConfigurationList](v1,
			"MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "mutatingwebhookconfiguration", row{
				cluster: true, onCreate: creating(newMutatingWebhooks), onUpdate: updating(updateMutatingWebhooks),
			}),
		of[admissionv1.ValidatingAdmissionPolicy, admissionv1.ValidatingAdmissionPolicyList](v1,
			"ValidatingAdmissionPolicy", "validatingadmissionpolicies", "validatingadmissionpolicy", row{
				cluster: true, status: true, generation: true,
			}),
		of[admissionv1.ValidatingAdmissionPolicyBinding, admissionv1.ValidatingAdmissionPolicyBindingList](v1,
			"ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", "validatingadmissionpolicybinding", row{
				cluster: true, generation: true,
			}),
	}
}

func clusterRows() []row {
	storage, net := storagev1.SchemeGroupVersion, networkingv1.SchemeGroupVersion
	return []row{
		of[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "Lease", "leases", "lease", row{
			conditional: true, upsert: true,
		}),
		of[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](discoveryv1.SchemeGroupVersion, "EndpointSlice", "endpointslices", "endpointslice", row{
			onCreate: creating(newEndpointSlice), onUpdate: updating(updateEndpointSlice),
		}),
		of[storagev1.StorageClass, storagev1.StorageClassList](storage, "StorageClass", "storageclasses", "storageclass", row{
			short: []string{"sc"}, cluster: true,
		}),
		of[storagev1.CSINode, storagev1.CSINodeList](storage, "CSINode", "csinodes", "csinode", row{cluster: true, conditional: true}),
		of[storagev1.CSIDriver, storagev1.CSIDriverList](storage, "CSIDriver", "csidrivers", "csidriver", row{
			cluster: true, generation: true, conditional: true,
		}),
		of[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](storage, "CSIStorageCapacity", "csistoragecapacities", "csistoragecapacity", row{conditional: true}),
		of[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](storage, "VolumeAttachment", "volumeattachments", "volumeattachment", row{
			cluster: true, status: true, conditional: true,
		}),
		of[networkingv1.Ingress, networkingv1.IngressList](net, "Ingress", "ingresses", "ingress", row{
			short: []string{"ing"}, status: true, generation: true,
		}),
		of[networkingv1.IngressClass, networkingv1.IngressClassList](net, "IngressClass", "ingressclasses", "ingressclass", row{
			cluster: true, generation: true,
		}),
		of[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](net, "ServiceCIDR", "servicecidrs", "servicecidr", row{
			cluster: true, status: true,
		}),
		of[networkingv1.IPAddress, networkingv1.IPAddressList](net, "IPAddress", "ipaddresses", "ipaddress", row{
			short: []string{"ip"}, cluster: true,
		}),
		of[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](net, "NetworkPolicy", "networkpolicies", "networkpolicy", row{
			short: []string{"netpol"}, generation: true,
		}),
	}
}
