// The scale subresource of workloads.

package kinds

import (
	"context"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func scaleTable(gr schema.GroupResource) rest.TableConvertor {
	return newTable(gr, columns{
		nameColumn(), integer("Desired", autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]),
		integer("Available", autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]), ageColumn(),
	}, func(o *autoscalingv1.Scale, now time.Time) []any {
		return []any{o.Name, int64(o.Spec.Replicas), int64(o.Status.Replicas), age(o.CreationTimestamp, now)}
	})
}

// scaleREST shows a workload as how many replicas it has and should have, so
// that autoscalers need not know its kind.
type scaleREST struct {
	store *genericregistry.Store
	gv    schema.GroupVersion // of the workload
	parts func(obj runtime.Object) scaleParts
}

// scaleParts are the parts of a workload that a Scale is about.
type scaleParts struct {
	want     **int32
	have     int32
	selector *metav1.LabelSelector
}

func (*scaleREST) New() runtime.Object { return &autoscalingv1.Scale{} }

func (*scaleREST) Destroy() {}

// GroupVersionKind: a Scale is of another group than what it scales.
func (*scaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

func (*scaleREST) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return scaleTable(schema.GroupResource{Group: autoscalingv1.GroupName, Resource: "scales"}).ConvertToTable(ctx, obj, options)
}

func (r *scaleREST) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.store.Get(ctx, name, o)
	if err != nil {
		return nil, err
	}
	return r.scaleOf(obj)
}

func (r *scaleREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	scaled := &scaledObject{rest: r, info: info}
	obj, _, err := r.store.Update(ctx, name, scaled,
		func(ctx context.Context, obj runtime.Object) error { return r.asScale(ctx, obj, create) },
		func(ctx context.Context, obj, old runtime.Object) error {
			is, err := r.scaleOf(obj)
			if err != nil {
				return err
			}
			was, err := r.scaleOf(old)
			if err != nil {
				return err
			}
			return update(ctx, is, was)
		}, false, o)
	if err != nil {
		return nil, false, err
	}
	s, err := r.scaleOf(obj)
	return s, false, err
}

// asScale lets admission see the Scale, not the workload.
func (r *scaleREST) asScale(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc) error {
	s, err := r.scaleOf(obj)
	if err != nil {
		return err
	}
	return validate(ctx, s)
}

func (r *scaleREST) scaleOf(obj runtime.Object) (*autoscalingv1.Scale, error) {
	p, m := r.parts(obj), obj.(metav1.Object)
	selector, err := metav1.LabelSelectorAsSelector(p.selector)
	if err != nil {
		return nil, fmt.Errorf("selector of %s: %w", m.GetName(), err)
	}
	s := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(),
			ResourceVersion: m.GetResourceVersion(), CreationTimestamp: m.GetCreationTimestamp(),
		},
		Status: autoscalingv1.ScaleStatus{Replicas: p.have, Selector: selectorText(selector)},
	}
	if *p.want != nil {
		s.Spec.Replicas = **p.want
	}
	return s, nil
}

func selectorText(s labels.Selector) string {
	if s.Empty() {
		return ""
	}
	return s.String()
}

// scaledObject is the workload with the replicas of an updated Scale.
type scaledObject struct {
	rest *scaleREST
	info rest.UpdatedObjectInfo
}

func (s *scaledObject) Preconditions() *metav1.Preconditions { return s.info.Preconditions() }

func (s *scaledObject) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	m, ok := old.(metav1.Object)
	if !ok || m.GetUID() == "" {
		return nil, apierrors.NewNotFound(s.rest.store.DefaultQualifiedResource, "")
	}
	was, err := s.rest.scaleOf(old)
	if err != nil {
		return nil, err
	}
	owners := s.rest.owners(m)
	if was.ManagedFields, err = owners.ToSubresource(); err != nil {
		return nil, fmt.Errorf("managed fields of the scale of %s: %w", m.GetName(), err)
	}
	obj, err := s.info.UpdatedObject(ctx, was)
	if err != nil {
		return nil, err
	}
	is, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Scale: %T", obj))
	}
	if is.Spec.Replicas < 0 {
		errs := field.ErrorList{field.Invalid(field.NewPath("spec", "replicas"), is.Spec.Replicas, "must be greater than or equal to 0")}
		return nil, apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(), is.Name, errs)
	}
	scaled := old.DeepCopyObject()
	n := is.Spec.Replicas
	*s.rest.parts(scaled).want = &n
	if is.ResourceVersion != "" {
		scaled.(metav1.Object).SetResourceVersion(is.ResourceVersion)
	}
	fields, err := owners.ToParent(is.ManagedFields)
	if err != nil {
		return nil, fmt.Errorf("managed fields of %s: %w", m.GetName(), err)
	}
	scaled.(metav1.Object).SetManagedFields(fields)
	return scaled, nil
}

// owners says who owns the replicas of a workload, and who owns those of its Scale.
func (r *scaleREST) owners(workload metav1.Object) *managedfields.ScaleHandler {
	replicas := managedfields.ResourcePathMappings{r.gv.String(): fieldpath.MakePathOrDie("spec", "replicas")}
	return managedfields.NewScaleHandler(workload.GetManagedFields(), r.gv, replicas)
}
