package disruption

// How many pods there should be, which is what percentages are of.

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// expect returns how many pods b is about, how many of them have to be healthy,
// and how many could not be counted because nothing manages them.
func (c *Controller) expect(ctx context.Context, b *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (expected, desired, unmanaged int, err error) {
	limit, whole := b.Spec.MinAvailable, false
	switch {
	case b.Spec.MaxUnavailable != nil:
		limit = b.Spec.MaxUnavailable
	case limit == nil:
		return 0, 0, 0, nil
	default:
		whole = limit.Type == intstr.Int
	}
	if whole {
		return len(pods), limit.IntValue(), 0, nil
	}
	if expected, unmanaged, err = c.scales.sum(ctx, pods); err != nil {
		return 0, 0, 0, err
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(limit, expected, true)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read the limit: %w", err)
	}
	if b.Spec.MaxUnavailable != nil {
		n = max(expected-n, 0)
	}
	return expected, n, unmanaged, nil
}

// scales looks up how many pods their controllers want.
type scales struct {
	sets        appslisters.ReplicaSetLister
	deployments appslisters.DeploymentLister
	stateful    appslisters.StatefulSetLister
	controllers corelisters.ReplicationControllerLister
	jobs        batchlisters.JobLister

	custom    dynamic.Interface // of other kinds; nil for none
	discovery discovery.ServerResourcesInterfaceWithContext
}

func newScales(client kubernetes.Interface, custom dynamic.Interface, f informers.SharedInformerFactory) *scales {
	apps := f.Apps().V1()
	return &scales{
		sets: apps.ReplicaSets().Lister(), deployments: apps.Deployments().Lister(), stateful: apps.StatefulSets().Lister(),
		controllers: f.Core().V1().ReplicationControllers().Lister(), jobs: f.Batch().V1().Jobs().Lister(),
		custom: custom, discovery: client.Discovery(),
	}
}

// sum adds up what the controllers of pods want, each once.
func (s *scales) sum(ctx context.Context, pods []*corev1.Pod) (sum, unmanaged int, err error) {
	seen := make(map[types.UID]bool)
	read := &others{kinds: make(map[string][]metav1.APIResource)}
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			unmanaged++
			continue
		}
		if seen[ref.UID] {
			continue
		}
		top, n, err := s.of(ctx, read, p.Namespace, ref)
		if err != nil {
			return 0, 0, fmt.Errorf("pod %s: %w", p.Name, err)
		}
		seen[ref.UID] = true
		if top != ref.UID && seen[top] {
			continue // two sets of one deployment
		}
		seen[top] = true
		sum += n
	}
	return sum, unmanaged, nil
}

// A workload is what can say how many pods it wants.
type workload interface {
	metav1.Object
	comparable
}

// find looks ref up by name, unless what has that name is another object.
func find[T workload](get func(name string) (T, error), ref *metav1.OwnerReference) (T, error) {
	obj, err := get(ref.Name)
	var none T
	if apierrors.IsNotFound(err) || err == nil && obj.GetUID() != ref.UID {
		return none, missing(ref)
	}
	if err != nil {
		return none, err
	}
	return obj, nil
}

func missing(ref *metav1.OwnerReference) error {
	return fmt.Errorf("its controller, %s %s (uid %s), does not exist", ref.Kind, ref.Name, ref.UID)
}

// of returns how many pods the controller that ref names wants, and the uid of
// who decides that: a deployment, for its sets.
func (s *scales) of(ctx context.Context, read *others, ns string, ref *metav1.OwnerReference) (types.UID, int, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", 0, fmt.Errorf("read its controller reference: %w", err)
	}
	switch (schema.GroupKind{Group: gv.Group, Kind: ref.Kind}) {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		rs, err := find(s.sets.ReplicaSets(ns).Get, ref)
		if err != nil {
			return "", 0, err
		}
		if up := metav1.GetControllerOfNoCopy(rs); up != nil && up.Kind == "Deployment" && up.APIVersion == appsv1.SchemeGroupVersion.String() {
			return s.of(ctx, read, ns, up)
		}
		return rs.UID, replicas(rs.Spec.Replicas), nil
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		d, err := find(s.deployments.Deployments(ns).Get, ref)
		if err != nil {
			return "", 0, err
		}
		return d.UID, replicas(d.Spec.Replicas), nil
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		set, err := find(s.stateful.StatefulSets(ns).Get, ref)
		if err != nil {
			return "", 0, err
		}
		return set.UID, replicas(set.Spec.Replicas), nil
	case schema.GroupKind{Kind: "ReplicationController"}:
		rc, err := find(s.controllers.ReplicationControllers(ns).Get, ref)
		if err != nil {
			return "", 0, err
		}
		return rc.UID, replicas(rc.Spec.Replicas), nil
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}:
		job, err := find(s.jobs.Jobs(ns).Get, ref)
		if err != nil {
			return "", 0, err
		}
		return job.UID, atOnce(job), nil
	}
	return s.ofOther(ctx, read, ns, ref)
}

// atOnce is how many pods of a job run side by side.
func atOnce(j *batchv1.Job) int {
	n := replicas(j.Spec.Parallelism)
	if j.Spec.Completions != nil {
		n = min(n, int(*j.Spec.Completions))
	}
	return n
}

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

// write writes the status if it is not so already.
func (c *Controller) write(ctx context.Context, b *policyv1.PodDisruptionBudget, s *policyv1.PodDisruptionBudgetStatus) error {
	if equality.Semantic.DeepEqual(&b.Status, s) {
		return nil
	}
	b = b.DeepCopy()
	b.Status = *s
	_, err := c.client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, b, metav1.UpdateOptions{})
	return loop.StatusError("disruption budget "+b.Name, err)
}
