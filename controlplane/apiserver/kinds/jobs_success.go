// Rules for when a job has succeeded before all its indexes have.

package kinds

import (
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds of success policies.
const (
	maxSuccessRules     = 20
	maxSucceededIndexes = 64 << 10 // bytes of a rule's indexes
)

func successPolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	if s.SuccessPolicy == nil {
		return nil
	}
	if deref(s.CompletionMode) != batchv1.IndexedCompletion {
		return field.ErrorList{field.Invalid(p, *s.SuccessPolicy, "requires indexed completion mode")}
	}
	var errs field.ErrorList
	at := p.Child("rules")
	switch n := len(s.SuccessPolicy.Rules); {
	case n == 0:
		errs = append(errs, field.Required(at, "at least one rules must be specified when the successPolicy is specified"))
	case n > maxSuccessRules:
		errs = append(errs, field.TooMany(at, n, maxSuccessRules))
	}
	for i := range s.SuccessPolicy.Rules {
		errs = append(errs, successRule(&s.SuccessPolicy.Rules[i], deref(s.Completions), at.Index(i))...)
	}
	return errs
}

func successRule(r *batchv1.SuccessPolicyRule, completions int32, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.SucceededCount == nil && r.SucceededIndexes == nil {
		errs = append(errs, field.Required(p, "at least one of succeededCount or succeededIndexes must be specified"))
	}
	named := 0
	if text := r.SucceededIndexes; text != nil {
		at := p.Child("succeededIndexes")
		if n := len(*text); n > maxSucceededIndexes {
			errs = append(errs, beyondBound(field.TooLong(at, "", maxSucceededIndexes), *text, n)...)
		} else if total, err := countIndexes(*text, int(completions)); err != nil {
			errs = append(errs, younger(field.Invalid(at, *text, "error parsing succeededIndexes: "+err.Error()))...)
		} else {
			named = total
		}
	}
	if c := r.SucceededCount; c != nil {
		at := p.Child("succeededCount")
		errs = append(errs, nonNegative(*c, at)...)
		if *c > completions {
			errs = append(errs, field.Invalid(at, *c, fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions)))
		}
		if r.SucceededIndexes != nil && int(*c) > named {
			errs = append(errs, younger(field.Invalid(at, *c, fmt.Sprintf("must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)", named)))...)
		}
	}
	return errs
}

// countIndexes counts the indexes of a list as 1,3-5,7, whose numbers rise and are below limit.
func countIndexes(list string, limit int) (int, error) {
	if list == "" {
		return 0, nil
	}
	total, last := 0, -1
	for interval := range strings.SplitSeq(list, ",") {
		first, end, err := indexInterval(interval, limit)
		if err != nil {
			return 0, err
		}
		if first <= last {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, first)
		}
		total += end - first + 1
		last = end
	}
	return total, nil
}

// indexInterval reads N or N-M.
func indexInterval(s string, limit int) (first, last int, err error) {
	number := func(s string) int {
		n, e := strconv.Atoi(s)
		switch {
		case err != nil:
		case e != nil:
			err = fmt.Errorf("cannot convert string to integer for index: %q", s)
		case n >= limit:
			err = fmt.Errorf("too large index: %q", s)
		}
		return n
	}
	from, to, ranged := strings.Cut(s, "-")
	if strings.Contains(to, "-") {
		return 0, 0, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", s)
	}
	first = number(from)
	if !ranged {
		return first, first, err
	}
	if last = number(to); err == nil && first >= last {
		err = fmt.Errorf("non-increasing order, previous: %d, current: %d", first, last)
	}
	return first, last, err
}
