// Rules: what is wrong with an object, field by field, the way users of the Kubernetes API
// know it: a path, what was found there, and what would be right.
//
// They are pure: they take the object, and for an update the object it is to replace, and
// return a list that is empty if the object is acceptable. They expect an object that has
// its defaults, but do not panic on one that has not. Metadata is not looked at here, apart
// from the metadata of templates and the few annotations that are part of a kind's rules:
// the strategy checks it for every kind alike, with the kind's own rule for names.
//
// The rules are those of Kubernetes 1.37. Where a feature is still alpha there, its fields
// are accepted and only checked for shape, so that a newer client is not refused for saying
// more than this server uses. Nothing here is stricter than Kubernetes, but for the bounds
// of selectors and tolerations.

package kinds

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rules are what one kind's strategy calls. A nil func means that the kind has
// no rules for that verb. Objects must be of that kind; any other is reported as
// an internal error.
type Rules struct {
	// Create checks a new object.
	Create func(obj runtime.Object) field.ErrorList
	// Update checks obj as the replacement of old, by all but status. It
	// includes what Create checks where Kubernetes checks that again.
	Update func(obj, old runtime.Object) field.ErrorList
	// Status checks obj as the replacement of old through the status subresource.
	Status func(obj, old runtime.Object) field.ErrorList
}

// complete returns r with the rules that all kinds have.
func (r Rules) complete() Rules {
	r.Update, r.Status = ratcheting(r.Update), ratcheting(r.Status)
	return timely(r)
}

// create, update and status adapt a typed function.
func create[T runtime.Object](f func(T) field.ErrorList) func(runtime.Object) field.ErrorList {
	return func(obj runtime.Object) field.ErrorList {
		o, ok := obj.(T)
		if !ok {
			return wrongType(obj)
		}
		return f(o)
	}
}

func update[T runtime.Object](f func(obj, old T) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
	return func(obj, old runtime.Object) field.ErrorList {
		o, ok := obj.(T)
		if !ok {
			return wrongType(obj)
		}
		oldO, ok := old.(T)
		if !ok {
			return wrongType(old)
		}
		return f(o, oldO)
	}
}

// anew makes an update function of rules that do not compare with the old object.
func anew[T runtime.Object](f func(T) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
	return update(func(obj, _ T) field.ErrorList { return f(obj) })
}
