// Warnings about jobs.

package kinds

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func jobWarnings(o, old *batchv1.Job) []string {
	if old != nil && o.Generation == old.Generation {
		return nil
	}
	return jobSpecWarnings(&o.Spec, field.NewPath("spec"))
}

// jobSpecWarnings warns of the pods of a job, and of so many of them that its status may not name
// all that fail.
func jobSpecWarnings(s *batchv1.JobSpec, p *field.Path) []string {
	var w []string
	if deref(s.CompletionMode) == batchv1.IndexedCompletion && deref(s.Completions) > maxIndexed && deref(s.Parallelism) > maxOfMany {
		w = append(w, fmt.Sprintf("%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, "+
			"Kubernetes might not be able to track completedIndexes when a big number of indexes fail", p))
	}
	return append(w, podWarnings(&s.Template.ObjectMeta, &s.Template.Spec, p.Child("template"))...)
}
