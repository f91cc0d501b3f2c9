// The kind Node.

package kinds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	netutils "k8s.io/utils/net"
)

func nodes() Kind {
	return of[corev1.Node, corev1.NodeList](corev1.SchemeGroupVersion, "Node", "nodes", "node", Kind{
		short: []string{"no"}, cluster: true, status: true, ownStatus: true,
		fields: selecting(nodeFields), indexed: "metadata.name",
		rules:    Rules{create(validateNode), update(validateNodeUpdate), update(validateNodeStatusUpdate)},
		defaults: defaulting(defaultNode),
		table:    nodeTable,
	})
}

func nodeFields(n *corev1.Node) fields.Set {
	return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
}

// defaultNode keeps podCIDR and podCIDRs in step and lets a node that says nothing of
// what is allocatable offer all it has.
func defaultNode(o *corev1.Node) {
	switch {
	case o.Spec.PodCIDR != "" && len(o.Spec.PodCIDRs) == 0:
		o.Spec.PodCIDRs = []string{o.Spec.PodCIDR}
	case o.Spec.PodCIDR == "" && len(o.Spec.PodCIDRs) > 0:
		o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	}
	defaultResourceList(o.Status.Capacity)
	if o.Status.Allocatable == nil && o.Status.Capacity != nil {
		o.Status.Allocatable = o.Status.Capacity.DeepCopy()
	}
	defaultResourceList(o.Status.Allocatable)
}

// validateNode checks a node that registers. It need not say anything but its
// name: a machine that has not reported yet is a node like any other.
func validateNode(n *corev1.Node) field.ErrorList {
	spec := field.NewPath("spec")
	errs := taints(n.Spec.Taints, spec.Child("taints"))
	errs = append(errs, podCIDRs(&n.Spec, spec)...)
	return append(errs, nodeStatus(&n.Status, field.NewPath("status"))...)
}

// validateNodeUpdate checks a change of a node. What networks and machines are
// built around is set once.
func validateNodeUpdate(n, old *corev1.Node) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateNode(n)
	if len(old.Spec.PodCIDRs) > 0 {
		at := spec.Child("podCIDRs")
		if len(n.Spec.PodCIDRs) != len(old.Spec.PodCIDRs) {
			errs = append(errs, field.Forbidden(at, "node updates may not change podCIDR except from \"\" to valid"))
		} else {
			for i, c := range n.Spec.PodCIDRs {
				if c != old.Spec.PodCIDRs[i] {
					errs = append(errs, field.Forbidden(at.Index(i), "node updates may not change podCIDR except from \"\" to valid"))
				}
			}
		}
	}
	if old.Spec.ProviderID != "" && n.Spec.ProviderID != old.Spec.ProviderID {
		errs = append(errs, field.Forbidden(spec.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	return errs
}

// validateNodeStatusUpdate checks what a node reports of itself.
func validateNodeStatusUpdate(n, _ *corev1.Node) field.ErrorList {
	return nodeStatus(&n.Status, field.NewPath("status"))
}

func nodeStatus(s *corev1.NodeStatus, p *field.Path) field.ErrorList {
	errs := nodeResources(s.Capacity, p.Child("capacity"))
	errs = append(errs, nodeResources(s.Allocatable, p.Child("allocatable"))...)
	addresses := map[corev1.NodeAddress]bool{}
	for i, a := range s.Addresses {
		if addresses[a] {
			errs = append(errs, field.Duplicate(p.Child("addresses").Index(i), a))
		}
		addresses[a] = true
	}
	types := map[corev1.NodeConditionType]bool{}
	for i, c := range s.Conditions {
		at := p.Child("conditions").Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		} else if types[c.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		types[c.Type] = true
		errs = append(errs, oneOf(c.Status, at.Child("status"), corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown)...)
	}
	return errs
}

// podCIDRs checks the ranges a node gives its pods addresses from: valid, at
// most one of each family, and the older singular field equal to the first.
func podCIDRs(s *corev1.NodeSpec, p *field.Path) field.ErrorList {
	at := p.Child("podCIDRs")
	var errs field.ErrorList
	for i, c := range s.PodCIDRs {
		errs = append(errs, cidr(c, at.Index(i))...)
	}
	if s.PodCIDR != "" && !slices.Equal(s.PodCIDRs[:min(1, len(s.PodCIDRs))], []string{s.PodCIDR}) {
		errs = append(errs, field.Invalid(at.Index(0), s.PodCIDRs, "must be equal to spec.podCIDR"))
	}
	if len(errs) > 0 || len(s.PodCIDRs) < 2 {
		return errs
	}
	dual, err := netutils.IsDualStackCIDRStrings(s.PodCIDRs)
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("invalid PodCIDRs: %w", err))}
	}
	if !dual || len(s.PodCIDRs) > 2 {
		errs = append(errs, field.Invalid(at, s.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	return errs
}

// nodeResources checks what a node says it has.
func nodeResources(l corev1.ResourceList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sortedNames(l) {
		at := p.Key(string(name))
		errs = append(errs, validateResourceQuantity(name, l[name], at)...)
	}
	return errs
}

// taints checks a node's taints, of which there is one for each key and effect.
func taints(list []corev1.Taint, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[[2]string]bool{}
	for i := range list {
		t, at := &list[i], p.Index(i)
		errs = append(errs, labelName(t.Key, at.Child("key"))...)
		errs = append(errs, messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		errs = append(errs, taintEffect(t.Effect, at.Child("effect"))...)
		key := [2]string{t.Key, string(t.Effect)}
		if seen[key] {
			e := field.Duplicate(at, t)
			e.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, e)
		}
		seen[key] = true
	}
	return errs
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
			o.Name, nodeStatusCell(o), nodeRoles(o), age(o.CreationTimestamp, now), i.KubeletVersion,
			nodeAddress(o, corev1.NodeInternalIP), nodeAddress(o, corev1.NodeExternalIP),
			or(i.OSImage, unknown), or(i.KernelVersion, unknown), or(i.ContainerRuntimeVersion, unknown),
		}
	})
}

// nodeStatusCell is Ready, NotReady (which covers a condition of status Unknown),
// or Unknown for a node that has never reported. A cordoned node adds
// SchedulingDisabled, which is not a condition.
func nodeStatusCell(o *corev1.Node) string {
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

// RememberedNode reads nodes from the watch cache of store, which may be a moment behind. One that is
// not in there yet is read from the store.
func RememberedNode(store *genericregistry.Store) func(ctx context.Context, name string) (*corev1.Node, error) {
	return func(ctx context.Context, name string) (*corev1.Node, error) {
		obj, err := store.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			obj, err = store.Get(ctx, name, &metav1.GetOptions{})
		}
		if err != nil {
			return nil, err
		}
		n, ok := obj.(*corev1.Node)
		if !ok {
			return nil, fmt.Errorf("store of nodes holds a %T", obj)
		}
		return n, nil
	}
}
