// pods/eviction: deleting a pod only if its disruption budget allows it.

package apiserver

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/util/retry"
)

const (
	// maxDisrupted bounds how many evicted pods a budget may remember before its
	// controller has looked at them.
	maxDisrupted = 2000
	// unprocessedRetry is when to come back to a budget that its controller has
	// not seen yet.
	unprocessedRetry = 10 * time.Second
)

// evictionREST creates evictions.
type evictionREST struct {
	pods    *genericregistry.Store
	budgets *genericregistry.Store
	status  *subREST // of budgets
}

func (*evictionREST) New() runtime.Object { return &policyv1.Eviction{} }
func (*evictionREST) Destroy()            {}

// GroupVersionKind: an Eviction is of another group than pods.
func (*evictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

func (r *evictionREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, o *metav1.CreateOptions) (runtime.Object, error) {
	e, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an Eviction: %T", obj))
	}
	if name != e.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	if validate != nil {
		if err := validate(ctx, e.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	options := e.DeleteOptions.DeepCopy()
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if dryrun.IsDryRun(o.DryRun) {
		options.DryRun = o.DryRun
	}
	// The pod may change between the look at it and the deletion; then the look
	// is repeated. Who asked for one version of it gets no second look.
	pinned := options.Preconditions != nil && options.Preconditions.ResourceVersion != nil
	err := retry.OnError(retry.DefaultRetry, func(err error) bool { return apierrors.IsConflict(err) && !pinned }, func() error {
		return r.evict(ctx, name, options.DeepCopy())
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// evict deletes the pod name, having charged the budget it falls under.
func (r *evictionREST) evict(ctx context.Context, name string, o *metav1.DeleteOptions) error {
	obj, err := r.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return err
	}
	p := obj.(*corev1.Pod)
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	if o.Preconditions.UID == nil {
		o.Preconditions.UID = &p.UID
	}
	if err = r.afford(ctx, p, o); err != nil {
		return err
	}
	_, _, err = r.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, o)
	return err
}

// afford charges the budget that p falls under, or narrows o where that makes p
// free.
func (r *evictionREST) afford(ctx context.Context, p *corev1.Pod, o *metav1.DeleteOptions) error {
	if needsNoBudget(p) {
		return nil
	}
	budget, err := r.budgetOf(ctx, p)
	switch {
	case err != nil || budget == nil:
		return err
	case freeByHealth(budget, p):
		// The pod may not have become healthy in between.
		o.Preconditions.ResourceVersion = &p.ResourceVersion
		return nil
	}
	return r.charge(ctx, budget.Name, p.Name, dryrun.IsDryRun(o.DryRun))
}

// needsNoBudget tells pods whose end disrupts nothing.
func needsNoBudget(p *corev1.Pod) bool {
	switch p.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return p.DeletionTimestamp != nil
}

// freeByHealth tells whether b lets p go because p does not serve anyway.
func freeByHealth(b *policyv1.PodDisruptionBudget, p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}

// budgetOf is the budget that covers p, nil if none does.
func (r *evictionREST) budgetOf(ctx context.Context, p *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	obj, err := r.budgets.List(ctx, &metainternalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	var found *policyv1.PodDisruptionBudget
	items := obj.(*policyv1.PodDisruptionBudgetList).Items
	for i := range items {
		selector, err := metav1.LabelSelectorAsSelector(items[i].Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(p.Labels)) {
			continue // a selector that cannot be read covers nothing
		}
		if found != nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("this pod has more than one PodDisruptionBudget, which the eviction subresource does not support"))
		}
		found = &items[i]
	}
	return found, nil
}

// charge takes one disruption from the budget.
func (r *evictionREST) charge(ctx context.Context, budget, pod string, dry bool) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, err := r.budgets.Get(ctx, budget, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		b := obj.(*policyv1.PodDisruptionBudget)
		if err = mayDisrupt(b); err != nil {
			return err
		}
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = make(map[string]metav1.Time)
		}
		b.Status.DisruptedPods[pod] = metav1.Now()
		if dry {
			return nil
		}
		_, _, err = r.status.Update(ctx, budget, rest.DefaultUpdatedObjectInfo(b), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	})
}

func mayDisrupt(b *policyv1.PodDisruptionBudget) error {
	refuse := func(err *apierrors.StatusError, why string) error {
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: why})
		return err
	}
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		return refuse(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", int(unprocessedRetry/time.Second)),
			fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name))
	case b.Status.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudget"), b.Name, fmt.Errorf("pdb disruptions allowed is negative"))
	case len(b.Status.DisruptedPods) > maxDisrupted:
		return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudget"), b.Name, fmt.Errorf("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case b.Status.DisruptionsAllowed == 0:
		return refuse(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0),
			fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy))
	}
	return nil
}
