package job

// Tests of limits on failures per index.

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// perIndex limits failures to n per index.
func perIndex(n int32) func(*batchv1.JobSpec) {
	return func(s *batchv1.JobSpec) {
		numbered(s)
		s.BackoffLimitPerIndex, s.BackoffLimit = &n, ptr.To[int32](math.MaxInt32)
	}
}

func mostFailed(n int32) func(*batchv1.JobSpec) {
	return func(s *batchv1.JobSpec) { s.MaxFailedIndexes = &n }
}

func failureRules(rules ...batchv1.PodFailurePolicyRule) func(*batchv1.JobSpec) {
	return func(s *batchv1.JobSpec) {
		s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: rules}
		s.PodReplacementPolicy = ptr.To(batchv1.Failed)
	}
}

func onCode(action batchv1.PodFailurePolicyAction, code int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
		Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code},
	}}
}

// tallies are what the pods of a Job say of earlier failures, by index.
func (w *world) tallies() string {
	w.Helper()
	var out []string
	pods := w.byIndex()
	for i := range completions(w.job()) {
		if p := pods[i]; p != nil {
			s := fmt.Sprintf("%d:%s", i, p.Annotations["batch.kubernetes.io/job-index-failure-count"])
			if ignored, ok := p.Annotations["batch.kubernetes.io/job-index-ignored-failure-count"]; ok {
				s += "+" + ignored
			}
			out = append(out, s)
		}
	}
	return strings.Join(out, " ")
}

// failedIndexes are those of the status; "none" if it has none to tell.
func (w *world) failedIndexes() string {
	w.Helper()
	return ptr.Deref(w.job().Status.FailedIndexes, "none")
}

// hasPods checks which indexes have active pods, and what they say.
func (w *world) hasPods(step, want string) {
	w.Helper()
	if got := w.tallies(); got != want {
		w.Errorf("%s: pods %q, want %q", step, got, want)
	}
}

// TestPerIndex has one index use its limit up while the others go on.
func TestPerIndex(t *testing.T) {
	run(t, func(w *world) {
		w.hasPods("first", "0:0 1:0 2:0")
		if got := w.failedIndexes(); got != "" {
			w.Errorf("failed indexes %q before any has", got)
		}
		lost := w.byIndex()[1]
		w.fail(lost)
		// It is held until the next one tells of it.
		w.expect("one has failed", "active 2 terminating 0 succeeded 0 failed 0")
		w.hasPods("one has failed", "0:0 2:0")
		w.remove(lost, true)
		if n := len(w.pods()); n != 3 {
			w.Errorf("%d pods are there, want the one that failed among them", n)
		}
		w.settle(10 * time.Second)
		w.hasPods("again", "0:0 1:1 2:0")
		w.expect("again", "active 3 terminating 0 succeeded 0 failed 1")

		w.fail(w.byIndex()[1])
		w.settle(19 * time.Second) // twice as long as the first time
		w.hasPods("not yet", "0:0 2:0")
		w.settle(time.Second)
		w.hasPods("once more", "0:0 1:2 2:0")
		w.fail(w.byIndex()[1])
		w.settle(time.Hour)
		w.hasPods("given up", "0:0 2:0")
		w.expect("given up", "active 2 terminating 0 succeeded 0 failed 3")
		if got := w.failedIndexes(); got != "1" {
			w.Errorf("failed indexes %q, want 1", got)
		}
		w.succeed(w.byIndex()[0])
		w.succeed(w.byIndex()[2])
		w.expect("in the end", "active 0 terminating 0 succeeded 2 failed 3 indexes 0,2 FailureTarget/FailedIndexes Failed/FailedIndexes")
		if c := find(w.job(), batchv1.JobFailed); c.Message != "Job has failed indexes" {
			w.Errorf("message %q", c.Message)
		}
		for _, p := range w.pods() {
			if tracked(p) {
				w.Errorf("%s is still held", p.Name)
			}
		}
	}, newJob(times(3, 3), perIndex(2)))
}

// TestPerIndexKeepsCount: neither a controller that starts anew nor a pod that was
// deleted makes an index forget its failures.
func TestPerIndexKeepsCount(t *testing.T) {
	run(t, func(w *world) {
		w.fail(w.byIndex()[0])
		w.stop()
		w.start()
		w.settle(5 * time.Second)
		w.hasPods("after a restart", "1:0")
		w.settle(5 * time.Second)
		w.hasPods("replaced", "0:1 1:0")
		// Told to go, it has failed, though its node does not say so.
		p := w.byIndex()[0]
		w.bind(p)
		w.remove(p, false)
		w.settle(20 * time.Second)
		w.hasPods("deleted", "1:0")
		w.expect("deleted", "active 1 terminating 1 succeeded 0 failed 2")
		if got := w.failedIndexes(); got != "0" {
			w.Errorf("failed indexes %q, want 0", got)
		}
	}, newJob(times(2, 2), perIndex(1)))
}

// TestPerIndexRests: an index that rests keeps no place from the others.
func TestPerIndexRests(t *testing.T) {
	run(t, func(w *world) {
		w.fail(w.byIndex()[0])
		w.hasPods("meanwhile", "1:0")
		w.fail(w.byIndex()[1])
		w.hasPods("meanwhile", "2:0")
		w.settle(10 * time.Second)
		w.hasPods("no place is free", "2:0")
		w.succeed(w.byIndex()[2])
		w.hasPods("the lowest first", "0:1")
	}, newJob(times(3, 1), perIndex(3)))
}

func TestPerIndexEnds(t *testing.T) {
	const failJob, failIndex, ignore = batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionIgnore
	type step struct {
		index int
		code  int32 // 0 succeeds
	}
	for _, tc := range []struct {
		name    string
		edits   []func(*batchv1.JobSpec)
		steps   []step
		status  string
		failed  string
		message string // of the end
		pods    string
	}{
		{
			"none may fail",
			[]func(*batchv1.JobSpec){perIndex(0), mostFailed(0)},
			[]step{{1, 1}},
			"active 0 terminating 0 succeeded 0 failed 4 FailureTarget/MaxFailedIndexesExceeded Failed/MaxFailedIndexesExceeded", "1",
			"Job has exceeded the specified maximal number of failed indexes", "",
		},
		{
			"as many as may",
			[]func(*batchv1.JobSpec){perIndex(0), mostFailed(2)},
			[]step{{0, 1}, {2, 1}},
			"active 2 terminating 0 succeeded 0 failed 2", "0,2", "", "1:0 3:0",
		},
		{
			"one more",
			[]func(*batchv1.JobSpec){perIndex(0), mostFailed(2)},
			[]step{{0, 1}, {2, 1}, {1, 1}},
			"active 0 terminating 0 succeeded 0 failed 4 FailureTarget/MaxFailedIndexesExceeded Failed/MaxFailedIndexesExceeded", "0-2",
			"Job has exceeded the specified maximal number of failed indexes", "",
		},
		{
			"all others succeed",
			[]func(*batchv1.JobSpec){perIndex(0)},
			[]step{{3, 1}, {0, 0}, {1, 0}, {2, 0}},
			"active 0 terminating 0 succeeded 3 failed 1 indexes 0-2 FailureTarget/FailedIndexes Failed/FailedIndexes", "3", "Job has failed indexes", "",
		},
		{
			"all succeed, one late",
			[]func(*batchv1.JobSpec){perIndex(1)},
			[]step{{3, 1}, {0, 0}, {1, 0}, {2, 0}, {3, 0}},
			"active 0 terminating 0 succeeded 4 failed 1 indexes 0-3 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached", "", "Reached expected number of succeeded pods", "",
		},
		{
			"enough succeed",
			[]func(*batchv1.JobSpec){perIndex(0), func(s *batchv1.JobSpec) {
				s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: ptr.To[int32](2)}}}
			}},
			[]step{{3, 1}, {0, 0}, {1, 0}},
			"active 0 terminating 0 succeeded 2 failed 1 indexes 0,1 SuccessCriteriaMet/SuccessPolicy Complete/SuccessPolicy", "3", "Matched rules at index 0", "",
		},
		{
			"the limit of the whole Job counts too",
			[]func(*batchv1.JobSpec){perIndex(5), limit(0)},
			[]step{{0, 1}},
			"active 0 terminating 0 succeeded 0 failed 4 FailureTarget/BackoffLimitExceeded Failed/BackoffLimitExceeded", "", "Job has reached the specified backoff limit", "",
		},
		{
			"a rule fails the index at once",
			[]func(*batchv1.JobSpec){perIndex(5), failureRules(onCode(failIndex, 42))},
			[]step{{2, 42}, {0, 1}},
			"active 3 terminating 0 succeeded 0 failed 2", "2", "", "0:1 1:0 3:0",
		},
		{
			"a rule fails the Job",
			[]func(*batchv1.JobSpec){perIndex(5), failureRules(onCode(failIndex, 42), onCode(failJob, 43))},
			[]step{{2, 43}},
			"active 0 terminating 0 succeeded 0 failed 4 FailureTarget/PodFailurePolicy Failed/PodFailurePolicy", "",
			"Container c for pod ns/POD failed with exit code 43 matching FailJob rule at index 1", "",
		},
		{
			"what a rule ignores uses nothing up",
			[]func(*batchv1.JobSpec){perIndex(0), failureRules(onCode(ignore, 9))},
			[]step{{1, 9}, {1, 9}},
			"active 4 terminating 0 succeeded 0 failed 0", "", "", "0:0 1:0+2 2:0 3:0",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				name := ""
				for _, s := range tc.steps {
					p := w.byIndex()[s.index]
					if p == nil {
						w.Fatalf("index %d has no pod; %s", s.index, w.status())
					}
					name = p.Name
					if s.code == 0 {
						w.succeed(p)
					} else {
						w.end(p.Name, corev1.PodFailed, s.code)
					}
					w.settle(time.Minute) // longer than any rest here
				}
				w.expect("in the end", tc.status)
				w.hasPods("in the end", tc.pods)
				if got := w.failedIndexes(); got != tc.failed {
					w.Errorf("failed indexes %q, want %q", got, tc.failed)
				}
				message := ""
				for _, c := range w.job().Status.Conditions {
					message = c.Message
				}
				if want := strings.ReplaceAll(tc.message, "POD", name); message != want {
					w.Errorf("message %q, want %q", message, want)
				}
			}, newJob(append([]func(*batchv1.JobSpec){times(4, 4)}, tc.edits...)...))
		})
	}
}

// TestTallyOfOthers: what somebody else wrote into the annotations does no harm.
func TestTallyOfOthers(t *testing.T) {
	for in, want := range map[string]int{"": 0, "3": 3, "-1": 0, "x": 0, "2147483647": math.MaxInt32, "2147483648": 0, "1e3": 0} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": in}}}
		if got := count(p, "a"); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}
