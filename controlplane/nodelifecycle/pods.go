package nodelifecycle

// Pods of nodes that are not ready are not ready either, so that nobody sends
// them traffic.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// A podKey names a pod of a node, or, without a name, all of the node's pods.
type podKey struct{ node, namespace, name string }

func (k podKey) String() string {
	if k.name == "" {
		return "pods of node " + k.node
	}
	return k.namespace + "/" + k.name
}

// watchPods asks for a look at each pod that comes to a node. Those that are there
// already are looked at with their node.
func (r *run) watchPods() (stop func(), err error) {
	arrived := func(p *corev1.Pod) {
		if p.Spec.NodeName != "" && claimsReady(p) >= 0 {
			r.marking.Add(podKey{p.Spec.NodeName, p.Namespace, p.Name})
		}
	}
	return loop.Handle(r.podInf, cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if p, ok := obj.(*corev1.Pod); ok && !initial {
				arrived(p)
			}
		},
		UpdateFunc: func(before, obj any) {
			was, ok := before.(*corev1.Pod)
			p, also := obj.(*corev1.Pod)
			if ok && also && (was.Spec.NodeName != p.Spec.NodeName || was.UID != p.UID) {
				arrived(p)
			}
		},
	})
}

// mark marks pods not ready for as long as their node is not.
func (r *run) mark(ctx context.Context, k podKey) (time.Duration, error) {
	if rec := r.records.of(k.node); rec == nil || !rec.unready.Load() {
		return 0, nil
	}
	var pods []*corev1.Pod
	if k.name == "" {
		all, err := r.podsOf(k.node)
		if err != nil {
			return 0, err
		}
		pods = all
	} else {
		p, err := r.pods.Pods(k.namespace).Get(k.name)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		pods = append(pods, p)
	}
	var errs []error
	for _, p := range pods {
		if ctx.Err() != nil || r.reach.down.Load() {
			break
		}
		if p.Spec.NodeName == k.node {
			errs = append(errs, r.markPod(ctx, p))
		}
	}
	if r.reach.down.Load() {
		return 0, loop.Quiet(fmt.Errorf("%v: the API server cannot be reached", k))
	}
	return 0, errors.Join(errs...)
}

func (r *run) markPod(ctx context.Context, p *corev1.Pod) error {
	i := claimsReady(p)
	if i < 0 {
		return nil
	}
	p = p.DeepCopy()
	c := &p.Status.Conditions[i]
	c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.client.CoreV1().Pods(p.Namespace).UpdateStatus(bounded, p, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return r.expected(ctx, fmt.Errorf("mark pod %s/%s not ready: %w", p.Namespace, p.Name, err))
	}
	r.events.Event(p, corev1.EventTypeWarning, nodeNotReady, "Node is not ready")
	return nil
}

// claimsReady returns the index of the pod's Ready condition if that is anything
// but False, or -1.
func claimsReady(p *corev1.Pod) int {
	return slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status != corev1.ConditionFalse
	})
}
