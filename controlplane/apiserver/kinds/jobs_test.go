// Rules for the success policy of jobs.

package kinds

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestSucceededIndexes(t *testing.T) {
	t.Parallel()
	const at = "spec.successPolicy.rules[0]."
	for _, c := range []struct {
		indexes string
		count   int32
		want    []string
	}{
		{"0,2-4,9", 5, nil},
		{"", 0, nil},
		{"", 1, bad(at + "succeededCount: Invalid value: 1: must be less than or equal to 0 (the number of indexes in the specified succeededIndexes field)")},
		{"0,2-4", 5, bad(at + "succeededCount: Invalid value: 5: must be less than or equal to 4 (the number of indexes in the specified succeededIndexes field)")},
		{"0", -1, bad(at + "succeededCount: Invalid value: -1: must be greater than or equal to 0")},
		{"x-1", 0, bad(at + `succeededIndexes: Invalid value: "x-1": error parsing succeededIndexes: cannot convert string to integer for index: "x"`)},
		{"1-", 0, bad(at + `succeededIndexes: Invalid value: "1-": error parsing succeededIndexes: cannot convert string to integer for index: ""`)},
		{"1,", 0, bad(at + `succeededIndexes: Invalid value: "1,": error parsing succeededIndexes: cannot convert string to integer for index: ""`)},
		{"10", 0, bad(at + `succeededIndexes: Invalid value: "10": error parsing succeededIndexes: too large index: "10"`)},
		{"9-10", 0, bad(at + `succeededIndexes: Invalid value: "9-10": error parsing succeededIndexes: too large index: "10"`)},
		{"2,1", 0, bad(at + `succeededIndexes: Invalid value: "2,1": error parsing succeededIndexes: non-increasing order, previous: 2, current: 1`)},
		{"1-3,3", 0, bad(at + `succeededIndexes: Invalid value: "1-3,3": error parsing succeededIndexes: non-increasing order, previous: 3, current: 3`)},
		{"3-3", 0, bad(at + `succeededIndexes: Invalid value: "3-3": error parsing succeededIndexes: non-increasing order, previous: 3, current: 3`)},
		{"1-2-3", 0, bad(at + `succeededIndexes: Invalid value: "1-2-3": error parsing succeededIndexes: the fragment "1-2-3" violates the requirement that an index interval can have at most two parts separated by '-'`)},
		{strings.Repeat("0", 1<<16+1), 0, bad(at + "succeededIndexes: Too long: may not be more than 65536 bytes")},
	} {
		s := batchv1.JobSpec{CompletionMode: ptr(batchv1.IndexedCompletion), Completions: ptr[int32](10), SuccessPolicy: &batchv1.SuccessPolicy{
			Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr(c.indexes), SucceededCount: ptr(c.count)}},
		}}
		check(t, successPolicy(&s, field.NewPath("spec", "successPolicy")), c.want...)
	}
}
