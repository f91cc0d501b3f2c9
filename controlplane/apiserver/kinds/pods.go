// The kind Pod: its entry, and how pods are written and deleted. The other files pods_*.go
// are parts of it.

package kinds

import (
	"context"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/hawser-project/hawser/auth/apiclient"
)

func pods() Kind {
	return of[corev1.Pod, corev1.PodList](corev1.SchemeGroupVersion, "Pod", "pods", "pod", Kind{
		short: []string{"po"}, category: "all", status: true, generation: true,
		fields: selecting(podFields), indexed: "spec.nodeName", grace: podGrace,
		onCreate: creating(newPod), onUpdate: updating(updatePod), onStatus: updating(podStatus),
		statusResets: []string{"metadata.deletionTimestamp", "metadata.ownerReferences"},
		rules:        Rules{create(validatePod), update(validatePodUpdate), update(validatePodStatusUpdate)},
		warnings:     warningOf(newPodWarnings),
		defaults:     defaulting(defaultPod),
		table:        podTable,
		more:         morePods,
	})
}

func podFields(p *corev1.Pod) fields.Set {
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	} else if parsed := net.ParseIP(p.Status.PodIP); parsed != nil {
		ip = parsed.String()
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         fmt.Sprint(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

func newPod(ctx context.Context, p *corev1.Pod) {
	for _, text := range apiclient.CopyAppArmor(p) {
		warning.AddWarning(ctx, "", text)
	}
	defaultPodLevel(&p.Spec)
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: QOSClass(p)}
	if len(p.Spec.SchedulingGates) > 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
	// The service account goes by two names, an old one and a new one.
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName = p.Spec.DeprecatedServiceAccount
	}
	p.Spec.DeprecatedServiceAccount = p.Spec.ServiceAccountName
}

// updatePod: ephemeral containers have a subresource of their own. Clients that do not know of the
// resources of the pod as a whole leave them out.
func updatePod(_ context.Context, p, old *corev1.Pod) {
	p.Spec.EphemeralContainers = old.Spec.EphemeralContainers
	if p.Spec.Resources == nil {
		p.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}

// podStatus keeps what kubelets have been known to write by mistake, and what
// only the server decides.
func podStatus(_ context.Context, p, old *corev1.Pod) {
	p.DeletionTimestamp = nil
	p.OwnerReferences = old.OwnerReferences
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
}

// podGrace: a pod's processes get the time to end that its spec gives them,
// unless there can be none: it was never given a node, or has ended. Those of a mirror
// pod do not end with it, so nobody waits for its node.
func podGrace(obj runtime.Object, o *metav1.DeleteOptions) bool {
	p := obj.(*corev1.Pod)
	period := int64(corev1.DefaultTerminationGracePeriodSeconds)
	switch {
	case o.GracePeriodSeconds != nil:
		period = *o.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded || IsMirror(p) {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	o.GracePeriodSeconds = &period
	return true
}

func morePods(_ *Config, all Storages) {
	v1, policy := corev1.SchemeGroupVersion, policyv1.SchemeGroupVersion
	store := all.Store(v1, "pods")
	binding := &bindingREST{pods: store}
	all.Add(v1, "pods/binding", binding)
	all.Add(v1, "bindings", legacyBindingREST{binding})
	all.Add(v1, "pods/ephemeralcontainers", newSub(store, ephemeralStrategy{strategyOf(store)}))
	all.Add(v1, "pods/resize", newSub(store, resizeStrategy{strategyOf(store)}))
	all.Add(v1, "pods/eviction", &evictionREST{
		pods: store, podStatus: all[v1]["pods/status"].(*subREST),
		budgets: all.Store(policy, "poddisruptionbudgets"), status: all[policy]["poddisruptionbudgets/status"].(*subREST),
	})
}

// ephemeralStrategy is pods/ephemeralcontainers: only those are written.
type ephemeralStrategy struct{ *strategy }

func (ephemeralStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (s ephemeralStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	p, was := obj.(*corev1.Pod), old.(*corev1.Pod)
	containers := p.Spec.EphemeralContainers
	p.Spec, p.Status = *was.Spec.DeepCopy(), was.Status
	p.Spec.EphemeralContainers = containers
	s.bump(p, was)
}

func (s ephemeralStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return append(s.addedFinalizers(obj, old), validatePodEphemeralContainersUpdate(obj.(*corev1.Pod), old.(*corev1.Pod))...)
}
