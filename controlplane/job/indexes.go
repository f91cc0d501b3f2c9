package job

// Sets of completion indexes, which the API writes as "1,3-5,7".

import (
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// A span is a first and a last index.
type span struct{ first, last int }

// indexes is a set as spans, in order, with gaps between them.
type indexes []span

// parseIndexes reads a set. It drops what is not below limit, and what cannot be
// read: nothing but this package's own writing is expected.
func parseIndexes(s string, limit int) indexes {
	var out indexes
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(lo)
		last := first
		if err == nil && ranged {
			last, err = strconv.Atoi(hi)
		}
		last = min(last, limit-1)
		if err != nil || first < 0 || first > last {
			continue
		}
		out = append(out, span{first, last})
	}
	return out.tidy()
}

// tidy puts spans in order and joins those that touch.
func (x indexes) tidy() indexes {
	slices.SortFunc(x, func(a, b span) int { return a.first - b.first })
	out := x[:0]
	for _, s := range x {
		if n := len(out); n > 0 && s.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out
}

func (x indexes) String() string {
	var b strings.Builder
	for i, s := range x {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s.first))
		switch s.last - s.first {
		case 0:
			continue
		case 1:
			b.WriteByte(',') // two are written as two
		default:
			b.WriteByte('-')
		}
		b.WriteString(strconv.Itoa(s.last))
	}
	return b.String()
}

func (x indexes) has(i int) bool {
	_, found := slices.BinarySearchFunc(x, i, func(s span, i int) int {
		switch {
		case s.last < i:
			return -1
		case s.first > i:
			return 1
		}
		return 0
	})
	return found
}

// with returns the set with more in it. It takes x over.
func (x indexes) with(more []int) indexes {
	for _, i := range more {
		x = append(x, span{i, i})
	}
	return x.tidy()
}

func (x indexes) size() int {
	n := 0
	for _, s := range x {
		n += s.last - s.first + 1
	}
	return n
}

// without returns the indexes that are not in y.
func (x indexes) without(y indexes) indexes {
	var out indexes
	j := 0
	for _, s := range x {
		for ; j < len(y) && y[j].first <= s.last; j++ {
			if y[j].last < s.first {
				continue
			}
			if s.first < y[j].first {
				out = append(out, span{s.first, y[j].first - 1})
			}
			s.first = y[j].last + 1
			if s.first > s.last {
				break // this one of y may reach into the next of x
			}
		}
		if s.first <= s.last {
			out = append(out, s)
		}
	}
	return out
}

// common is how many indexes are in both sets.
func (x indexes) common(y indexes) int {
	n := 0
	for i, j := 0, 0; i < len(x) && j < len(y); {
		if d := min(x[i].last, y[j].last) - max(x[i].first, y[j].first) + 1; d > 0 {
			n += d
		}
		if x[i].last < y[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// unknown is the index of a pod that says none.
const unknown = -1

func indexOf(p *corev1.Pod) int {
	i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return unknown
	}
	return i
}

func valid(j *batchv1.Job, i int) bool { return i >= 0 && i < completions(j) }

// pending returns up to n of the lowest indexes that have neither succeeded, nor
// been given up, nor a pod that may yet succeed, and that need not rest; if those
// are too few, also when the next of the others need no more.
func (l *look) pending(n int, rest func(index int) time.Duration) (now []int, next time.Duration) {
	taken := make(map[int]bool, len(l.active))
	for _, p := range l.pods {
		// One that is being deleted but counts as running is not replaced yet.
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && (p.DeletionTimestamp == nil || replacesFailedOnly(l.job)) {
			taken[indexOf(p)] = true
		}
	}
	for i := 0; i < completions(l.job) && len(now) < n; i++ {
		if taken[i] || l.completed.has(i) || l.givenUp.has(i) {
			continue
		}
		if wait := rest(i); wait > 0 {
			next = soonest(next, wait)
			continue
		}
		now = append(now, i)
	}
	if len(now) == n {
		next = 0
	}
	return now, next
}

// surplus parts the active pods, which are in order of worth, into those that an
// Indexed Job has no use for (of no index that it has, of one that has succeeded,
// or doubles) and the others.
func (l *look) surplus() (useless, others []*corev1.Pod) {
	seen := make(map[int]bool, len(l.active))
	for i := len(l.active) - 1; i >= 0; i-- { // the one missed most is seen first and stays
		p := l.active[i]
		at := indexOf(p)
		if !valid(l.job, at) || seen[at] || l.completed.has(at) {
			useless = append(useless, p)
			continue
		}
		seen[at] = true
		others = append(others, p)
	}
	slices.Reverse(others)
	return useless, others
}
