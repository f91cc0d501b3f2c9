package admission

// Warnings about what is stored and has no effect.

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
)

// withoutEffect are the kinds that nothing here acts on, and what does not happen.
var withoutEffect = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                        "no pods are made",
	{Group: "networking.k8s.io", Resource: "ingresses"}:         "nothing listens for it",
	{Group: "networking.k8s.io", Resource: "networkpolicies"}:   "no traffic is stopped",
	{Resource: "persistentvolumeclaims"}:                        "no volume is bound",
	{Group: "storage.k8s.io", Resource: "storageclasses"}:       "no volume is made",
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:    "no volume is attached",
	{Resource: "persistentvolumes"}:                             "no claim is bound to it",
	{Group: "storage.k8s.io", Resource: "csidrivers"}:           "no volume is attached",
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}: "no pod is placed by it",
	{Group: "networking.k8s.io", Resource: "ingressclasses"}:    "no ingress is given to it",
	{Group: "networking.k8s.io", Resource: "servicecidrs"}:      "no service gets an address of it",
	{Group: "networking.k8s.io", Resource: "ipaddresses"}:       "no service is kept from the address",
	{Group: "node.k8s.io", Resource: "runtimeclasses"}:          "no pod runs otherwise",
}

// actsOn are the controllers that act on a kind, and what does not happen without them.
var actsOn = map[schema.GroupResource]struct{ controller, missing string }{
	{Group: "apps", Resource: "deployments"}:            {"deployment-controller", "no pods are made"},
	{Group: "apps", Resource: "replicasets"}:            {"replicaset-controller", "no pods are made"},
	{Group: "apps", Resource: "statefulsets"}:           {"statefulset-controller", "no pods are made"},
	{Group: "apps", Resource: "daemonsets"}:             {"daemonset-controller", "no pods are made"},
	{Group: "batch", Resource: "jobs"}:                  {"job-controller", "no pods are made"},
	{Group: "batch", Resource: "cronjobs"}:              {"cronjob-controller", "no jobs are made"},
	{Group: "policy", Resource: "poddisruptionbudgets"}: {"disruption-controller", "its pods cannot be evicted"},
	{Resource: "resourcequotas"}:                        {"resourcequota-controller", "what is in use is not counted"},
}

// Effect warns whoever makes an object that nothing here acts on, or makes one of an
// object that there is. Another's controller may act on it, so the object is stored.
// Balances says whether this server listens for Services, and runs whether it runs the
// controller of a name; nil means all.
func Effect(balances bool, runs func(controller string) bool) admission.Interface {
	return &effect{admission.NewHandler(admission.Create, admission.Update), balances, runs}
}

type effect struct {
	*admission.Handler
	balances bool
	runs     func(controller string) bool
}

var _ admission.ValidationInterface = (*effect)(nil)

func (e *effect) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	kind := a.GetResource().GroupResource()
	if missing, ok := withoutEffect[kind]; ok && a.GetOperation() == admission.Create {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s is stored and has no effect here: no controller of this server acts on %s, so %s", a.GetKind().Kind, kind.Resource, missing))
	}
	if acts, ok := actsOn[kind]; ok && a.GetOperation() == admission.Create && e.runs != nil && !e.runs(acts.controller) {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s is stored and has no effect here: this server runs no %s (--controllers), so %s", a.GetKind().Kind, acts.controller, acts.missing))
	}
	if said := ineffective(a.GetObject(), e.balances); said != "" && said != ineffective(a.GetOldObject(), e.balances) {
		warning.AddWarning(ctx, "", said)
	}
	return nil
}

// ineffective is what to say of one object of a kind that is acted on otherwise; empty for
// nothing.
func ineffective(obj runtime.Object, balances bool) string {
	switch o := obj.(type) {
	case *corev1.Service:
		if o.Spec.Type == corev1.ServiceTypeNodePort {
			return "Service of type NodePort: only nodes with kube-proxy listen on its node ports; services/proxy and port-forward reach it in any case"
		}
		if len(o.Spec.ExternalIPs) > 0 {
			return "Service with externalIPs: nothing listens at them here"
		}
		if o.Spec.Type == corev1.ServiceTypeLoadBalancer && o.Spec.LoadBalancerClass != nil {
			return "Service of type LoadBalancer with a loadBalancerClass gets no address of this server: the class is another implementation's"
		}
		if o.Spec.Type == corev1.ServiceTypeLoadBalancer && !balances {
			return "Service of type LoadBalancer gets no address here: this server listens for none (--load-balancer-addresses)"
		}
	case *appsv1.StatefulSet:
		if len(o.Spec.VolumeClaimTemplates) > 0 {
			return "StatefulSet with volumeClaimTemplates gets its claims here and no volumes: no controller of this server binds a claim, and no agent mounts one"
		}
	}
	return ""
}
