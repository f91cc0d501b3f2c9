package admission

// Warnings about what is stored and has no effect.

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
)

// withoutEffect are the kinds that nothing here acts on, and what does not happen.
var withoutEffect = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                      "no pods are made",
	{Group: "apps", Resource: "deployments"}:                  "no pods are made",
	{Group: "apps", Resource: "daemonsets"}:                   "no pods are made",
	{Group: "apps", Resource: "statefulsets"}:                 "no pods are made",
	{Group: "batch", Resource: "cronjobs"}:                    "no jobs are made",
	{Group: "networking.k8s.io", Resource: "ingresses"}:       "nothing listens for it",
	{Group: "networking.k8s.io", Resource: "networkpolicies"}: "no traffic is stopped",
	{Resource: "persistentvolumeclaims"}:                      "no volume is bound",
	{Group: "storage.k8s.io", Resource: "storageclasses"}:     "no volume is made",
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:  "no volume is attached",
}

// Effect warns whoever makes an object that nothing here acts on. Another's controller
// may, so the object is stored.
func Effect() admission.Interface { return &effect{admission.NewHandler(admission.Create)} }

type effect struct{ *admission.Handler }

var _ admission.ValidationInterface = (*effect)(nil)

func (*effect) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	kind := a.GetResource().GroupResource()
	if missing, ok := withoutEffect[kind]; ok {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s is stored and has no effect here: no controller of this server acts on %s, so %s", a.GetKind().Kind, kind.Resource, missing))
	}
	if s, ok := a.GetObject().(*corev1.Service); ok && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		warning.AddWarning(ctx, "", "Service of type LoadBalancer gets no address here: no controller of this server makes load balancers")
	}
	return nil
}
