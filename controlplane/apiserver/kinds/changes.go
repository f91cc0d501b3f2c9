// A short list of where two objects differ.

package kinds

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

const (
	maxChanges     = 10 // differences listed
	maxChangeDepth = 6  // levels below the start
)

// changes names the fields in which b differs from a, as paths that start with
// p. It names the first few and says so if there are more: it is part of a
// message to a user and must not grow with the object.
func changes(a, b any, p string) []string {
	var out []string
	left, right := plain(a), plain(b)
	walk(left, right, p, maxChangeDepth, func(path string) {
		out = append(out, path)
	})
	if len(out) > maxChanges {
		out = append(out[:maxChanges], fmt.Sprintf("and %d more", len(out)-maxChanges))
	}
	return out
}

// plain is v as maps, slices and values. What cannot be had that way counts as
// nil.
func plain(v any) any {
	data, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		return nil
	}
	return out
}

func walk(a, b any, p string, depth int, report func(string)) {
	if reflect.DeepEqual(a, b) {
		return
	}
	ma, oka := a.(map[string]any)
	mb, okb := b.(map[string]any)
	if oka && okb && depth > 0 {
		keys := slices.Concat(slices.Collect(maps.Keys(ma)), slices.Collect(maps.Keys(mb)))
		slices.Sort(keys)
		for _, k := range slices.Compact(keys) {
			walk(ma[k], mb[k], p+fieldSuffix(k), depth-1, report)
		}
		return
	}
	la, oka := a.([]any)
	lb, okb := b.([]any)
	if oka && okb && len(la) == len(lb) && depth > 0 {
		for i := range la {
			walk(la[i], lb[i], fmt.Sprintf("%s[%d]", p, i), depth-1, report)
		}
		return
	}
	report(p)
}

// fieldSuffix writes a key as a path does: a plain name after a dot, any other
// in brackets.
func fieldSuffix(k string) string {
	if strings.ContainsAny(k, "./ ") {
		return "[" + k + "]"
	}
	return "." + k
}
