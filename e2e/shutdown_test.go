// A machine that shuts down while its node has pods.

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/e2e/await"
	"github.com/hawser-project/hawser/node/shutdown/logindtest"
)

// leavingPods are a regular pod and a critical one. Each notes in a file when its preStop
// hook has run and when it was told to end.
const leavingPods = `
apiVersion: v1
kind: Pod
metadata: {name: regular}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 60
  containers:
  - name: main
    image: none
    command: [sh, -c, "trap 'echo regular term >>/notes/all; exit 0' TERM; while :; do sleep 0.1; done"]
    lifecycle: {preStop: {exec: {command: [sh, -c, "echo regular preStop >>/notes/all"]}}}
    volumeMounts: [{name: notes, mountPath: /notes}]
  volumes: [{name: notes, hostPath: {path: %[1]s}}]
---
apiVersion: v1
kind: Pod
metadata: {name: critical, namespace: kube-system}
spec:
  nodeName: node-1
  priorityClassName: system-node-critical
  containers:
  - name: main
    image: none
    command: [sh, -c, "trap 'echo critical term >>/notes/all; exit 0' TERM; while :; do sleep 0.1; done"]
    volumeMounts: [{name: notes, mountPath: /notes}]
  volumes: [{name: notes, hostPath: {path: %[1]s}}]
---
apiVersion: v1
kind: Pod
metadata: {name: done}
spec:
  nodeName: node-1
  restartPolicy: Never
  containers: [{name: main, image: none, command: ["true"]}]
`

// The machine waits for its pods, the API knows why they ended, and they stay ended.
func TestMachineShutdown(t *testing.T) {
	t.Parallel()
	bus := logindtest.StartBus(t)
	logind := logindtest.Start(bus, time.Minute, func() time.Duration { return time.Minute })
	c := &cluster{dir: shortTempDir(t), port: await.FreePort(t), env: []string{"DBUS_SYSTEM_BUS_ADDRESS=" + bus.Address}}
	// Every pod names its node: none needs the scheduler.
	c.start(t, "--nodes=1", "--server-arg=--controllers=*,-kube-scheduler", "--agent-arg=--shutdown-grace-period=30s", "--agent-arg=--shutdown-grace-period-critical-pods=10s")
	lock := logind.Locked()
	eventually(t, "the agent has the lock", func() error {
		log, err := os.ReadFile(c.logFiles()[1])
		if err == nil && !strings.Contains(string(log), "a shutdown of the machine waits for pods") {
			err = errors.New("it has not said so")
		}
		return err
	})
	lock.Delivered()
	notes := shortTempDir(t)
	c.mustKubectl(t, fmt.Sprintf(leavingPods, notes), "apply", "-f", "-")
	c.mustKubectl(t, "", "wait", "pod/regular", "--for=condition=Ready", "--timeout=2m")
	c.mustKubectl(t, "", "wait", "-n=kube-system", "pod/critical", "--for=condition=Ready", "--timeout=2m")
	c.mustKubectl(t, "", "wait", "pod/done", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=2m")

	logind.Announce(true)
	select {
	case <-lock.Released():
	case <-time.After(patience):
		t.Fatal("the machine is kept from shutting down")
	}
	// The API has it all before the machine goes on.
	const status = "jsonpath={.status.phase} {.status.reason} {.status.message} {.status.conditions[?(@.type=='DisruptionTarget')].reason}"
	terminated := "Failed Terminated Pod was terminated in response to imminent node shutdown. TerminationByKubelet"
	for _, pod := range [][]string{{"default", "regular", terminated}, {"kube-system", "critical", terminated}, {"default", "done", "Succeeded"}} {
		if got := strings.TrimSpace(c.mustKubectl(t, "", "get", "pod", "-n="+pod[0], pod[1], "-o="+status)); got != pod[2] {
			t.Errorf("%s: %q, want %q", pod[1], got, pod[2])
		}
	}
	if got := c.mustKubectl(t, "", "describe", "pod", "regular"); !strings.Contains(got, "Pod was terminated in response to imminent node shutdown.") {
		t.Errorf("kubectl describe pod: %s", got)
	}
	for _, pod := range []string{"regular", "done"} { // the column is how its container ended, which is exit code 0
		if got := strings.Fields(c.mustKubectl(t, "", "get", "pod", pod, "--no-headers")); len(got) < 4 || strings.Join(got[1:4], " ") != "0/1 Completed 0" {
			t.Errorf("kubectl get pod: %q", got)
		}
	}
	const ready = "jsonpath={.status.conditions[?(@.type=='Ready')]['status','reason','message']}"
	if got := c.mustKubectl(t, "", "get", "node", "node-1", "-o="+ready); got != "False KubeletNotReady node is shutting down" {
		t.Errorf("the node is ready: %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(notes, "all")); err != nil || string(got) != "regular preStop\nregular term\ncritical term\n" {
		t.Errorf("the pods have noted %q, %v", got, err)
	}
	c.mustKubectl(t, shellPod("late", "sleep 1000"), "apply", "-f", "-")
	eventually(t, "a new pod is refused", func() error {
		const want = "Failed NodeShutdown Pod was rejected as the node is shutting down."
		if got := strings.TrimSpace(c.mustKubectl(t, "", "get", "pod", "late", "-o="+status)); got != want {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	eventually(t, "an event tells of the shutdown", func() error {
		if got := c.mustKubectl(t, "", "get", "events", "-A", "--field-selector=involvedObject.kind=Node,reason=Shutdown", "-o=jsonpath={.items[*].message}"); got != "Shutdown manager detected shutdown event" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})

	// Somebody cancels it.
	logind.Announce(false)
	logind.Locked()
	c.mustKubectl(t, "", "wait", "node/node-1", "--for=condition=Ready", "--timeout=2m")
	c.mustKubectl(t, shellPod("next", "sleep 1000"), "apply", "-f", "-")
	c.mustKubectl(t, "", "wait", "pod/next", "--for=condition=Ready", "--timeout=2m")
	if got := strings.TrimSpace(c.mustKubectl(t, "", "get", "pod", "regular", "-o="+status)); got != terminated {
		t.Errorf("after the shutdown was cancelled: %q", got)
	}

	// An agent that starts anew, as after a reboot, leaves ended what has ended.
	c.restartNode(t, "node-1")
	eventually(t, "the next agent serves the pod that runs", func() error {
		if _, stderr, code := c.kubectl(t, "", "exec", "next", "--", "true"); code != 0 {
			return errors.New(stderr)
		}
		return nil
	})
	if got := strings.TrimSpace(c.mustKubectl(t, "", "get", "pod", "regular", "-o="+status)); got != terminated {
		t.Errorf("after the agent's restart: %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(notes, "all")); err != nil || string(got) != "regular preStop\nregular term\ncritical term\n" {
		t.Errorf("after the agent's restart the pods have noted %q, %v", got, err)
	}
}

// shellPod is the manifest of a pod of node-1 with a shell.
func shellPod(name, script string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeName: node-1, containers: [{name: main, image: none, command: [sh, -c, %q]}]}}", name, script)
}
