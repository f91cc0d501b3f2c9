package job

// Tests of Indexed Jobs and of their sets of indexes.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestIndexes(t *testing.T) {
	for _, tc := range []struct {
		in    string
		limit int
		out   string
		size  int
	}{
		{"", 10, "", 0},
		{"0", 10, "0", 1},
		{"0,1", 10, "0,1", 2},
		{"0-1", 10, "0,1", 2},
		{"0,1,2", 10, "0-2", 3},
		{"1,3-5,7", 10, "1,3-5,7", 5},
		{"7,3-5,1", 10, "1,3-5,7", 5},
		{"3-5,4-8,9", 10, "3-9", 7},
		{"1,3-5,7", 5, "1,3,4", 3},
		{"5-9", 5, "", 0},
		{"x,2,3-x,-1,,5-4", 10, "2", 1},
		{"99999999999999999999", 10, "", 0},
	} {
		got := parseIndexes(tc.in, tc.limit)
		if got.String() != tc.out || got.size() != tc.size {
			t.Errorf("%q below %d: %q of size %d, want %q of size %d", tc.in, tc.limit, got, got.size(), tc.out, tc.size)
		}
	}
	a, b := parseIndexes("1,3-5,7,20-30", 100), parseIndexes("0-3,5,8-25,30", 100)
	if n := a.common(b); n != 10 || b.common(a) != n { // 1 3 5 20-25 30
		t.Errorf("%d in common, or %d", n, b.common(a))
	}
	if x, y := a.without(b).String(), b.without(a).String(); x != "4,7,26-29" || y != "0,2,8-19" {
		t.Errorf("without each other: %s and %s", x, y)
	}
	for i, want := range map[int]bool{0: false, 1: true, 2: false, 4: true, 5: true, 6: false, 30: true, 31: false} {
		if a.has(i) != want {
			t.Errorf("%d in %s: %v", i, a, !want)
		}
	}
	if got := a.with([]int{6, 2, 31, 6}).String(); got != "1-7,20-31" {
		t.Errorf("with more: %s", got)
	}
}

// FuzzIndexes: whatever is read is written in the one way that reads the same.
func FuzzIndexes(f *testing.F) {
	for _, s := range []string{"", "0", "1,3-5,7", "5-4", "a-b", "0-0,0", "1-2-3"} {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = min(max(limit, 0), 1<<20)
		x := parseIndexes(s, limit)
		again := parseIndexes(x.String(), limit)
		if !slices.Equal(x, again) {
			t.Fatalf("%q reads as %v, which is written as %q and reads as %v", s, x, x, again)
		}
		for i, sp := range x {
			if sp.first < 0 || sp.first > sp.last || sp.last >= limit || i > 0 && sp.first <= x[i-1].last+1 {
				t.Fatalf("%q below %d reads as %v", s, limit, x)
			}
		}
		if x.common(x) != x.size() {
			t.Fatalf("%v has %d in common with itself", x, x.common(x))
		}
	})
}

func (w *world) byIndex() map[int]*corev1.Pod {
	w.Helper()
	out := make(map[int]*corev1.Pod)
	for _, p := range w.active() {
		i := indexOf(p)
		if out[i] != nil {
			w.Errorf("two pods of index %d", i)
		}
		out[i] = p
	}
	return out
}

func TestIndexed(t *testing.T) {
	run(t, func(w *world) {
		pods := w.byIndex()
		for i := range 3 {
			p := pods[i]
			if p == nil {
				w.Fatalf("no pod of index %d", i)
			}
			if want := fmt.Sprintf("j-%d", i); p.Spec.Hostname != want || p.GenerateName != want+"-" || p.Labels[batchv1.JobCompletionIndexAnnotation] != fmt.Sprint(i) {
				w.Errorf("index %d: %+v", i, p)
			}
			for _, set := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
				for _, c := range set {
					env := c.Env[len(c.Env)-1]
					if own := c.Name == "own"; own && env.Value != "mine" || !own && (env.Name != "JOB_COMPLETION_INDEX" || env.ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/job-completion-index']") {
						w.Errorf("index %d, container %s: %+v", i, c.Name, c.Env)
					}
				}
			}
		}
		w.succeed(pods[1])
		w.expect("one", "active 3 terminating 0 succeeded 1 failed 0 indexes 1")
		w.succeed(pods[2])
		w.succeed(w.byIndex()[3])
		w.expect("three", "active 2 terminating 0 succeeded 3 failed 0 indexes 1-3")
		w.fail(pods[0])
		w.settle(10 * time.Second)
		w.expect("failed", "active 2 terminating 0 succeeded 3 failed 1 indexes 1-3")
		again := w.byIndex()
		if again[0] == nil || again[0].Name == pods[0].Name || again[4] == nil {
			w.Fatalf("active: %v", again)
		}
		w.succeed(again[0])
		w.succeed(again[4])
		w.expect("in the end", "active 0 terminating 0 succeeded 5 failed 1 indexes 0-4 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached")
	}, newJob(times(5, 3), numbered, func(s *batchv1.JobSpec) {
		s.Template.Spec.InitContainers = []corev1.Container{{Name: "init"}}
		s.Template.Spec.Containers = append(s.Template.Spec.Containers, corev1.Container{Name: "own", Env: []corev1.EnvVar{{Name: "JOB_COMPLETION_INDEX", Value: "mine"}}})
	}))
}

// TestIndexedSurplus: doubles, and pods of indexes that there are not, go without
// being counted.
func TestIndexedSurplus(t *testing.T) {
	stray := func(name, index string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ns", Labels: map[string]string{batchv1.ControllerUidLabel: "job-uid"}, Annotations: map[string]string{batchv1.JobCompletionIndexAnnotation: index},
		}}
	}
	run(t, func(w *world) {
		if pods := w.byIndex(); len(pods) != 2 || pods[0] == nil || pods[1] == nil {
			w.Errorf("active: %v", pods)
		}
		w.succeed(w.byIndex()[0])
		w.expect("one", "active 1 terminating 0 succeeded 1 failed 0 indexes 0")
		w.change(times(1, 1)) // indexed jobs may shrink
		w.expect("shrunk", "active 0 terminating 0 succeeded 1 failed 0 indexes 0 SuccessCriteriaMet/CompletionsReached Complete/CompletionsReached")
	}, newJob(times(2, 2), numbered), stray("a", "0"), stray("b", "0"), stray("c", "7"), stray("d", "x"))
}

func TestLongName(t *testing.T) {
	p := &corev1.Pod{}
	number(p, strings.Repeat("n", 63), 12)
	if len(p.GenerateName)+5 > 63 || !strings.HasSuffix(p.GenerateName, "n-12-") {
		t.Errorf("%q", p.GenerateName)
	}
}

func TestSuccessPolicy(t *testing.T) {
	rules := func(rules ...batchv1.SuccessPolicyRule) func(*batchv1.JobSpec) {
		return func(s *batchv1.JobSpec) { s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: rules} }
	}
	for _, tc := range []struct {
		name    string
		policy  func(*batchv1.JobSpec)
		succeed []int
		met     bool
		message string
	}{
		{"the leader", rules(batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("0")}), []int{0}, true, "Matched rules at index 0"},
		{"another", rules(batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("0")}), []int{1}, false, ""},
		{"all of some", rules(batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("0,2")}), []int{0}, false, ""},
		{"any two", rules(batchv1.SuccessPolicyRule{SucceededCount: ptr.To[int32](2)}), []int{3, 1}, true, "Matched rules at index 0"},
		{
			"one of some, second rule", rules(batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("0")}, batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("1-3"), SucceededCount: ptr.To[int32](1)}),
			[]int{2},
			true, "Matched rules at index 1",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				for _, i := range tc.succeed {
					w.succeed(w.byIndex()[i])
				}
				w.settle(time.Minute)
				j := w.job()
				if has(j, batchv1.JobComplete) != tc.met {
					w.Fatalf("%s", w.status())
				}
				if c := find(j, batchv1.JobComplete); tc.met && (c.Reason != batchv1.JobReasonSuccessPolicy || c.Message != tc.message || len(w.active()) != 0 || j.Status.Failed != 0) {
					w.Errorf("%+v; %d active, %d failed", c, len(w.active()), j.Status.Failed)
				}
			}, newJob(times(4, 4), numbered, tc.policy))
		})
	}
}

func TestFailurePolicy(t *testing.T) {
	exit := func(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, container *string, codes ...int32) batchv1.PodFailurePolicyRule {
		return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: container, Operator: op, Values: codes}}
	}
	disrupted := batchv1.PodFailurePolicyRule{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: "True"}}}
	const fail, ignore, count = batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionCount
	const in, out = batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn
	for _, tc := range []struct {
		name      string
		rules     []batchv1.PodFailurePolicyRule
		code      int32
		condition corev1.ConditionStatus
		failed    int32
		message   string // of the end; none if the Job goes on
	}{
		{"ends the Job", []batchv1.PodFailurePolicyRule{exit(fail, in, nil, 42)}, 42, "", 1, "Container c for pod ns/POD failed with exit code 42 matching FailJob rule at index 0"},
		{"another code", []batchv1.PodFailurePolicyRule{exit(fail, in, nil, 42)}, 1, "", 1, ""},
		{"another container", []batchv1.PodFailurePolicyRule{exit(fail, in, ptr.To("other"), 42)}, 42, "", 1, ""},
		{"not one of", []batchv1.PodFailurePolicyRule{exit(count, in, nil, 1), exit(fail, out, ptr.To("c"), 1, 2)}, 3, "", 1, "Container c for pod ns/POD failed with exit code 3 matching FailJob rule at index 1"},
		{"first rule wins", []batchv1.PodFailurePolicyRule{exit(count, in, nil, 1), exit(fail, in, nil, 1)}, 1, "", 1, ""},
		{"ignored by code", []batchv1.PodFailurePolicyRule{exit(ignore, in, nil, 9)}, 9, "", 0, ""},
		{"ignored by condition", []batchv1.PodFailurePolicyRule{disrupted, exit(fail, in, nil, 137)}, 137, "True", 0, ""},
		{"condition is not true", []batchv1.PodFailurePolicyRule{disrupted, exit(fail, in, nil, 137)}, 137, "False", 1, "Container c for pod ns/POD failed with exit code 137 matching FailJob rule at index 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			run(t, func(w *world) {
				p := w.first()
				var conditions []corev1.PodCondition
				if tc.condition != "" {
					conditions = append(conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: tc.condition})
				}
				w.end(p.Name, corev1.PodFailed, tc.code, conditions...)
				w.settle(10 * time.Second)
				j := w.job()
				if j.Status.Failed != tc.failed {
					w.Errorf("%s", w.status())
				}
				c := find(j, batchv1.JobFailed)
				if want := strings.ReplaceAll(tc.message, "POD", p.Name); (c != nil) != (want != "") || c != nil && (c.Reason != batchv1.JobReasonPodFailurePolicy || c.Message != want) {
					w.Errorf("%+v, want %q", c, want)
				}
				if c == nil && len(w.active()) != 1 {
					w.Error("not replaced")
				}
				if after := w.pods(); slices.ContainsFunc(after, func(q *corev1.Pod) bool { return q.Name == p.Name && tracked(q) }) {
					w.Error("still held")
				}
			}, newJob(limit(1), func(s *batchv1.JobSpec) {
				s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: tc.rules}
				s.PodReplacementPolicy = ptr.To(batchv1.Failed)
			}))
		})
	}
}

// TestStoppedHaveFailed: the pods that a Job that has failed stops count as failed, whatever they
// make of it and whenever pods are replaced. One that had succeeded before has succeeded.
func TestStoppedHaveFailed(t *testing.T) {
	rules := failureRules(onCode(batchv1.PodFailurePolicyActionFailJob, 1))
	for name, job := range map[string]*batchv1.Job{
		"indexed":         newJob(times(4, 4), numbered, rules),
		"not indexed":     newJob(times(4, 4), rules),
		"replaced sooner": newJob(times(4, 4), limit(0), func(s *batchv1.JobSpec) { s.PodReplacementPolicy = ptr.To(batchv1.TerminatingOrFailed) }),
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				pods := w.active()
				w.bind(pods[1])
				w.bind(pods[2])
				w.succeed(pods[3])
				w.fail(pods[0])
				w.succeed(pods[1]) // it ends well when it is told to stop
				w.remove(pods[1], true)
				w.fail(pods[2])
				w.remove(pods[2], true)
				if s := w.job().Status; s.Succeeded != 1 || s.Failed != 3 || find(w.job(), batchv1.JobFailed) == nil {
					w.Errorf("%s", w.status())
				}
			}, job)
		})
	}
}
