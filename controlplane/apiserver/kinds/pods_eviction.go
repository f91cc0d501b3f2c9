// pods/eviction: deleting a pod only if its disruption budget allows it.

package kinds

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/util/retry"
	pdbhelper "k8s.io/component-helpers/apps/poddisruptionbudget"
)

const (
	// maxDisrupted bounds how many evicted pods a budget may remember before its
	// controller has looked at them.
	maxDisrupted = 2000
	// unprocessedRetry is when to come back to a budget that its controller has
	// not seen yet.
	unprocessedRetry = 10 * time.Second
)

// contended is how long several evictions under one budget let each other go
// first: about five seconds in all.
var contended = wait.Backoff{Steps: 20, Duration: 20 * time.Millisecond, Factor: 1.3, Jitter: 0.5, Cap: 500 * time.Millisecond}

// evictionREST creates evictions.
type evictionREST struct {
	pods      *genericregistry.Store
	podStatus *subREST
	budgets   *genericregistry.Store
	status    *subREST // of budgets
}

func (*evictionREST) New() runtime.Object { return &policyv1.Eviction{} }

func (*evictionREST) Destroy() {}

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
	err := retry.OnError(contended, func(err error) bool { return apierrors.IsConflict(err) && !pinned }, func() error {
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
	if err = r.mark(ctx, p, o); err != nil {
		return err
	}
	_, _, err = r.pods.Delete(ctx, name, rest.ValidateAllObjectFunc, o)
	return err
}

// mark says on the pod why it goes, which outlives the eviction wherever the pod
// does. Pods that have ended or were going already do not go because of it.
func (r *evictionREST) mark(ctx context.Context, p *corev1.Pod, o *metav1.DeleteOptions) error {
	if ended(p) || p.DeletionTimestamp != nil || dryrun.IsDryRun(o.DryRun) {
		return nil
	}
	info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		now := old.(*corev1.Pod).DeepCopy()
		if now.UID != *o.Preconditions.UID || o.Preconditions.ResourceVersion != nil && now.ResourceVersion != *o.Preconditions.ResourceVersion {
			return nil, apierrors.NewConflict(corev1.Resource("pods"), now.Name, errors.New("the pod has changed"))
		}
		setCondition(now, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting", ObservedGeneration: now.Generation,
		})
		return now, nil
	})
	obj, _, err := r.podStatus.Update(ctx, p.Name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if o.Preconditions.ResourceVersion != nil {
		o.Preconditions.ResourceVersion = &obj.(*corev1.Pod).ResourceVersion
	}
	return nil
}

// setCondition sets a condition, whose time stays if its status does.
func setCondition(p *corev1.Pod, c corev1.PodCondition) {
	for i := range p.Status.Conditions {
		if was := &p.Status.Conditions[i]; was.Type == c.Type {
			if was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
			*was = c
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// afford charges the budget that p falls under, or narrows o where that makes p
// free.
func (r *evictionREST) afford(ctx context.Context, p *corev1.Pod, o *metav1.DeleteOptions) error {
	if ended(p) || p.DeletionTimestamp != nil {
		return nil // no longer a disruption
	}
	if p.Status.Phase == corev1.PodPending {
		// It serves nobody, unless it has begun to in between.
		pin(o, p)
		return nil
	}
	budget, err := r.budgetOf(ctx, p)
	switch {
	case err != nil || budget == nil:
		return err
	case freeByHealth(budget, p):
		// The pod may not have become healthy in between.
		pin(o, p)
		return nil
	}
	return r.charge(ctx, budget.Name, p.Name, dryrun.IsDryRun(o.DryRun))
}

// pin makes o of this version of p, unless its client has named one, which may be older.
func pin(o *metav1.DeleteOptions, p *corev1.Pod) {
	if o.Preconditions.ResourceVersion == nil {
		o.Preconditions.ResourceVersion = &p.ResourceVersion
	}
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
			return nil, twoBudgets()
		}
		found = &items[i]
	}
	return found, nil
}

// twoBudgets is Kubernetes' refusal, word for word: kubectl drain shows it, and
// other programs know it by its text.
func twoBudgets() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
	}}
}

// charge takes one disruption from the budget.
func (r *evictionREST) charge(ctx context.Context, budget, pod string, dry bool) error {
	return retry.RetryOnConflict(contended, func() error {
		obj, err := r.budgets.Get(ctx, budget, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		b := obj.(*policyv1.PodDisruptionBudget)
		if err = mayDisrupt(b); err != nil {
			return err
		}
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptionsAllowed == 0 {
			pdbhelper.UpdateDisruptionAllowedCondition(b)
		}
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
	case b.Status.DisruptionsAllowed == 0 && failing(b) != nil:
		return refuse(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0),
			fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", b.Name, failing(b).Message))
	case b.Status.DisruptionsAllowed == 0:
		return refuse(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0),
			fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy))
	}
	return nil
}

// failing is the condition that says why nobody knows what b allows, if that is
// so.
func failing(b *policyv1.PodDisruptionBudget) *metav1.Condition {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	if c == nil || c.Reason != policyv1.SyncFailedReason {
		return nil
	}
	return c
}
