// The strategies: what of a request is kept, and what is checked, before an
// object is stored.

package apiserver

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

// strategy is the strategy of a row for the resource itself: status is not
// written here.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	row   *row
	rules kinds.Rules
	name  apivalidation.ValidateNameFunc
}

func newStrategy(scheme *runtime.Scheme, r *row) *strategy {
	gk := r.gvk().GroupKind()
	return &strategy{
		ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator,
		row: r, rules: kinds.For(gk), name: kinds.NameFunc(gk),
	}
}

func (s *strategy) NamespaceScoped() bool                         { return !s.row.cluster }
func (s *strategy) AllowCreateOnUpdate(context.Context) bool      { return s.row.upsert }
func (s *strategy) AllowUnconditionalUpdate(context.Context) bool { return !s.row.conditional }
func (s *strategy) Canonicalize(runtime.Object)                   {}

func (s *strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.row.status && !s.row.ownStatus {
		fieldOf(obj, "Status").SetZero()
	}
	if s.row.generation {
		obj.(metav1.Object).SetGeneration(1)
	}
	if s.row.onCreate != nil {
		s.row.onCreate(ctx, obj)
	}
}

func (s *strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.row.status {
		fieldOf(obj, "Status").Set(fieldOf(old, "Status"))
	}
	if s.row.onUpdate != nil {
		s.row.onUpdate(ctx, obj, old)
	}
	s.bump(obj, old)
}

// bump counts the generation up if the update changes the spec.
func (s *strategy) bump(obj, old runtime.Object) {
	if !s.row.generation {
		return
	}
	was, is := fieldOf(old, "Spec"), fieldOf(obj, "Spec")
	if was.IsValid() && !equality.Semantic.DeepEqual(was.Interface(), is.Interface()) {
		obj.(metav1.Object).SetGeneration(old.(metav1.Object).GetGeneration() + 1)
	}
}

func (s *strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaAccessor(obj.(metav1.Object), !s.row.cluster, s.name, field.NewPath("metadata"))
	if s.rules.Create != nil {
		errs = append(errs, s.rules.Create(obj)...)
	}
	return errs
}

func (s *strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	if s.rules.Update == nil {
		return nil
	}
	return s.rules.Update(obj, old)
}

func (*strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (*strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields keeps server-side apply from giving anybody ownership of what a
// write here cannot change.
func (s *strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.row.status {
		return nil
	}
	return s.resets("status")
}

func (s *strategy) resets(paths ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, p := range paths {
		set.Insert(dottedPath(p))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(s.row.gv.String()): set}
}

// DefaultGarbageCollectionPolicy is asked when a delete does not say what becomes
// of the dependents.
func (s *strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.row.orphans {
		return rest.OrphanDependents
	}
	return rest.DeleteDependents
}

// gracefulStrategy is the strategy of a row whose objects are deleted gracefully.
// It is a type of its own because the library asks by type.
type gracefulStrategy struct{ *strategy }

func (s gracefulStrategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, o *metav1.DeleteOptions) bool {
	return s.row.grace(obj, o)
}

// statusStrategy is the strategy of a row's status subresource: only status, and
// metadata, are written.
type statusStrategy struct{ *strategy }

func (s statusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	keepExcept(obj, old, "Status")
	if s.row.onStatus != nil {
		s.row.onStatus(ctx, obj, old)
	}
}

func (s statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	if s.rules.Status == nil {
		return nil
	}
	return s.rules.Status(obj, old)
}

func (s statusStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (s statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.resets(append([]string{"spec"}, s.row.statusResets...)...)
}

// fieldOf is a field of the struct obj points to, the zero Value if it has none
// of that name.
func fieldOf(obj runtime.Object, name string) reflect.Value {
	return reflect.ValueOf(obj).Elem().FieldByName(name)
}

// keepExcept gives every field of obj but its metadata and the named one the
// value it has in old.
func keepExcept(obj, old runtime.Object, name string) {
	dst, src := reflect.ValueOf(obj).Elem(), reflect.ValueOf(old).Elem()
	for i := range dst.NumField() {
		switch dst.Type().Field(i).Name {
		case "TypeMeta", "ObjectMeta", name:
		default:
			dst.Field(i).Set(src.Field(i))
		}
	}
}

// dottedPath is the path a.b.c.
func dottedPath(s string) fieldpath.Path {
	var parts []any
	for start, i := 0, 0; i <= len(s); i++ {
		if i == len(s) || s[i] == '.' {
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return fieldpath.MakePathOrDie(parts...)
}
