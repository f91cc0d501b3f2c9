package kinds

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPods(t *testing.T) {
	t.Parallel()
	const head = "NAME | READY | STATUS | RESTARTS | AGE | IP* | NODE* | NOMINATED NODE* | READINESS GATES*"
	const tail = " | 24h | <none> | <none> | <none> | <none>"
	pod := func(spec, status string) string {
		return "{metadata: {name: p, " + dayBefore + "}, spec: {" + spec + "}, status: {" + status + "}}"
	}
	dying := func(status string) string {
		return `{metadata: {name: p, ` + dayBefore + `, deletionTimestamp: "2000-01-01T00:00:00Z"}, spec: {containers: [{name: a}]}, status: {` + status + `}}`
	}
	const one, two = "containers: [{name: a}]", "containers: [{name: a}, {name: b}]"
	const withInit = one + ", initContainers: [{name: i}, {name: j}]"
	const withSidecar = one + ", initContainers: [{name: s, restartPolicy: Always}, {name: j}]"
	const running = "state: {running: {}}, ready: true"
	lines(t, "pods", head, []line[corev1.Pod]{
		{"pending", pod(one, "phase: Pending"), "p | 0/1 | Pending | 0" + tail},
		{
			"running", pod(one+", nodeName: n1", "phase: Running, podIP: 10.0.0.1, containerStatuses: [{name: a, "+running+"}]"),
			"p | 1/1 | Running | 0 | 24h | 10.0.0.1 | n1 | <none> | <none>",
		},
		{
			"address in the plural, nominated, gated",
			pod(one+", readinessGates: [{conditionType: x}, {conditionType: y}]", `phase: Pending, podIPs: [{ip: "fd00::1"}], nominatedNodeName: m, conditions: [{type: x, status: "True"}, {type: y, status: "False"}]`),
			"p | 0/1 | Pending | 0 | 24h | fd00::1 | <none> | m | 1/2",
		},
		{"reason of the pod", pod(one, "phase: Failed, reason: Evicted"), "p | 0/1 | Evicted | 0" + tail},
		{"scheduling gated", pod(one, `phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: SchedulingGated}]`), "p | 0/1 | SchedulingGated | 0" + tail},
		{"creating", pod(one, "phase: Pending, containerStatuses: [{name: a, state: {waiting: {reason: ContainerCreating}}}]"), "p | 0/1 | ContainerCreating | 0" + tail},
		{
			"crash loop",
			pod(one, `phase: Running, containerStatuses: [{name: a, restartCount: 3, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1, finishedAt: "1999-12-31T23:59:50Z"}}}]`),
			"p | 0/1 | CrashLoopBackOff | 3 (10s ago)" + tail,
		},
		{
			"restarts of two",
			pod(two, `phase: Running, containerStatuses: [{name: a, `+running+`, restartCount: 1, lastState: {terminated: {exitCode: 1, finishedAt: "1999-12-31T23:00:00Z"}}},
				{name: b, `+running+`, restartCount: 2, lastState: {terminated: {exitCode: 1, finishedAt: "1999-12-31T23:30:00Z"}}}]`),
			"p | 2/2 | Running | 3 (30m ago)" + tail,
		},
		{"restarted at an unknown time", pod(one, "phase: Running, containerStatuses: [{name: a, "+running+", restartCount: 1}]"), "p | 1/1 | Running | 1" + tail},
		{"not ready", pod(one, "phase: Running, containerStatuses: [{name: a, state: {running: {}}}]"), "p | 0/1 | Running | 0" + tail},
		{"completed", pod(one, "phase: Succeeded, containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}]"), "p | 0/1 | Completed | 0" + tail},
		{"error", pod(one, "phase: Failed, containerStatuses: [{name: a, state: {terminated: {exitCode: 1, reason: Error}}}]"), "p | 0/1 | Error | 0" + tail},
		{"exit code", pod(one, "phase: Failed, containerStatuses: [{name: a, state: {terminated: {exitCode: 7}}}]"), "p | 0/1 | ExitCode:7 | 0" + tail},
		{"signal", pod(one, "phase: Failed, containerStatuses: [{name: a, state: {terminated: {exitCode: 137, signal: 9}}}]"), "p | 0/1 | Signal:9 | 0" + tail},
		{
			"first container speaks", pod(two, "phase: Running, containerStatuses: [{name: a, state: {waiting: {reason: ImagePullBackOff}}}, {name: b, state: {waiting: {reason: ErrImagePull}}}]"),
			"p | 0/2 | ImagePullBackOff | 0" + tail,
		},
		{
			"one of two completed",
			pod(two, `phase: Running, conditions: [{type: Ready, status: "True"}], containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}, {name: b, `+running+`}]`),
			"p | 1/2 | Running | 0" + tail,
		},
		{
			"one of two completed, not ready",
			pod(two, "phase: Running, containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}, {name: b, "+running+"}]"),
			"p | 1/2 | NotReady | 0" + tail,
		},
		{
			"initializing", pod(withInit, "phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 0}}}, {name: j, state: {running: {}}}], containerStatuses: [{name: a, state: {waiting: {reason: PodInitializing}}}]"),
			"p | 0/1 | Init:1/2 | 0" + tail,
		},
		{"init waits for its turn", pod(withInit, "phase: Pending, initContainerStatuses: [{name: i, state: {waiting: {reason: PodInitializing}}}]"), "p | 0/1 | Init:0/2 | 0" + tail},
		{"init image", pod(withInit, "phase: Pending, initContainerStatuses: [{name: i, state: {waiting: {reason: ErrImagePull}}}]"), "p | 0/1 | Init:ErrImagePull | 0" + tail},
		{
			"init crash loop",
			pod(withInit, `phase: Pending, initContainerStatuses: [{name: i, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1, finishedAt: "1999-12-31T23:59:00Z"}}}]`),
			"p | 0/1 | Init:CrashLoopBackOff | 4 (60s ago)" + tail,
		},
		{"init error", pod(withInit, "phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 1, reason: Error}}}]"), "p | 0/1 | Init:Error | 0" + tail},
		{"init exit code", pod(withInit, "phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 2}}}]"), "p | 0/1 | Init:ExitCode:2 | 0" + tail},
		{"init signal", pod(withInit, "phase: Pending, initContainerStatuses: [{name: i, state: {terminated: {exitCode: 2, signal: 15}}}]"), "p | 0/1 | Init:Signal:15 | 0" + tail},
		{
			"initialized: restarts start anew",
			pod(withInit, "phase: Running, initContainerStatuses: [{name: i, restartCount: 5, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: a, restartCount: 1, "+running+"}]"),
			"p | 1/1 | Running | 1" + tail,
		},
		{
			"sidecar",
			pod(withSidecar, "phase: Running, initContainerStatuses: [{name: s, started: true, restartCount: 2, "+running+"}, {name: j, restartCount: 9, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: a, restartCount: 1, "+running+"}]"),
			"p | 2/2 | Running | 3" + tail,
		},
		{
			"sidecar not started", pod(withSidecar, "phase: Pending, initContainerStatuses: [{name: s, state: {running: {}}}, {name: j, state: {waiting: {reason: PodInitializing}}}]"),
			"p | 0/2 | Init:0/2 | 0" + tail,
		},
		{
			"sidecar fails after the start",
			pod(withSidecar, `phase: Running, conditions: [{type: Initialized, status: "True"}], initContainerStatuses: [{name: s, state: {waiting: {reason: CrashLoopBackOff}}}], containerStatuses: [{name: a, `+running+`}]`),
			"p | 1/2 | Init:CrashLoopBackOff | 0" + tail,
		},
		{"terminating", dying("phase: Running, containerStatuses: [{name: a, " + running + "}]"), "p | 1/1 | Terminating | 0" + tail},
		{"ended and being deleted", dying("phase: Succeeded, containerStatuses: [{name: a, state: {terminated: {exitCode: 0, reason: Completed}}}]"), "p | 0/1 | Completed | 0" + tail},
		{"on a lost node", dying("phase: Running, reason: NodeLost, containerStatuses: [{name: a, " + running + "}]"), "p | 1/1 | Unknown | 0" + tail},
		{"of no age", "{metadata: {name: p}, status: {phase: Pending}}", "p | 0/0 | Pending | 0 | <unknown> | <none> | <none> | <none> | <none>"},
	})
}

// TestCompletedRows marks what kubectl may hide.
func TestCompletedRows(t *testing.T) {
	t.Parallel()
	for phase, want := range map[corev1.PodPhase]int{corev1.PodRunning: 0, corev1.PodSucceeded: 1, corev1.PodFailed: 1} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
		table, err := TableOf(resourceOf("pods")).ConvertToTable(context.Background(), pod, nil)
		if err != nil {
			t.Fatal(err)
		}
		conditions := table.Rows[0].Conditions
		if len(conditions) != want {
			t.Errorf("%s: conditions = %+v", phase, conditions)
		}
		for _, c := range conditions {
			if c.Type != metav1.RowCompleted || c.Status != metav1.ConditionTrue || c.Reason != string(phase) {
				t.Errorf("%s: condition = %+v", phase, c)
			}
		}
	}
}
