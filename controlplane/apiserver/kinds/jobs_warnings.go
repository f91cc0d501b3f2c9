// Warnings about jobs.

package kinds

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func jobWarnings(w *warnings, o, old *batchv1.Job) {
	if old == nil || o.Generation != old.Generation {
		jobSpecWarnings(w, &o.Spec, field.NewPath("spec"))
	}
}

// jobSpecWarnings warns of the pods of a job, and of so many of them that its status may not name
// all that fail.
func jobSpecWarnings(w *warnings, s *batchv1.JobSpec, p *field.Path) {
	if deref(s.CompletionMode) == batchv1.IndexedCompletion && deref(s.Completions) > maxIndexed && deref(s.Parallelism) > maxOfMany {
		w.add("%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, "+
			"Kubernetes might not be able to track completedIndexes when a big number of indexes fail", p)
	}
	podWarnings(w, &s.Template.ObjectMeta, &s.Template.Spec, p.Child("template"))
}
