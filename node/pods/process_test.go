package pods

// Tests of ended containers that are real processes.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
	"github.com/hawser-project/hawser/node/runtime/process"
)

// processPatience bounds every wait. It is far more than any takes.
const processPatience = time.Minute

// startProcesses starts a process runtime and returns it with the directory of its
// containers, which has another directory in it already: stray.
func startProcesses(t *testing.T, dir string, iso process.Isolation) (*process.Runtime, string) {
	t.Helper()
	data, group := filepath.Join(dir, "runtime"), fmt.Sprintf("hawser-test-pods-%d", os.Getpid())
	containers := filepath.Join(data, "c")
	if err := os.MkdirAll(filepath.Join(containers, "stray"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(containers, "stray", "spec.json"), []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	rt, err := process.New(process.Config{DataDir: data, Isolation: iso, CgroupParent: group, LogMaxBytes: 1 << 20, LogMaxFiles: 2})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- rt.Run(ctx) }()
	t.Cleanup(func() {
		list, _ := rt.Containers(ctx)
		for _, c := range list {
			if err := rt.Stop(ctx, c.ID, 0); err != nil {
				t.Error(err)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		left, _ := filepath.Glob("/sys/fs/cgroup/*/" + group)
		for _, dir := range append(left, "/sys/fs/cgroup/"+group) {
			_ = os.Remove(dir)
		}
	})
	return rt, containers
}

// running is a Runner that runs until the test ends.
func running(t *testing.T, c Config) *Runner {
	t.Helper()
	c.NodeName, c.Events, c.Log = thisNode, noEvents{}, slog.New(slog.DiscardHandler)
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// eventually waits until check returns an empty string.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	end := time.Now().Add(processPatience)
	for check() != "" {
		if time.Now().After(end) {
			t.Fatal(check())
		}
		<-time.After(10 * time.Millisecond)
	}
}

// TestDeadProcesses: of a restarting container the runtime keeps the running and the last
// ended attempt, with their logs, and of a deleted pod none. A directory that is no container
// of the agent stays.
func TestDeadProcesses(t *testing.T) {
	dir := t.TempDir()
	rt, containers := startProcesses(t, dir, process.None)
	calm := filepath.Join(dir, "calm")
	pod := newPod("a", func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Command = []string{"/bin/sh", "-c", "echo said; test -e " + calm + " && exec sleep 1000; exit 3"}
		p.Spec.Containers = append(p.Spec.Containers, *c.DeepCopy())
		p.Spec.Containers[1].Name = "b"
	})
	api := fake.NewSimpleClientset(pod)
	ctx := t.Context()
	r := running(t, Config{
		API: apiclienttest.From(api), Runtime: rt, Dir: dir,
		CrashDelay: time.Millisecond, MaxCrashDelay: time.Millisecond, Collect: 20 * time.Millisecond, Housekeeping: 50 * time.Millisecond,
	})
	eventually(t, func() string { return restarted(r, pod, 5) })
	if err := os.WriteFile(calm, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string { // again if one has ended since that had not seen the file
		if missing := oneDeadEach(ctx, rt, r, pod); missing != "" {
			return missing
		}
		if dirs, err := os.ReadDir(containers); err != nil || len(dirs) != 5 {
			return fmt.Sprintf("directories %v, %v; want those of four containers and the stray one", dirs, err)
		}
		return ""
	})
	if err := api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if ids, err := rt.Sandboxes(ctx); err != nil || len(ids) > 0 {
			return fmt.Sprintf("sandboxes %v, %v; want none", ids, err)
		}
		return ""
	})
	if dirs, err := os.ReadDir(containers); err != nil || len(dirs) != 1 || dirs[0].Name() != "stray" {
		t.Errorf("directories %v, %v; want the stray one", dirs, err)
	}
}

// TestStartErrorsBackOff: a container that cannot be started is tried again after a while, also by a
// clock that goes on meanwhile.
func TestStartErrorsBackOff(t *testing.T) {
	var starts atomic.Int32
	rt := memory.New(memory.Options{Start: func(runtime.Container) memory.Behaviour {
		starts.Add(1)
		return memory.Behaviour{Err: errors.New("executable file not found in $PATH")}
	}})
	pod := newPod("a", nil)
	r := running(t, Config{
		API: apiclienttest.From(fake.NewSimpleClientset(pod)), Runtime: rt, Dir: t.TempDir(), CrashDelay: time.Hour, MaxCrashDelay: time.Hour,
	})
	eventually(t, func() string {
		p, err := r.Pod(t.Context(), idOf(pod).NamespacedName, "")
		if err != nil || len(p.Status.ContainerStatuses) != 1 {
			return fmt.Sprintf("pod %v, %v", p, err)
		}
		if w := p.Status.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CrashLoopBackOff" || starts.Load() > 2 { // the first restart is at once
			return fmt.Sprintf("after %d starts it waits for %v", starts.Load(), w)
		}
		return ""
	})
}

// noEvents discards events.
type noEvents struct{}

func (noEvents) Event(corev1.ObjectReference, string, string, string) {}

// restarted returns what is missing until each container of the pod has been restarted n
// times.
func restarted(r *Runner, pod *corev1.Pod, n int32) string {
	p, err := r.Pod(context.Background(), idOf(pod).NamespacedName, "")
	if err != nil || len(p.Status.ContainerStatuses) != 2 {
		return fmt.Sprintf("pod %v, %v", p, err)
	}
	for _, cs := range p.Status.ContainerStatuses {
		if cs.RestartCount < n {
			return fmt.Sprintf("container %s was restarted %d times, want %d", cs.Name, cs.RestartCount, n)
		}
	}
	return ""
}

// oneDeadEach returns what is missing until each container of the pod runs and has one ended
// attempt, in its status and with its log.
func oneDeadEach(ctx context.Context, rt *process.Runtime, r *Runner, pod *corev1.Pod) string {
	p, err := r.Pod(ctx, idOf(pod).NamespacedName, "")
	if err != nil {
		return err.Error()
	}
	list, err := rt.Containers(ctx)
	if err != nil || len(list) != 4 {
		return fmt.Sprintf("containers %v, %v; want four", list, err)
	}
	byID := map[string]runtime.ContainerStatus{}
	for _, c := range list {
		byID[c.ID] = c
	}
	for _, cs := range p.Status.ContainerStatuses {
		last := cs.LastTerminationState.Terminated
		if cs.State.Running == nil || last == nil || last.ExitCode != 3 {
			return fmt.Sprintf("status %+v", cs)
		}
		dead := byID[strings.TrimPrefix(last.ContainerID, "process://")]
		if dead.State != runtime.Exited || dead.Attempt != int(cs.RestartCount)-1 {
			return fmt.Sprintf("the last one of %s is %+v, want attempt %d", cs.Name, dead, cs.RestartCount-1)
		}
		if text, err := os.ReadFile(dead.LogPath); err != nil || !strings.Contains(string(text), "said") {
			return fmt.Sprintf("its log %q, %v", text, err)
		}
		if logs, err := os.ReadDir(filepath.Dir(dead.LogPath)); err != nil || len(logs) != 2 {
			return fmt.Sprintf("logs of %s: %v, %v; want two", cs.Name, logs, err)
		}
	}
	return ""
}
