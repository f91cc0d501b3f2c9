// Warnings: what a client should know of an object that is accepted nevertheless.

package kinds

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of what is said of one object. An object of the size that a request may have gives
// reason for hundreds of thousands of warnings, which nobody reads.
const (
	maxWarnings     = 50
	maxWarningBytes = 1 << 10
)

const moreWarnings = "there are more warnings than are told here"

// warnings are those of one object. What is beyond the bounds is not kept.
type warnings struct {
	said []string
	more bool
}

// add adds a warning. It takes no time beyond maxWarnings, so whoever adds need not count.
func (w *warnings) add(format string, args ...any) {
	if len(w.said) == maxWarnings {
		w.more = true
		return
	}
	said := fmt.Sprintf(format, args...)
	if len(said) > maxWarningBytes {
		said = strings.ToValidUTF8(said[:maxWarningBytes], "") + "..."
	}
	w.said = append(w.said, said)
}

// addAll adds what a function of the library has to say.
func (w *warnings) addAll(said []string) {
	for _, s := range said {
		w.add("%s", s)
	}
}

// A warner says what a client should know of obj. old is nil if obj is new.
type warner func(w *warnings, obj, old runtime.Object)

// of returns the warnings of obj.
func (f warner) of(obj, old runtime.Object) []string {
	if f == nil {
		return nil
	}
	var w warnings
	f(&w, obj, old)
	if w.more {
		return append(w.said, moreWarnings)
	}
	return w.said
}

// warningOf gives a function written for one type the type that a Kind wants.
func warningOf[T any, P Object[T]](f func(w *warnings, obj, old P)) warner {
	return func(w *warnings, obj, old runtime.Object) {
		if old == nil {
			f(w, obj.(P), nil)
			return
		}
		f(w, obj.(P), old.(P))
	}
}

// ofTemplate warns of the template at path in an object that is new or changed in more than its
// metadata.
func ofTemplate[T any, P Object[T]](path *field.Path, template func(obj P) *corev1.PodTemplateSpec) warner {
	return func(w *warnings, obj, old runtime.Object) {
		t := template(obj.(P))
		if t == nil || old != nil && old.(metav1.Object).GetGeneration() == obj.(metav1.Object).GetGeneration() {
			return
		}
		podWarnings(w, &t.ObjectMeta, &t.Spec, path)
	}
}

// withName adds a warning of a name that those of the object's pods begin with.
func withName(others warner) warner {
	return func(w *warnings, obj, old runtime.Object) {
		if old == nil {
			dotted(w, obj.(metav1.Object).GetName(), "Pod names and hostnames")
		}
		others(w, obj, old)
	}
}

// dotted warns of a name that is part of host names and is none.
func dotted(w *warnings, name, of string) {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		w.add("metadata.name: this is used in %s, which can result in surprising behavior; a DNS label is recommended: %v", of, msgs)
	}
}
