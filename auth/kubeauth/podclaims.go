package kubeauth

// What a node may write to pods, and the mirror pods that it may make.

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// podSubresource refuses subresources without a line of their own.
func podSubresource(_ context.Context, w attempt) error {
	switch w.a.GetSubresource() {
	case "":
		return fmt.Errorf("node %q can only create and delete mirror pods", w.node)
	case "status", "eviction":
		return fmt.Errorf("unexpected operation %s, a status is updated and an eviction is created", w.a.GetOperation())
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", w.a.GetSubresource())
}

// ownPod allows an operation on a stored pod that is bound to the node.
func ownPod(w attempt, verb string) error {
	pod, ok := w.a.GetOldObject().(*corev1.Pod)
	if !ok {
		return unexpected(w.a.GetOldObject())
	}
	if pod.Spec.NodeName != w.node {
		return fmt.Errorf("node %q can only %s pods with spec.nodeName set to itself", w.node, verb)
	}
	return nil
}

func podAnnotations(w attempt, now, before *corev1.Pod) error {
	if maps.Equal(now.Annotations, before.Annotations) {
		return nil
	}
	return fmt.Errorf("node %q cannot update annotations through pod status", w.node)
}

func podFinalizers(w attempt, now, before *corev1.Pod) error {
	return finalizers(w.node, "Pod", now, before)
}

func podOwners(w attempt, now, before *corev1.Pod) error {
	if sameOwners(now.OwnerReferences, before.OwnerReferences) {
		return nil
	}
	return fmt.Errorf("node %q cannot update ownerReferences through pod status", w.node)
}

func claimStatuses(w attempt, now, before *corev1.Pod) error {
	is, was := now.Status.ResourceClaimStatuses, before.Status.ResourceClaimStatuses
	if len(is) == 0 && len(was) == 0 || equality.Semantic.DeepEqual(is, was) {
		return nil
	}
	return fmt.Errorf("node %q cannot update resource claim statuses", w.node)
}

// podAmounts refuses amounts in a pod's status that are less than zero, or of a resource that
// the pod does not ask for.
func podAmounts(w attempt, now, _ *corev1.Pod) error {
	s := &now.Status
	if err := hasAmounts(w, now, s.AllocatedResources, s.Resources); err != nil {
		return err
	}
	for _, list := range [...][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			if err := hasAmounts(w, now, list[i].AllocatedResources, list[i].Resources); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasAmounts is podAmounts for what the pod, or one container of it, is said to have.
func hasAmounts(w attempt, pod *corev1.Pod, allocated corev1.ResourceList, r *corev1.ResourceRequirements) error {
	lists := [...]corev1.ResourceList{allocated, nil, nil}
	if r != nil {
		lists[1], lists[2] = r.Requests, r.Limits
	}
	for _, l := range lists {
		for name, amount := range l {
			if !asks(&pod.Spec, name) {
				return fmt.Errorf("node %q is not allowed to report the resource %.64q of a pod that does not ask for it", w.node, name)
			}
			if amount.Sign() < 0 {
				return fmt.Errorf("node %q is not allowed to report less than nothing of the resource %.64q", w.node, name)
			}
		}
	}
	return nil
}

// asks reports whether a pod asks for a resource. A runtime reports CPU and memory of every
// container, and a pod's ephemeral storage is always used.
func asks(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return true
	}
	for _, list := range [...][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range list {
			if names(&list[i].Resources, name) {
				return true
			}
		}
	}
	_, extra := spec.Overhead[name]
	return extra || spec.Resources != nil && names(spec.Resources, name)
}

func names(r *corev1.ResourceRequirements, name corev1.ResourceName) bool {
	_, request := r.Requests[name]
	_, limit := r.Limits[name]
	return request || limit
}

func podAddresses(w attempt, now, before *corev1.Pod) error {
	is, was := &now.Status, &before.Status
	if is.PodIP == was.PodIP && is.HostIP == was.HostIP && slices.Equal(is.PodIPs, was.PodIPs) && slices.Equal(is.HostIPs, was.HostIPs) {
		return nil
	}
	texts := []string{is.PodIP, is.HostIP}
	for _, ip := range is.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, ip := range is.HostIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && nobodys(ip) {
			return fmt.Errorf("node %q is not allowed to give a pod the address %s, which means another machine everywhere, or none", w.node, text)
		}
	}
	return nil
}

// mirrorPod allows a node to make a mirror pod.
func mirrorPod(w attempt, pod, _ *corev1.Pod) error {
	if !isMirror(pod) {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, w.node)
	}
	if pod.Spec.NodeName != w.node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", w.node)
	}
	return nil
}

func mirrorName(w attempt, pod, _ *corev1.Pod) error {
	if rest, ok := strings.CutSuffix(pod.Name, w.node); ok && strings.HasSuffix(rest, "-") {
		return nil
	}
	return fmt.Errorf("node %q can only create pods whose name ends with -%s", w.node, w.node)
}

func mirrorReferences(w attempt, pod, _ *corev1.Pod) error {
	if what := namesAnything(pod); what != "" {
		return fmt.Errorf("node %q can not create pods that reference %s", w.node, what)
	}
	return nil
}

// mirrorLabels allows the labels that admission's PodTopologyLabels adds to every pod of
// the node.
func mirrorLabels(w attempt, pod, _ *corev1.Pod) error {
	for key := range pod.Labels {
		if key != corev1.LabelTopologyZone && key != corev1.LabelTopologyRegion {
			return fmt.Errorf("node %q can not create pods with labels", w.node)
		}
	}
	return nil
}

func mirrorAffinity(w attempt, pod, _ *corev1.Pod) error {
	if a := pod.Spec.Affinity; a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	return fmt.Errorf("node %q can not create pods with an affinity to pods", w.node)
}

func mirrorFinalizers(w attempt, pod, before *corev1.Pod) error {
	return finalizers(w.node, "Pod", pod, before)
}

func mirrorOwner(ctx context.Context, w attempt) error {
	pod, ok := w.a.GetObject().(*corev1.Pod)
	if !ok {
		return unexpected(w.a.GetObject())
	}
	if len(pod.OwnerReferences) != 1 {
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", w.node)
	}
	owner := pod.OwnerReferences[0]
	if owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != w.node {
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", w.node)
	}
	if owner.Controller == nil || !*owner.Controller {
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", w.node)
	}
	if owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion {
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", w.node)
	}
	n, err := w.objects.node(ctx, w.node)
	if err != nil {
		return lookup(err, "look up node %q", w.node)
	}
	if n.UID != owner.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", w.node, owner.UID, n.UID)
	}
	return nil
}

func mirrorCount(_ context.Context, w attempt) error {
	n, err := w.objects.countOn(w.node, isMirror)
	if err != nil {
		return lookup(err, "count the pods of node %q", w.node)
	}
	if n >= mirrorsKept {
		return fmt.Errorf("node %q has %d mirror pods, and can have no more", w.node, n)
	}
	return nil
}

// lookup is the answer if an object for a decision cannot be read. It does not count as a
// refusal. The API server's error is passed on.
func lookup(err error, format string, args ...any) error {
	if apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) {
		return err
	}
	return apierrors.NewInternalError(fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
}

func evictOwn(ctx context.Context, w attempt) error {
	e, ok := w.a.GetObject().(*policyv1.Eviction)
	if !ok {
		return unexpected(w.a.GetObject())
	}
	name := w.a.GetName()
	if name == "" {
		name = e.Name
	}
	if name == "" || w.a.GetNamespace() == "" {
		return fmt.Errorf("could not determine pod from request data")
	}
	pod, err := w.objects.pod(ctx, w.a.GetNamespace(), name, w.node)
	if err != nil {
		return lookup(err, "look up pod %s/%s", w.a.GetNamespace(), name)
	}
	if pod.Spec.NodeName != w.node {
		return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", w.node)
	}
	return nil
}

// boundToPod allows tokens bound to a pod that runs on the node as the service
// account.
func boundToPod(ctx context.Context, w attempt) error {
	t, ok := w.a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return unexpected(w.a.GetObject())
	}
	ref := t.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return fmt.Errorf("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return fmt.Errorf("node requested token with a pod binding without a uid")
	}
	pod, err := w.objects.pod(ctx, w.a.GetNamespace(), ref.Name, w.node)
	switch {
	case err != nil:
		return lookup(err, "look up pod %s/%s", w.a.GetNamespace(), ref.Name)
	case pod.UID != ref.UID:
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case pod.Spec.NodeName != w.node:
		return fmt.Errorf("node requested token bound to a pod scheduled on a different node")
	case pod.Spec.ServiceAccountName != w.a.GetName():
		return fmt.Errorf("node requested token of service account %q bound to a pod that runs as %q", w.a.GetName(), pod.Spec.ServiceAccountName)
	}
	return nil
}

// podAudience allows tokens for an audience for which the pod has a volume. No audience
// means that of the API server. It is checked after boundToPod.
func podAudience(ctx context.Context, w attempt) error {
	t, ok := w.a.GetObject().(*authenticationv1.TokenRequest)
	if !ok || t.Spec.BoundObjectRef == nil {
		return unexpected(w.a.GetObject())
	}
	if len(t.Spec.Audiences) > 1 {
		return fmt.Errorf("node may only request 0 or 1 audiences")
	}
	audience := strings.Join(t.Spec.Audiences, "")
	pod, err := w.objects.pod(ctx, w.a.GetNamespace(), t.Spec.BoundObjectRef.Name, w.node)
	if err != nil {
		return lookup(err, "look up pod %s/%s", w.a.GetNamespace(), t.Spec.BoundObjectRef.Name)
	}
	for i := range pod.Spec.Volumes {
		p := pod.Spec.Volumes[i].Projected
		if p != nil && slices.ContainsFunc(p.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience
		}) {
			return nil
		}
	}
	return fmt.Errorf("audience %q not found in pod spec volume", audience)
}
