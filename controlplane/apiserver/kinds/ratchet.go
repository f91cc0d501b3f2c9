// Values that a younger rule refuses, such as those beyond a bound that Kubernetes does not have:
// an object that was stored before there was the rule can be updated as long as the value stays.

package kinds

import (
	"encoding/json"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A beyond is the value in an error about a younger rule, and what users see of it.
type beyond struct{ value, shown any }

// MarshalJSON implements json.Marshaler.
func (b beyond) MarshalJSON() ([]byte, error) { return json.Marshal(b.shown) }

// beyondBound returns e with the value that is beyond a bound. Users see the size alone.
func beyondBound(e *field.Error, value any, size int) field.ErrorList {
	e.BadValue = beyond{value, size}
	return field.ErrorList{e}
}

// younger returns the errors of a rule that stored objects may be older than.
func younger(errs ...*field.Error) field.ErrorList {
	for _, e := range errs {
		if _, is := e.BadValue.(beyond); !is {
			e.BadValue = beyond{e.BadValue, e.BadValue}
		}
	}
	return errs
}

// indexes are the places in lists that are part of a path.
var indexes = regexp.MustCompile(`\[[0-9]+\]`)

// sameField tells whether two paths lead to the same field of the same lists, whatever the places.
func sameField(p, q string) bool {
	return p == q || indexes.ReplaceAllString(p, "[]") == indexes.ReplaceAllString(q, "[]")
}

// ratchet returns errs without those about values, refused by a younger rule, that the old
// object has as well. before are the errors of the old object.
func ratchet(errs, before field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		now, is := e.BadValue.(beyond)
		return is && slices.ContainsFunc(before, func(b *field.Error) bool {
			was, also := b.BadValue.(beyond)
			return also && sameField(b.Field, e.Field) && equality.Semantic.DeepEqual(now.value, was.value)
		})
	})
}

// ratcheting is a rule for updates that ratchets.
func ratcheting(rule func(obj, old runtime.Object) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
	if rule == nil {
		return nil
	}
	return func(obj, old runtime.Object) field.ErrorList {
		errs := rule(obj, old)
		if !slices.ContainsFunc(errs, func(e *field.Error) bool { _, is := e.BadValue.(beyond); return is }) {
			return errs
		}
		return ratchet(errs, rule(old, old))
	}
}
