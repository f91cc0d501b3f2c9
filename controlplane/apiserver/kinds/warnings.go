// Warnings: what a client should know of an object that is accepted nevertheless.

package kinds

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// warningOf gives a function written for one type the type that a Kind wants. old is nil if obj is
// new.
func warningOf[T any, P Object[T]](f func(obj, old P) []string) func(obj, old runtime.Object) []string {
	return func(obj, old runtime.Object) []string {
		if old == nil {
			return f(obj.(P), nil)
		}
		return f(obj.(P), old.(P))
	}
}

// ofTemplate warns of the template at path in an object that is new or changed in more than its
// metadata.
func ofTemplate[T any, P Object[T]](path *field.Path, template func(obj P) *corev1.PodTemplateSpec) func(obj, old runtime.Object) []string {
	return func(obj, old runtime.Object) []string {
		t := template(obj.(P))
		if t == nil || old != nil && old.(metav1.Object).GetGeneration() == obj.(metav1.Object).GetGeneration() {
			return nil
		}
		return podWarnings(&t.ObjectMeta, &t.Spec, path)
	}
}

// withName adds a warning of a name that those of the object's pods begin with.
func withName(warnings func(obj, old runtime.Object) []string) func(obj, old runtime.Object) []string {
	return func(obj, old runtime.Object) []string {
		var out []string
		if old == nil {
			out = dotted(obj.(metav1.Object).GetName(), "Pod names and hostnames")
		}
		return append(out, warnings(obj, old)...)
	}
}

// dotted warns of a name that is part of host names and is none.
func dotted(name, of string) []string {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in %s, which can result in surprising behavior; a DNS label is recommended: %v", of, msgs)}
	}
	return nil
}
