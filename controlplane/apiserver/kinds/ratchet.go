// Values that a younger rule refuses, such as those beyond a bound that Kubernetes does not have:
// an object that was stored before there was the rule can be updated as long as the value stays.

package kinds

import (
	"encoding/json"
	"reflect"
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

// refusals are what younger rules refuse of an object: by field, whatever the places in lists. There
// may be thousands of a field, of one word each, and few that take more than that to compare.
type refusals struct {
	words map[refusal]bool
	rest  map[string][]any
}

// A refusal is a value that can be a key of a map, of a field.
type refusal struct {
	field string
	value any
}

func refusalsOf(errs field.ErrorList) *refusals {
	r := &refusals{map[refusal]bool{}, map[string][]any{}}
	for _, e := range errs {
		b, is := e.BadValue.(beyond)
		if !is {
			continue
		}
		at := indexes.ReplaceAllString(e.Field, "[]")
		if isWord(b.value) {
			r.words[refusal{at, b.value}] = true
		} else {
			r.rest[at] = append(r.rest[at], b.value)
		}
	}
	return r
}

// has tells whether value is refused of the field at path.
func (r *refusals) has(path string, value any) bool {
	at := indexes.ReplaceAllString(path, "[]")
	if isWord(value) {
		return r.words[refusal{at, value}]
	}
	return slices.ContainsFunc(r.rest[at], func(v any) bool { return equality.Semantic.DeepEqual(v, value) })
}

// isWord tells whether values like v are the same if they are equal in Go.
func isWord(v any) bool {
	if v == nil {
		return true
	}
	kind := reflect.TypeOf(v).Kind()
	return kind == reflect.String || kind >= reflect.Bool && kind <= reflect.Uint64
}

// ratchet returns errs without those about values, refused by a younger rule, that the old
// object has as well. before are the errors of the old object.
func ratchet(errs, before field.ErrorList) field.ErrorList {
	old := refusalsOf(before)
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		now, is := e.BadValue.(beyond)
		return is && old.has(e.Field, now.value)
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
