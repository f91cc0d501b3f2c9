// What the tests of this package share.

package kinds

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// check compares errors with what is wanted: each of want is the beginning of
// one error as a user sees it, and there are no others.
func check(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, e := range errs {
		got = append(got, e.Error())
	}
	slices.Sort(got)
	want = slices.Clone(want)
	slices.Sort(want)
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.HasPrefix(got[i], want[i])
	}
	if !ok {
		t.Errorf("errors:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// defaulted decodes y, strictly, and applies the defaults as the server would.
func defaulted[T any, P interface {
	*T
	runtime.Object
}](t testing.TB, y string) P {
	t.Helper()
	o := P(new(T))
	if err := yaml.UnmarshalStrict([]byte(y), o); err != nil {
		t.Fatalf("decode %T: %v\n%s", o, err, y)
	}
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	s.Default(o)
	return o
}

// A mutation is one case of a table: a change of a good object, and the
// errors it must lead to.
type mutation[T any] struct {
	name   string
	change func(T)
	want   []string
}

// bad names the errors of a case.
func bad(want ...string) []string { return want }

// mutate runs each case on a fresh object.
func mutate[T any](t *testing.T, fresh func() T, rule func(T) field.ErrorList, cases []mutation[T]) {
	t.Helper()
	check(t, rule(fresh()))
	seen := map[string]bool{}
	for _, c := range cases {
		if seen[c.name] {
			t.Errorf("two cases are named %q", c.name)
		}
		seen[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := fresh()
			c.change(o)
			check(t, rule(o), c.want...)
		})
	}
}

// mutateUpdate is mutate for rules that compare with the object as it was.
func mutateUpdate[T any](t *testing.T, fresh func() T, rule func(o, old T) field.ErrorList, cases []mutation[T]) {
	t.Helper()
	mutate(t, fresh, func(o T) field.ErrorList { return rule(o, fresh()) }, cases)
}

func ptr[T any](v T) *T { return &v }

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = quantity(pairs[i+1])
	}
	return l
}

func long(n int) string { return strings.Repeat("a", n) }

func num(n int32) *intstr.IntOrString { return ptr(intstr.FromInt32(n)) }

func str(s string) *intstr.IntOrString { return ptr(intstr.FromString(s)) }

func selector(kv string) *metav1.LabelSelector {
	s, err := metav1.ParseToLabelSelector(kv)
	if err != nil {
		panic(fmt.Sprintf("test selector %q: %v", kv, err))
	}
	return s
}

// toJSON is for comparing objects before and after a call.
func toJSON(t *testing.T, o any) string {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func words(s string) []string { return strings.Fields(s) }
