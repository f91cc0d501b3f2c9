package kubeauth

// The Secrets that persistent volumes are mounted with.

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const byClaim = "kubeauth/claim"

// claimOf indexes persistent volumes by the claim that has them, as namespace/name.
func claimOf(obj any) ([]string, error) {
	if v, ok := obj.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
		return []string{v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name}, nil
	}
	return nil, nil
}

// mountsWith reports whether the named Secret is one that a node mounts a persistent volume
// with, and one of node's pods names the claim that has the volume. Mirror pods do not count,
// since the node makes them itself. Only the caches are asked: a live answer would take a
// read for each claim of the node's pods.
func (o *Objects) mountsWith(node, namespace, name string) (bool, error) {
	s := o.src.Load()
	if s == nil || !s.synced() {
		return false, errNotReady
	}
	listed := s.listed()
	pods, err := s.pods.ByIndex(byNode, node)
	if err != nil {
		return false, fmt.Errorf("look up pods of node %s: %w", node, err)
	}
	for _, obj := range pods {
		pod, ok := obj.(*corev1.Pod)
		if !ok || isMirror(pod) {
			continue
		}
		for _, claim := range claimsOf(pod) {
			if !listed {
				return false, errNotReady
			}
			volumes, err := s.volumes.ByIndex(byClaim, pod.Namespace+"/"+claim)
			if err != nil {
				return false, fmt.Errorf("look up the volume of claim %s/%s: %w", pod.Namespace, claim, err)
			}
			for _, v := range volumes {
				if v, ok := v.(*corev1.PersistentVolume); ok && mountedWith(v, namespace, name) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// mountedWith reports whether a node mounts v, which a claim has, with the named Secret. The
// Secrets that a CSI driver's controller attaches and expands v with are not for nodes.
func mountedWith(v *corev1.PersistentVolume, namespace, name string) bool {
	claim := v.Spec.ClaimRef.Namespace
	is := func(r *corev1.SecretReference) bool { return r != nil && r.Name == name && r.Namespace == namespace }
	// Without a namespace it is in the claim's.
	near := func(r *corev1.SecretReference) bool {
		return r != nil && r.Name == name && cmp.Or(r.Namespace, claim) == namespace
	}
	switch s := &v.Spec.PersistentVolumeSource; {
	case s.AzureFile != nil:
		return s.AzureFile.SecretName == name && cmp.Or(ptr.Deref(s.AzureFile.SecretNamespace, ""), claim) == namespace
	case s.CephFS != nil:
		return near(s.CephFS.SecretRef)
	case s.Cinder != nil:
		return is(s.Cinder.SecretRef)
	case s.FlexVolume != nil:
		return near(s.FlexVolume.SecretRef)
	case s.RBD != nil:
		return near(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		return near(s.ScaleIO.SecretRef)
	case s.ISCSI != nil:
		return near(s.ISCSI.SecretRef)
	case s.StorageOS != nil:
		r := s.StorageOS.SecretRef
		return r != nil && r.Name == name && r.Namespace == namespace
	case s.CSI != nil:
		return is(s.CSI.NodePublishSecretRef) || is(s.CSI.NodeStageSecretRef) || is(s.CSI.NodeExpandSecretRef)
	}
	return false
}
