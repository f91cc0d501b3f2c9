package statefulset

// The names of pods.

import (
	"fmt"
	"testing"
)

// FuzzOrdinal: a name has an ordinal if and only if it is the ordinal's.
func FuzzOrdinal(f *testing.F) {
	for _, name := range []string{"s-0", "s-10", "s--1", "s-01", "s-", "s", "t-1", "s-99999999999999999999", "s-+1"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if n, ok := ordinal("s", name); ok && name != fmt.Sprintf("s-%d", n) {
			t.Errorf("%q is %d", name, n)
		}
	})
}
