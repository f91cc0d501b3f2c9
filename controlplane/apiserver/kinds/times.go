// Times that can be read from JSON: those of the years 0 to 9999 (RFC 3339). An object with
// another time could not be patched any more, and no list with it could be read as JSON.

package kinds

import (
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const lastYear = 9999

// timely returns r with the rule that times are of those years. An object that was stored with
// another time can be updated.
func timely(r Rules) Rules {
	update := func(rule func(obj, old runtime.Object) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
		if rule == nil {
			return nil
		}
		return func(obj, old runtime.Object) field.ErrorList {
			errs := rule(obj, old)
			if far := times(obj); len(far) > 0 && len(times(old)) == 0 {
				errs = append(errs, far...)
			}
			return errs
		}
	}
	r.Update, r.Status = update(r.Update), update(r.Status)
	if create := r.Create; create != nil {
		r.Create = func(obj runtime.Object) field.ErrorList { return append(create(obj), times(obj)...) }
	}
	return r
}

// times is the error about the first time of another year in obj.
func times(obj runtime.Object) field.ErrorList {
	path, t, found := farTime(reflect.ValueOf(obj))
	if !found {
		return nil
	}
	var p *field.Path
	for _, name := range path {
		if p == nil {
			p = field.NewPath(name)
		} else {
			p = p.Child(name)
		}
	}
	return field.ErrorList{field.Invalid(p, t.UTC().String(), "must be between the years 0 and 9999")}
}

// farTime finds a time in v, whose type leads to times, of another year, and the names of the
// fields that lead to it.
func farTime(v reflect.Value) (path []string, t time.Time, found bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return farTime(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			if path, t, found = farTime(v.Index(i)); found {
				return path, t, true
			}
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			if path, t, found = farTime(v.MapIndex(key)); found {
				return path, t, true
			}
		}
	case reflect.Struct:
		if v.Type() == timeType {
			t = v.Interface().(time.Time)
			year := t.UTC().Year()
			return nil, t, year < 0 || year > lastYear
		}
		for _, i := range timed(v.Type()) {
			if path, t, found = farTime(v.Field(i)); found {
				if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); name != "" {
					path = append([]string{name}, path...)
				}
				return path, t, true
			}
		}
	}
	return nil, time.Time{}, false
}

var (
	timeType = reflect.TypeFor[time.Time]()
	known    sync.Map // what timed found, by type
)

// timed are the fields of a struct type that lead to times. What an interface can hold does not
// count.
func timed(t reflect.Type) []int {
	if is, ok := known.Load(t); ok {
		return is.([]int)
	}
	var fields []int
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() && leads(f.Type, map[reflect.Type]bool{}) {
			fields = append(fields, i)
		}
	}
	known.Store(t, fields)
	return fields
}

// leads tells whether a value of type t can have times. seen are the types that lead to t.
func leads(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == timeType {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	defer delete(seen, t)
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return leads(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && leads(f.Type, seen) {
				return true
			}
		}
	}
	return false
}
