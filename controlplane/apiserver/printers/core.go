// Tables of the core group, but for pods and volumes.

package printers

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

func coreTable(gr schema.GroupResource) rest.TableConvertor {
	switch gr.Resource {
	case "pods":
		return podTable(gr)
	case "nodes":
		return nodeTable(gr)
	case "events":
		return eventTable(gr)
	case "services":
		return serviceTable(gr)
	case "namespaces":
		return newTable(gr, columns{nameColumn(), text("Status", "The status of the namespace"), ageColumn()},
			func(o *corev1.Namespace, now time.Time) []any {
				return []any{o.Name, string(o.Status.Phase), age(o.CreationTimestamp, now)}
			})
	case "endpoints":
		doc := corev1.Endpoints{}.SwaggerDoc() //nolint:staticcheck // clients still use the kind
		return newTable(gr, columns{nameColumn(), text("Endpoints", doc["subsets"]), ageColumn()},
			func(o *corev1.Endpoints, now time.Time) []any { //nolint:staticcheck // clients still use the kind
				return []any{o.Name, endpointsCell(o), age(o.CreationTimestamp, now)}
			})
	case "replicationcontrollers":
		return replicationControllerTable(gr)
	case "podtemplates":
		return podTemplateTable(gr)
	case "resourcequotas":
		return resourceQuotaTable(gr)
	case "persistentvolumes":
		return persistentVolumeTable(gr)
	case "persistentvolumeclaims":
		return claimTable(gr)
	default:
		return coreDataTable(gr)
	}
}

// coreDataTable has the kinds of which only a count is shown.
func coreDataTable(gr schema.GroupResource) rest.TableConvertor {
	switch gr.Resource {
	case "secrets":
		doc := corev1.Secret{}.SwaggerDoc()
		return newTable(gr, columns{nameColumn(), text("Type", doc["type"]), text("Data", doc["data"]), ageColumn()},
			func(o *corev1.Secret, now time.Time) []any {
				return []any{o.Name, string(o.Type), int64(len(o.Data)), age(o.CreationTimestamp, now)}
			})
	case "configmaps":
		return newTable(gr, columns{nameColumn(), text("Data", corev1.ConfigMap{}.SwaggerDoc()["data"]), ageColumn()},
			func(o *corev1.ConfigMap, now time.Time) []any {
				return []any{o.Name, int64(len(o.Data) + len(o.BinaryData)), age(o.CreationTimestamp, now)}
			})
	case "serviceaccounts":
		return newTable(gr, columns{nameColumn(), text("Secrets", corev1.ServiceAccount{}.SwaggerDoc()["secrets"]), ageColumn()},
			func(o *corev1.ServiceAccount, now time.Time) []any {
				return []any{o.Name, int64(len(o.Secrets)), age(o.CreationTimestamp, now)}
			})
	default:
		return nil
	}
}

func nodeTable(gr schema.GroupResource) rest.TableConvertor {
	info := corev1.NodeSystemInfo{}.SwaggerDoc()
	addresses := corev1.NodeStatus{}.SwaggerDoc()["addresses"]
	return newTable(gr, columns{
		nameColumn(),
		text("Status", "The status of the node"),
		text("Roles", "The roles of the node"),
		ageColumn(),
		text("Version", info["kubeletVersion"]),
		wide(text("Internal-IP", addresses)),
		wide(text("External-IP", addresses)),
		wide(text("OS-Image", info["osImage"])),
		wide(text("Kernel-Version", info["kernelVersion"])),
		wide(text("Container-Runtime", info["containerRuntimeVersion"])),
	}, func(o *corev1.Node, now time.Time) []any {
		i := o.Status.NodeInfo
		return []any{
			o.Name, nodeStatus(o), nodeRoles(o), age(o.CreationTimestamp, now), i.KubeletVersion,
			nodeAddress(o, corev1.NodeInternalIP), nodeAddress(o, corev1.NodeExternalIP),
			or(i.OSImage, unknown), or(i.KernelVersion, unknown), or(i.ContainerRuntimeVersion, unknown),
		}
	})
}

// nodeStatus is Ready, NotReady (which covers a condition of status Unknown),
// or Unknown for a node that has never reported. A cordoned node adds
// SchedulingDisabled, which is not a condition.
func nodeStatus(o *corev1.Node) string {
	status := "Unknown"
	for _, c := range o.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		status = "NotReady"
		if c.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if o.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

func nodeRoles(o *corev1.Node) string {
	roles := map[string]bool{}
	for k, v := range o.Labels {
		if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok && role != "" {
			roles[role] = true
		} else if k == "kubernetes.io/role" && v != "" {
			roles[v] = true
		}
	}
	return or(strings.Join(slices.Sorted(maps.Keys(roles)), ","), none)
}

func nodeAddress(o *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range o.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return none
}

func serviceTable(gr schema.GroupResource) rest.TableConvertor {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	return newTable(gr, columns{
		nameColumn(),
		text("Type", doc["type"]),
		text("Cluster-IP", doc["clusterIP"]),
		text("External-IP", doc["externalIPs"]),
		text("Port(s)", doc["ports"]),
		ageColumn(),
		selectorColumn(doc["selector"]),
	}, func(o *corev1.Service, now time.Time) []any {
		ip := o.Spec.ClusterIP
		if ip == "" && len(o.Spec.ClusterIPs) > 0 {
			ip = o.Spec.ClusterIPs[0]
		}
		return []any{
			o.Name, string(o.Spec.Type), or(ip, none), serviceExternalIP(o), servicePorts(o.Spec.Ports),
			age(o.CreationTimestamp, now), labelsCell(o.Spec.Selector),
		}
	})
}

func serviceExternalIP(o *corev1.Service) string {
	switch o.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return or(strings.Join(o.Spec.ExternalIPs, ","), none)
	case corev1.ServiceTypeLoadBalancer:
		var ingress []string
		for _, in := range o.Status.LoadBalancer.Ingress {
			if addr := or(in.IP, in.Hostname); addr != "" {
				ingress = append(ingress, addr)
			}
		}
		slices.Sort(ingress)
		ingress = append(slices.Compact(ingress), o.Spec.ExternalIPs...)
		return or(strings.Join(ingress, ","), "<pending>")
	case corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	default:
		return unknown
	}
}

func servicePorts(ports []corev1.ServicePort) string {
	cells := make([]string, len(ports))
	for i, p := range ports {
		if p.NodePort > 0 {
			cells[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		} else {
			cells[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		}
	}
	return or(strings.Join(cells, ","), none)
}

// endpointsCell lists ready addresses; those without a port, as a headless
// service can have, by the address alone.
func endpointsCell(o *corev1.Endpoints) string { //nolint:staticcheck // clients still use the kind
	var list []string
	for _, s := range o.Subsets {
		for _, a := range s.Addresses {
			if len(s.Ports) == 0 {
				list = append(list, a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				list = append(list, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	return listed(list, none)
}

func replicationControllerTable(gr schema.GroupResource) rest.TableConvertor {
	spec, status := corev1.ReplicationControllerSpec{}.SwaggerDoc(), corev1.ReplicationControllerStatus{}.SwaggerDoc()
	return newTable(gr, slices.Concat(columns{
		nameColumn(),
		integer("Desired", spec["replicas"]),
		integer("Current", status["replicas"]),
		integer("Ready", status["readyReplicas"]),
		ageColumn(),
	}, templateColumns(), columns{selectorColumn(spec["selector"])}), func(o *corev1.ReplicationController, now time.Time) []any {
		var names, images string
		if o.Spec.Template != nil {
			names, images = templateCells(o.Spec.Template.Spec.Containers)
		}
		return []any{
			o.Name, int64(deref(o.Spec.Replicas, 0)), int64(o.Status.Replicas), int64(o.Status.ReadyReplicas),
			age(o.CreationTimestamp, now), names, images, labelsCell(o.Spec.Selector),
		}
	})
}

func podTemplateTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("Containers", "Names of each container in the template."),
		text("Images", "Images referenced by each container in the template."),
		text("Pod Labels", "The labels for the pod template."),
	}, func(o *corev1.PodTemplate, _ time.Time) []any {
		names, images := templateCells(o.Template.Spec.Containers)
		return []any{o.Name, names, images, labelsCell(o.Template.Labels)}
	})
}

func resourceQuotaTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(),
		text("Request", "Request represents a minimum amount of cpu/memory that a container may consume."),
		text("Limit", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
		ageColumn(),
	}, func(o *corev1.ResourceQuota, now time.Time) []any {
		var requests, limits []string
		for _, name := range slices.Sorted(maps.Keys(o.Status.Hard)) {
			used, hard := o.Status.Used[name], o.Status.Hard[name]
			cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
			if strings.HasPrefix(string(name), "limits.") {
				limits = append(limits, cell)
			} else {
				requests = append(requests, cell)
			}
		}
		return []any{o.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(o.CreationTimestamp, now)}
	})
}

// controllerCell names the controller that owns an object.
func controllerCell(o metav1.Object) string {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return none
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return none
	}
	return objectCell(ref.Kind, gv.Group, ref.Name)
}
