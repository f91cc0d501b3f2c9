package pods

// Tests of the life of a pod: it starts, crashes, waits and ends.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// exits makes containers that end after a while with a code, by container name.
func exits(after time.Duration, codes map[string]int) memory.Options {
	return memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		code, ok := codes[c.Name]
		if !ok {
			return memory.Behaviour{}
		}
		return memory.Behaviour{ExitAfter: after, ExitCode: code}
	}}
}

func TestPodRuns(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		w.wantPhase("a", corev1.PodRunning)
		w.wantState("a", "main", "Running")
		p := w.pod("a")
		for c, want := range map[corev1.PodConditionType]string{
			corev1.PodReady: "True", corev1.ContainersReady: "True", corev1.PodInitialized: "True",
			corev1.PodReadyToStartContainers: "True", corev1.PodScheduled: "True",
		} {
			if got := condition(p, c); got != want {
				t.Errorf("condition %s is %s, want %s", c, got, want)
			}
		}
		cs := p.Status.ContainerStatuses[0]
		if !strings.HasPrefix(cs.ContainerID, "memory://") || !cs.Ready || cs.Started == nil || !*cs.Started || cs.RestartCount != 0 {
			t.Errorf("container status %+v", cs)
		}
		if p.Status.PodIP != "10.1.1.1" || p.Status.HostIP != "10.1.1.1" || len(p.Status.PodIPs) != 1 || p.Status.StartTime == nil {
			t.Errorf("status %+v", p.Status)
		}
		if p.Status.QOSClass != corev1.PodQOSBestEffort || p.Status.ObservedGeneration != 1 {
			t.Errorf("QOS class %q, observed generation %d", p.Status.QOSClass, p.Status.ObservedGeneration)
		}
		w.wantEvent(`a Normal Pulled Container image "busybox" is recorded and not pulled`)
		w.wantEvent("a Normal Created Created container: main")
		w.wantEvent("a Normal Started Started container main")
	})
}

func TestNothingIsWrittenWhileNothingChanges(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		before := w.patches
		advance(time.Hour)
		if w.patches != before {
			t.Errorf("%d writes in an hour without change", w.patches-before)
		}
	})
}

// TestCrashBackOff checks the times of restarts: at once, then after 10 s, doubled
// up to 5 min.
func TestCrashBackOff(t *testing.T) {
	inWorld(t, exits(time.Second, map[string]int{"main": 1}), func(w *world) {
		w.create(newPod("a", nil))
		var starts []time.Time
		seen := map[int]bool{}
		for range 1600 {
			for _, c := range w.rt.Specs() {
				if !seen[c.Attempt] {
					seen[c.Attempt] = true
					starts = append(starts, time.Now())
				}
			}
			advance(time.Second)
		}
		var gaps []int
		for i := 1; i < len(starts); i++ {
			gaps = append(gaps, int(starts[i].Sub(starts[i-1]).Seconds())-1) // less the second it ran
		}
		if got, want := fmt.Sprint(gaps), "[0 10 20 40 80 160 300 300 300 300]"; got != want {
			t.Errorf("waits between attempts %s, want %s", got, want)
		}
		w.wantState("a", "main", "Waiting CrashLoopBackOff")
		cs := w.pod("a").Status.ContainerStatuses[0]
		if stateOf(corev1.ContainerState(cs.LastTerminationState)) != "Terminated Error 1" || int(cs.RestartCount) != len(starts)-1 {
			t.Errorf("status %+v after %d starts", cs, len(starts))
		}
		if want := "back-off 5m0s restarting failed container=main pod=a_default(" + string(w.pod("a").UID) + ")"; cs.State.Waiting.Message != want {
			t.Errorf("message %q, want %q", cs.State.Waiting.Message, want)
		}
		w.wantEvent("Warning BackOff Back-off restarting failed container main in pod a_default(")
		if n := len(w.rt.Specs()); n != 1 {
			t.Errorf("the runtime keeps %d attempts, want the newest", n)
		}
	})
}

func TestBackOffIsForgottenAfterALongRun(t *testing.T) {
	var long atomic.Bool
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour {
		if long.Load() {
			return memory.Behaviour{ExitAfter: 11 * time.Minute, ExitCode: 1}
		}
		return memory.Behaviour{ExitAfter: time.Second, ExitCode: 1}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", nil))
		advance(3 * time.Minute)
		w.wantState("a", "main", "Waiting CrashLoopBackOff")
		long.Store(true)
		advance(5 * time.Minute)
		w.wantState("a", "main", "Running")
		long.Store(false)
		for restarts := w.pod("a").Status.ContainerStatuses[0].RestartCount; w.pod("a").Status.ContainerStatuses[0].RestartCount == restarts; {
			advance(time.Second)
		}
		// It has been started again at once, ends after a second, and waits for no more
		// than the first delay.
		advance(2 * time.Second)
		if m := w.pod("a").Status.ContainerStatuses[0].State.Waiting; m == nil || !strings.Contains(m.Message, "back-off 10s ") {
			t.Errorf("state %+v, want a back-off of 10 s", w.pod("a").Status.ContainerStatuses[0].State)
		}
	})
}

func TestRestartPolicies(t *testing.T) {
	for _, tt := range []struct {
		policy    corev1.RestartPolicy
		code      int
		phase     corev1.PodPhase
		state     string
		restarted bool
	}{
		{corev1.RestartPolicyNever, 0, corev1.PodSucceeded, "Terminated Completed 0", false},
		{corev1.RestartPolicyNever, 3, corev1.PodFailed, "Terminated Error 3", false},
		{corev1.RestartPolicyOnFailure, 0, corev1.PodSucceeded, "Terminated Completed 0", false},
		{corev1.RestartPolicyOnFailure, 3, corev1.PodRunning, "Waiting CrashLoopBackOff", true},
		{corev1.RestartPolicyAlways, 0, corev1.PodRunning, "Waiting CrashLoopBackOff", true},
		{corev1.RestartPolicyAlways, 3, corev1.PodRunning, "Waiting CrashLoopBackOff", true},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.policy, tt.code), func(t *testing.T) {
			inWorld(t, exits(time.Second, map[string]int{"main": tt.code}), func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = tt.policy }))
				advance(4 * time.Second)
				w.wantPhase("a", tt.phase)
				w.wantState("a", "main", tt.state)
				if got := w.pod("a").Status.ContainerStatuses[0].RestartCount > 0; got != tt.restarted {
					t.Errorf("restarted %v, want %v", got, tt.restarted)
				}
				wantReady := map[corev1.PodPhase]string{
					corev1.PodSucceeded: "False PodCompleted", corev1.PodFailed: "False PodFailed", corev1.PodRunning: "False ContainersNotReady",
				}[tt.phase]
				if got := condition(w.pod("a"), corev1.PodReady); got != wantReady {
					t.Errorf("Ready is %s, want %s", got, wantReady)
				}
			})
		})
	}
}

func TestOOMKilledIsSaid(t *testing.T) {
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour {
		return memory.Behaviour{ExitAfter: time.Second, ExitCode: 137, OOMKilled: true}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		advance(2 * time.Second)
		w.wantState("a", "main", "Terminated OOMKilled 137")
	})
}

func TestGracefulDeletion(t *testing.T) {
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour {
		return memory.Behaviour{TermDelay: 5 * time.Second, TermCode: 0}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, container1("other"))
		}))
		advance(time.Second)
		dir := filepath.Join(w.cfg.Dir, "pods", string(w.pod("a").UID))
		w.remove("a", 30)
		advance(4 * time.Second)
		w.wantPhase("a", corev1.PodRunning)
		advance(time.Second)
		if p := w.find("default", "a"); p != nil {
			t.Errorf("pod is still there: %+v", p.Status)
		}
		if got := w.phases; len(got) != 1 {
			t.Errorf("phases %v", got)
		}
		for uid, phase := range w.phases {
			if phase != corev1.PodSucceeded {
				t.Errorf("pod %s ended as %s, want Succeeded: its containers ended with 0", uid, phase)
			}
		}
		if n := len(w.rt.Specs()); n != 0 {
			t.Errorf("%d containers are left", n)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("directory of the pod: %v, want none", err)
		}
		if logs, err := os.ReadDir(filepath.Join(w.cfg.Dir, "logs")); err != nil || len(logs) != 0 {
			t.Errorf("logs %v, %v; want none", logs, err)
		}
		w.wantEvent("a Normal Killing Stopping container main")
		w.wantEvent("a Normal Killing Stopping container other")
	})
}

func TestGraceEnds(t *testing.T) {
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour {
		return memory.Behaviour{TermDelay: time.Hour}
	}}
	t.Run("killed when it is over", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", nil))
			advance(time.Second)
			uid := w.pod("a").UID
			w.remove("a", 20)
			advance(19 * time.Second)
			w.wantPhase("a", corev1.PodRunning)
			advance(2 * time.Second)
			if w.find("default", "a") != nil || w.phases[uid] != corev1.PodFailed {
				t.Errorf("pod ended as %s, want Failed and gone", w.phases[uid])
			}
		})
	})
	t.Run("shortened by a second delete", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", nil))
			advance(time.Second)
			w.remove("a", 3600)
			advance(10 * time.Second)
			w.remove("a", 5)
			advance(6 * time.Second)
			if w.find("default", "a") != nil {
				t.Error("pod is still there")
			}
			w.wantCalls("start a/main#0", "stop a/main#0 1h0m0s", "stop a/main#0 5s", "remove a/main#0")
		})
	})
	t.Run("forced", func(t *testing.T) {
		inWorld(t, o, func(w *world) {
			w.create(newPod("a", nil))
			advance(time.Second)
			w.update("a", func(p *corev1.Pod) {
				now := metav1.Now()
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, ptr.To[int64](0)
			})
			w.remove("a", -1)
			advance(2 * time.Second)
			if n := len(w.rt.Specs()); n != 0 {
				t.Errorf("%d containers are left", n)
			}
		})
	})
}

func TestStartErrors(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour {
		if broken.Load() {
			return memory.Behaviour{Err: errors.New(`exec: "foo": executable file not found in $PATH`)}
		}
		return memory.Behaviour{}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		w.wantState("a", "main", "Waiting CrashLoopBackOff")
		cs := w.pod("a").Status.ContainerStatuses[0]
		last := cs.LastTerminationState.Terminated
		if last == nil || last.Reason != "StartError" || last.ExitCode != 128 || !strings.Contains(last.Message, "executable file not found") {
			t.Errorf("last state %+v", last)
		}
		w.wantEvent(`a Warning Failed Error: exec: "foo": executable file not found in $PATH`)
		before := cs.RestartCount
		w.restart() // what the runtime does not know is remembered
		broken.Store(false)
		advance(time.Minute)
		w.wantState("a", "main", "Running")
		if got := w.pod("a").Status.ContainerStatuses[0].RestartCount; got <= before {
			t.Errorf("restart count %d after %d", got, before)
		}
	})
	broken.Store(true)
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
		advance(time.Second)
		w.wantPhase("a", corev1.PodFailed)
		w.wantState("a", "main", "Terminated StartError 128")
	})
}

func TestMissingConfiguration(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("env", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		}))
		w.create(newPod("vol", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
			}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/etc/v"}}
		}))
		w.create(newPod("args", func(p *corev1.Pod) {
			p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = nil, []string{"x"}
		}))
		advance(time.Second)
		w.wantState("env", "main", "Waiting CreateContainerConfigError")
		if m := w.pod("env").Status.ContainerStatuses[0].State.Waiting.Message; m != `configmap "settings" not found` {
			t.Errorf("message %q", m)
		}
		w.wantState("vol", "main", "Waiting ContainerCreating")
		w.wantEvent(`vol Warning FailedMount MountVolume.SetUp failed for volume "v" : configmap "settings" not found`)
		w.wantState("args", "main", "Waiting CreateContainerConfigError")
		w.wantEvent(`args Warning Failed Error: container "main" has no command: this node runs commands of its own machine and takes none from image "busybox", so set command (kubectl run: --command)`)

		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"KEY": "value"}}
		if err := w.api.Tracker().Add(cm); err != nil {
			t.Fatal(err)
		}
		advance(20 * time.Second)
		w.wantState("env", "main", "Running")
		w.wantState("vol", "main", "Running")
		for _, c := range w.rt.Specs() {
			switch c.Pod.Name {
			case "env":
				if got := strings.Join(c.Env, " "); got != "HOSTNAME=env KEY=value" {
					t.Errorf("environment %q", got)
				}
			case "vol":
				data, err := os.ReadFile(filepath.Join(c.Mounts[0].HostPath, "KEY"))
				if err != nil || string(data) != "value" || c.Mounts[0].ContainerPath != "/etc/v" {
					t.Errorf("mount %+v has %q, %v", c.Mounts[0], data, err)
				}
			}
		}
	})
}

// The host name of a pod is as a kubelet and a container runtime have it.
func TestHostname(t *testing.T) {
	override, empty := "db.example.com", ""
	long := strings.Repeat("a", 62)
	for _, tt := range []struct {
		name string
		spec corev1.PodSpec
		want string // empty: the machine's
	}{
		{"web", corev1.PodSpec{}, "web"},
		{"web", corev1.PodSpec{Hostname: "www"}, "www"},
		{"web", corev1.PodSpec{Hostname: "www", HostnameOverride: &override}, override},
		{"web", corev1.PodSpec{HostnameOverride: &empty}, "web"},
		{"web", corev1.PodSpec{HostNetwork: true}, ""},
		{long + "b-c", corev1.PodSpec{}, long + "b"},
		{long + "-b", corev1.PodSpec{}, long},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: tt.name}, Spec: tt.spec}
		if got := hostname(pod); got != tt.want {
			t.Errorf("%s %+v: %q, want %q", tt.name, tt.spec, got, tt.want)
		}
	}
}

// Programs find the API server by what client-go looks for, unless the pod says
// otherwise.
func TestWhereabouts(t *testing.T) {
	for addr, want := range map[string]string{
		"":                      "HOSTNAME=a KUBERNETES_SERVICE_PORT=1 X=-1",
		"server.example.com:64": "HOSTNAME=a KUBERNETES_SERVICE_HOST=server.example.com KUBERNETES_SERVICE_PORT=1 KUBERNETES_SERVICE_PORT_HTTPS=64 X=server.example.com-1",
		"[2001:db8::1]:6443":    "HOSTNAME=a KUBERNETES_SERVICE_HOST=2001:db8::1 KUBERNETES_SERVICE_PORT=1 KUBERNETES_SERVICE_PORT_HTTPS=6443 X=2001:db8::1-1",
	} {
		known, err := apiServerVars(addr)
		if err != nil {
			t.Fatal(err)
		}
		c := &corev1.Container{Env: []corev1.EnvVar{
			{Name: "KUBERNETES_SERVICE_PORT", Value: "1"},
			{Name: "HOSTNAME", Value: "a"},
			{Name: "X", Value: "$(KUBERNETES_SERVICE_HOST)-$(KUBERNETES_SERVICE_PORT)"},
		}}
		if err := environment(t.Context(), nil, nil, &corev1.Pod{}, c, downward.Facts{}, newVariables(known)); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(strings.Join(flat(known), " "), "$(KUBERNETES_SERVICE_HOST)", ""); got != want {
			t.Errorf("%q: %q, want %q", addr, got, want)
		}
	}
	if _, err := apiServerVars("nonsense"); err == nil {
		t.Error("nonsense is an address")
	}
}

func TestDeadline(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) }))
		advance(59 * time.Second)
		w.wantPhase("a", corev1.PodRunning)
		advance(2 * time.Second)
		w.wantPhase("a", corev1.PodFailed)
		if got := w.pod("a").Status.Reason; got != "DeadlineExceeded" {
			t.Errorf("reason %q", got)
		}
		w.wantEvent("a Normal DeadlineExceeded")
	})
}

func TestEphemeralContainer(t *testing.T) {
	inWorld(t, exits(5*time.Second, map[string]int{"debug": 0}), func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		w.update("a", func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(container1("debug"))}}
		})
		advance(time.Second)
		w.wantState("a", "debug", "Running")
		advance(time.Minute)
		w.wantState("a", "debug", "Terminated Completed 0")
		w.wantPhase("a", corev1.PodRunning)
		if got := condition(w.pod("a"), corev1.PodReady); got != "True" {
			t.Errorf("Ready is %s", got)
		}
		w.wantCalls("start a/main#0", "start a/debug#0")
	})
}

// TestSameNameAnotherPod: a name is an identity, and is not used twice at the same
// time.
func TestSameNameAnotherPod(t *testing.T) {
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour {
		return memory.Behaviour{TermDelay: 10 * time.Second}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		first := w.pod("a").UID
		w.remove("a", -1)
		second := newPod("a", nil)
		w.create(second)
		advance(9 * time.Second)
		if specs := w.rt.Specs(); len(specs) != 1 || specs[0].Pod.UID != first {
			t.Errorf("containers %+v, want the one that ends", specs)
		}
		if p, err := w.runner.Pod(t.Context(), types.NamespacedName{Namespace: "default", Name: "a"}, ""); err != nil || p.UID != second.UID {
			t.Errorf("Pod finds %v, %v", p, err)
		}
		advance(2 * time.Second)
		w.wantState("a", "main", "Running")
		if specs := w.rt.Specs(); len(specs) != 1 || specs[0].Pod.UID != second.UID {
			t.Errorf("containers %+v, want that of the second pod", specs)
		}
	})
}
