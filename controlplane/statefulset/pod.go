package statefulset

// What a pod has by its ordinal, and what is done to pods.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// ordinal is the ordinal that the name of a pod of a set says.
func ordinal(set, pod string) (n int, ok bool) {
	digits, ok := strings.CutPrefix(pod, set+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == digits
}

// start is the first ordinal of set.
func start(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// revisionOf is the name of the revision that p was made of.
func revisionOf(p *corev1.Pod) string { return p.Labels[appsv1.ControllerRevisionHashLabelKey] }

// identity is the labels that the pod of an ordinal has for its name.
func identity(name string, ordinal int) map[string]string {
	return map[string]string{appsv1.StatefulSetPodNameLabel: name, appsv1.PodIndexLabel: strconv.Itoa(ordinal)}
}

// pod returns the pod to be made of an ordinal.
func (l *look) pod(o children.Owner, ordinal int) *corev1.Pod {
	t, name := l.template(ordinal)
	p := children.FromTemplate(o, t)
	p.Name = fmt.Sprintf("%s-%d", l.set.Name, ordinal)
	if p.Labels == nil {
		p.Labels = make(map[string]string, 3)
	}
	maps.Copy(p.Labels, identity(p.Name, ordinal))
	p.Labels[appsv1.ControllerRevisionHashLabelKey] = name
	p.Spec.Hostname, p.Spec.Subdomain = p.Name, l.set.Spec.ServiceName
	mount(p, l.set)
	return p
}

// act deletes and makes the pods that have been decided on, and what they claim.
func (c *Controller) act(ctx context.Context, o children.Owner, l *look) error {
	if err := c.keepClaims(ctx, l); err != nil {
		return err
	}
	for _, d := range l.removals[:min(len(l.removals), children.MaxWrites)] {
		if err := c.remove(ctx, o, l, d); err != nil {
			return err
		}
	}
	for _, n := range l.pending[:min(len(l.pending), children.MaxWrites)] {
		if err := c.claim(ctx, l.set, n); err != nil {
			return loop.Quiet(err)
		}
	}
	for _, n := range l.missing[:min(len(l.missing), children.MaxWrites)] {
		if err := c.create(ctx, o, l, n); err != nil {
			return err
		}
	}
	return c.label(ctx, l)
}

// label gives the pods that stay their names as labels, by which Services select single pods, if
// somebody has changed that.
func (c *Controller) label(ctx context.Context, l *look) error {
	room := children.MaxWrites
	for _, s := range l.slots {
		p := s.pod
		if p == nil || p.DeletionTimestamp != nil || children.Ended(p) || p.Labels[appsv1.StatefulSetPodNameLabel] == p.Name || room == 0 {
			continue
		}
		room--
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "labels": identity(p.Name, s.ordinal)}})
		if err != nil {
			return fmt.Errorf("encode the labels of pod %s: %w", p.Name, err)
		}
		_, err = c.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			continue // gone, or another one of the name: the cache will show it
		}
		if c.tell(l.set, "Update", p.Name, err); err != nil {
			return fmt.Errorf("label pod %s: %w", p.Name, err)
		}
	}
	return nil
}

// remove deletes a pod.
func (c *Controller) remove(ctx context.Context, o children.Owner, l *look, d removal) error {
	set := l.set
	if d.failed {
		c.events.Eventf(set, corev1.EventTypeWarning, "RecreatingFailedPod", "StatefulSet %s/%s is recreating failed Pod %s", set.Namespace, set.Name, d.pod.Name)
	}
	if d.excess {
		if err := c.deleteClaimsWithPod(ctx, set, d.pod); err != nil {
			return err
		}
	}
	_, err := c.pods.Delete(ctx, o, []*corev1.Pod{d.pod})
	c.tell(set, "Delete", d.pod.Name, err)
	if n, ok := ordinal(set.Name, d.pod.Name); err == nil && d.failed && ok {
		c.pauses.Replaced(set.Namespace+"/"+set.Name, l.place(n), l.now)
	}
	return err
}

// create makes the pod of an ordinal, and before it what it claims.
func (c *Controller) create(ctx context.Context, o children.Owner, l *look, ordinal int) error {
	p := l.pod(o, ordinal)
	err := c.claim(ctx, l.set, ordinal)
	if err == nil {
		_, err = c.pods.CreateOne(ctx, o, p)
	}
	if errors.Is(err, errStale) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return loop.Quiet(err)
	}
	if c.tell(l.set, "Create", p.Name, err); err == nil {
		c.tellConflicts(l.set, ordinal)
	}
	return err
}

// tell writes an event about what was done to a pod, in Kubernetes' words.
func (c *Controller) tell(set *appsv1.StatefulSet, verb, pod string, err error) {
	if err != nil {
		c.events.Eventf(set, corev1.EventTypeWarning, "Failed"+verb, "%s Pod %s in StatefulSet %s failed error: %v", verb, pod, set.Name, err)
		return
	}
	c.events.Eventf(set, corev1.EventTypeNormal, "Successful"+verb, "%s Pod %s in StatefulSet %s successful", verb, pod, set.Name)
}
