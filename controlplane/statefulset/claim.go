package statefulset

// The claims of pods: each ordinal has its own, which outlive its pods.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// claimName is the name of an ordinal's claim that is made of t.
func claimName(set *appsv1.StatefulSet, t *corev1.PersistentVolumeClaim, ordinal int) string {
	return t.Name + "-" + set.Name + "-" + strconv.Itoa(ordinal)
}

// mount has p, which has its name, use the claims of its ordinal, in the place of volumes
// of the same names.
func mount(p *corev1.Pod, set *appsv1.StatefulSet) {
	n, _ := ordinal(set.Name, p.Name) // it has just got that name
	claims := set.Spec.VolumeClaimTemplates
	p.Spec.Volumes = slices.DeleteFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return slices.ContainsFunc(claims, func(t corev1.PersistentVolumeClaim) bool { return t.Name == v.Name })
	})
	for i := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: claims[i].Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(set, &claims[i], n)},
		}})
	}
}

// errStale says that a claim goes with the last pod of its ordinal, and would go with the next
// pod, too.
var errStale = errors.New("still to be collected")

// ofPod matches a reference to a pod of a name.
func ofPod(name string) func(metav1.OwnerReference) bool {
	return func(r metav1.OwnerReference) bool { return r.Kind == "Pod" && r.Name == name }
}

// claim makes the claims of an ordinal whose pod does not run, as far as there are none. It
// fails with errStale as long as one is to be collected.
func (c *Controller) claim(ctx context.Context, set *appsv1.StatefulSet, ordinal int) error {
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		name := claimName(set, t, ordinal)
		had, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(name)
		switch {
		case err == nil && had.DeletionTimestamp != nil:
			return fmt.Errorf("claim %s is being deleted", name)
		case err == nil && deletesBelow(set) && slices.ContainsFunc(had.OwnerReferences, ofPod(fmt.Sprintf("%s-%d", set.Name, ordinal))):
			return fmt.Errorf("claim %s: %w", name, errStale)
		case err == nil:
			continue
		case !apierrors.IsNotFound(err):
			return err
		}
		made := t.DeepCopy()
		made.Name, made.Namespace = name, set.Namespace
		made.Labels = maps.Clone(t.Labels)
		if made.Labels == nil {
			made.Labels = make(map[string]string)
		}
		maps.Copy(made.Labels, set.Spec.Selector.MatchLabels)
		if deletesWith(set) && !controlled(made.OwnerReferences) {
			made.OwnerReferences = append(made.OwnerReferences, *metav1.NewControllerRef(set, kind))
		}
		_, err = c.client.CoreV1().PersistentVolumeClaims(set.Namespace).Create(ctx, made, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			c.events.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "Create Claim %s for Pod %s-%d in StatefulSet %s failed error: %v", name, set.Name, ordinal, set.Name, err)
			return fmt.Errorf("create claim %s: %w", name, err)
		}
		c.events.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate", "Create Claim %s Pod %s-%d in StatefulSet %s success", name, set.Name, ordinal, set.Name)
	}
	return nil
}

// claimants returns the keys of the StatefulSets that may have a claim of that key.
func (c *Controller) claimants(key string) (keys []string) {
	ns, claim, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil
	}
	sets, err := c.sets.StatefulSets(ns).List(labels.Everything())
	if err != nil {
		return nil
	}
	for _, s := range sets {
		if slices.ContainsFunc(s.Spec.VolumeClaimTemplates, func(t corev1.PersistentVolumeClaim) bool {
			pod, ok := strings.CutPrefix(claim, t.Name+"-")
			_, is := ordinal(s.Name, pod)
			return ok && is
		}) {
			keys = append(keys, ns+"/"+s.Name)
		}
	}
	return keys
}

// deletesWith tells whether the claims of set go with it.
func deletesWith(set *appsv1.StatefulSet) bool {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	return r != nil && r.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// deletesBelow tells whether the claims of a pod go when set is scaled down past it.
func deletesBelow(set *appsv1.StatefulSet) bool {
	r := set.Spec.PersistentVolumeClaimRetentionPolicy
	return r != nil && r.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// keepClaims has the claims of the pods that stay owned by the set, if they go with it, and
// by no pod.
func (c *Controller) keepClaims(ctx context.Context, l *look) error {
	for _, s := range l.slots {
		if s.pod == nil {
			continue
		}
		var owner *metav1.OwnerReference
		if deletesWith(l.set) {
			owner = metav1.NewControllerRef(l.set, kind)
		}
		if err := c.own(ctx, l.set, s.pod, s.ordinal, owner); err != nil {
			return err
		}
	}
	return nil
}

// deleteClaimsWithPod makes the claims of p depend on it if the set deletes claims when it is scaled down.
func (c *Controller) deleteClaimsWithPod(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod) error {
	n, ok := ordinal(set.Name, p.Name)
	if !ok || !deletesBelow(set) {
		return nil
	}
	return c.own(ctx, set, p, n, metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod")))
}

// own gives the claims of an ordinal an owner, in the place of the set and of pods of the
// ordinal; nil for none. Other owners stay. A claim that has another controller gets no owner:
// an object has one controller at most.
func (c *Controller) own(ctx context.Context, set *appsv1.StatefulSet, p *corev1.Pod, ordinal int, owner *metav1.OwnerReference) error {
	for i := range set.Spec.VolumeClaimTemplates {
		had, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(claimName(set, &set.Spec.VolumeClaimTemplates[i], ordinal))
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		refs := slices.DeleteFunc(slices.Clone(had.OwnerReferences), func(r metav1.OwnerReference) bool {
			return r.UID == set.UID || ofPod(p.Name)(r)
		})
		other := controlled(refs)
		if owner != nil && !other {
			refs = append(refs, *owner)
		}
		if equality.Semantic.DeepEqual(refs, had.OwnerReferences) {
			continue
		}
		had = had.DeepCopy()
		had.OwnerReferences = refs
		_, err = c.client.CoreV1().PersistentVolumeClaims(set.Namespace).Update(ctx, had, metav1.UpdateOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case apierrors.IsConflict(err):
			return loop.Quiet(err) // the cache is behind
		case err != nil:
			return fmt.Errorf("set the owner of claim %s: %w", had.Name, err)
		case other:
			c.tellConflict(set, had.Name)
		}
	}
	return nil
}

// controlled tells whether refs name a controller.
func controlled(refs []metav1.OwnerReference) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return ptr.Deref(r.Controller, false) })
}

// tellConflicts tells which claims of a pod that was just made have a controller that is not the set.
func (c *Controller) tellConflicts(set *appsv1.StatefulSet, ordinal int) {
	for i := range set.Spec.VolumeClaimTemplates {
		had, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(claimName(set, &set.Spec.VolumeClaimTemplates[i], ordinal))
		if err == nil && controlled(had.OwnerReferences) && !metav1.IsControlledBy(had, set) {
			c.tellConflict(set, had.Name)
		}
	}
}

// tellConflict tells, in Kubernetes' words, that another controller has a claim, unless set lets all claims be.
func (c *Controller) tellConflict(set *appsv1.StatefulSet, claim string) {
	if deletesWith(set) || deletesBelow(set) {
		c.events.Eventf(set, corev1.EventTypeWarning, "ConflictingController", "PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", claim)
	}
}
