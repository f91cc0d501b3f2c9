// The strategies: what of a request is kept, and what is checked, before an
// object is stored.

package kinds

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// strategy is the strategy of a kind for the resource itself: status is not
// written here.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	kind    *Kind
	rules   Rules
	byGroup map[string]Rules
	name    apivalidation.ValidateNameFunc
}

func newStrategy(scheme *runtime.Scheme, k *Kind) *strategy {
	s := &strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, kind: k, rules: k.rules.complete(), name: k.name}
	if s.name == nil {
		s.name = apivalidation.NameIsDNSSubdomain
	}
	for group, r := range k.byGroup {
		if s.byGroup == nil {
			s.byGroup = make(map[string]Rules, len(k.byGroup))
		}
		s.byGroup[group] = r.complete()
	}
	return s
}

// rulesFor are the rules for a request.
func (s *strategy) rulesFor(ctx context.Context) Rules {
	if info, ok := apirequest.RequestInfoFrom(ctx); ok {
		if r, is := s.byGroup[info.APIGroup]; is {
			return r
		}
	}
	return s.rules
}

func (s *strategy) NamespaceScoped() bool { return !s.kind.cluster }

func (s *strategy) AllowCreateOnUpdate(context.Context) bool { return s.kind.upsert }

func (s *strategy) AllowUnconditionalUpdate(context.Context) bool { return !s.kind.conditional }

func (s *strategy) Canonicalize(runtime.Object) {}

func (s *strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	if s.kind.status && !s.kind.ownStatus {
		fieldOf(obj, "Status").SetZero()
	}
	if s.kind.generation {
		obj.(metav1.Object).SetGeneration(1)
	}
	if s.kind.onCreate != nil {
		s.kind.onCreate(ctx, obj)
	}
}

func (s *strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	if s.kind.status {
		fieldOf(obj, "Status").Set(fieldOf(old, "Status"))
	}
	if s.kind.onUpdate != nil {
		s.kind.onUpdate(ctx, obj, old)
	}
	s.bump(obj, old)
}

// bump counts the generation up if the update changes the spec.
func (s *strategy) bump(obj, old runtime.Object) {
	if !s.kind.generation {
		return
	}
	was, is := fieldOf(old, "Spec"), fieldOf(obj, "Spec")
	if was.IsValid() && !equality.Semantic.DeepEqual(was.Interface(), is.Interface()) {
		obj.(metav1.Object).SetGeneration(old.(metav1.Object).GetGeneration() + 1)
	}
}

func (s *strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaAccessor(obj.(metav1.Object), !s.kind.cluster, s.name, field.NewPath("metadata"))
	errs = append(errs, s.addedFinalizers(obj, nil)...)
	if rule := s.rulesFor(ctx).Create; rule != nil {
		errs = append(errs, rule(obj)...)
	}
	return errs
}

// addedFinalizers checks the finalizers of obj that old, which may be nil, has not. What else there
// is to check of metadata the library has checked before an update.
func (s *strategy) addedFinalizers(obj, old runtime.Object) field.ErrorList {
	if s.kind.anyFinalizer {
		return nil
	}
	return unqualifiedFinalizers(obj, old)
}

func (s *strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := s.addedFinalizers(obj, old)
	if rule := s.rulesFor(ctx).Update; rule != nil {
		errs = append(errs, rule(obj, old)...)
	}
	return errs
}

func (s *strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	return s.kind.warnings.of(obj, nil)
}

func (s *strategy) WarningsOnUpdate(_ context.Context, obj, old runtime.Object) []string {
	return s.kind.warnings.of(obj, old)
}

// GetResetFields keeps server-side apply from giving anybody ownership of what a
// write here cannot change.
func (s *strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if !s.kind.status {
		return nil
	}
	return s.resets("status")
}

func (s *strategy) resets(paths ...string) map[fieldpath.APIVersion]*fieldpath.Set {
	set := fieldpath.NewSet()
	for _, p := range paths {
		set.Insert(dottedPath(p))
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(s.kind.gv.String()): set}
}

// DefaultGarbageCollectionPolicy is asked when a delete does not say what becomes
// of the dependents.
func (s *strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	if s.kind.orphans {
		return rest.OrphanDependents
	}
	return rest.DeleteDependents
}

// gracefulStrategy is the strategy of a kind whose objects are deleted gracefully.
// It is a type of its own because the library asks by type.
type gracefulStrategy struct{ *strategy }

func (s gracefulStrategy) CheckGracefulDelete(_ context.Context, obj runtime.Object, o *metav1.DeleteOptions) bool {
	return s.kind.grace(obj, o)
}

// statusStrategy is the strategy of a kind's status subresource: only status, and
// metadata, are written.
type statusStrategy struct{ *strategy }

func (s statusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	keepExcept(obj, old, "Status")
	if s.kind.onStatus != nil {
		s.kind.onStatus(ctx, obj, old)
	}
}

func (s statusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	errs := s.addedFinalizers(obj, old)
	if s.rules.Status != nil {
		errs = append(errs, s.rules.Status(obj, old)...)
	}
	return errs
}

func (s statusStrategy) AllowCreateOnUpdate(context.Context) bool { return false }

func (s statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (s statusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return s.resets(append([]string{"spec"}, s.kind.statusResets...)...)
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
