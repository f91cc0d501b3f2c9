package pods

// Tests of the answers to writes.

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	k8stesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// patched applies a patch of a status as the API does, and returns the answer.
func (w *world) patched(a k8stesting.Action, version int) *corev1.Pod {
	p := a.(k8stesting.PatchAction)
	old, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(w.find(p.GetNamespace(), p.GetName()))
	if err != nil {
		w.t.Fatal(err)
	}
	patch := map[string]any{}
	if err := json.Unmarshal(p.GetPatch(), &patch); err != nil {
		w.t.Fatal(err)
	}
	merged, err := strategicpatch.StrategicMergeMapPatch(old, patch, corev1.Pod{})
	if err != nil {
		w.t.Fatal(err)
	}
	var out corev1.Pod
	if err := apiruntime.DefaultUnstructuredConverter.FromUnstructured(merged, &out); err != nil {
		w.t.Fatal(err)
	}
	out.ResourceVersion = strconv.Itoa(version)
	w.set(&out)
	return &out
}

func (w *world) set(p *corev1.Pod) {
	if err := w.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
		w.t.Fatal(err)
	}
}

// TestLateAnswer: the answer to a patch arrives after the watch has delivered a newer pod.
func TestLateAnswer(t *testing.T) {
	changes := map[string]struct {
		last   corev1.PodPhase // of the last patch: no later answer corrects a wrong one
		change func(p *corev1.Pod)
		check  func(w *world)
	}{
		"label": {
			corev1.PodRunning,
			func(p *corev1.Pod) { p.Labels = map[string]string{"new": "yes"} },
			func(w *world) {
				if got := w.runner.list()[0].Labels["new"]; got != "yes" {
					w.t.Errorf("label new is %q: the older pod has replaced the newer", got)
				}
			},
		},
		"deletion": {
			corev1.PodSucceeded,
			func(p *corev1.Pod) {
				at, seconds := p.CreationTimestamp, int64(5)
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &seconds
			},
			func(w *world) {
				if w.find("default", "a") != nil {
					w.t.Error("the deletion was forgotten")
				}
			},
		},
	}
	for name, tt := range changes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, memory.Options{Start: func(runtime.Container) memory.Behaviour {
					if tt.last == corev1.PodRunning {
						return memory.Behaviour{}
					}
					return memory.Behaviour{ExitAfter: 5 * time.Second}
				}})
				version, late := 9, sync.Once{} // 9 < 10, also where versions are compared
				w.api.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, apiruntime.Object, error) {
					version++
					answer := w.patched(a, version)
					if answer.Status.Phase != tt.last {
						return true, answer, nil
					}
					late.Do(func() {
						version++
						newer := answer.DeepCopy()
						newer.ResourceVersion = strconv.Itoa(version)
						tt.change(newer)
						w.set(newer)
						time.Sleep(time.Second) // until the watch has delivered it
					})
					return true, answer, nil
				})
				w.start()
				w.create(newPod("a", func(p *corev1.Pod) { p.ResourceVersion, p.Spec.RestartPolicy = "8", corev1.RestartPolicyNever }))
				advance(time.Minute)
				tt.check(w)
				w.stop()
			})
		})
	}
}

// TestRestoredServer: a server that was restored from a backup has lower versions than before.
// They are accepted once staleFor has passed.
func TestRestoredServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		version := 1000
		w.api.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, apiruntime.Object, error) {
			version++
			return true, w.patched(a, version), nil
		})
		w.start()
		w.create(newPod("a", func(p *corev1.Pod) { p.ResourceVersion = "999" }))
		advance(10 * time.Second)
		w.wantPhase("a", corev1.PodRunning)
		version = 50
		w.update("a", func(p *corev1.Pod) {
			p.ResourceVersion = "50"
			p.Labels = map[string]string{"restored": "yes"}
			p.Status.Phase = corev1.PodPending
		})
		advance(2 * time.Minute)
		w.wantPhase("a", corev1.PodRunning)
		if got := w.runner.list()[0].Labels["restored"]; got != "yes" {
			t.Errorf("label restored is %q: the restored server's pod was never taken up", got)
		}
		w.stop()
	})
}

// A pod whose phase another client makes final is stopped, as by a kubelet, and keeps phase and
// reason.
func TestEndedByAnother(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} {
		t.Run(string(phase), func(t *testing.T) {
			o := memory.Options{Start: func(runtime.Container) memory.Behaviour {
				return memory.Behaviour{TermDelay: 5 * time.Second, TermCode: 7}
			}}
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", nil))
				advance(time.Second)
				w.wantRunning("at first", w.pod("a"))
				w.update("a", func(p *corev1.Pod) {
					p.Status.Phase, p.Status.Reason, p.Status.Message = phase, "Lost", "another says so"
				})
				for _, after := range []time.Duration{4 * time.Second, time.Minute} {
					advance(after)
					if st := w.pod("a").Status; st.Phase != phase || st.Reason != "Lost" || st.Message != "another says so" {
						t.Errorf("status %s %q %q", st.Phase, st.Reason, st.Message)
					}
				}
				w.wantRunning("at last")
				w.wantState("a", "main", "Terminated Error 7")
				w.wantEvent("a Normal Killing Stopping container main")
			})
		})
	}
}

// TestTerminationMessageIsText: a message that is no UTF-8 is written once, and a character
// that a bound cuts is left out.
func TestTerminationMessageIsText(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		switch c.Name {
		case "binary":
			_ = os.WriteFile(c.TerminationLog, []byte("a\xffb"), 0o600)
		case "long":
			_ = os.WriteFile(c.TerminationLog, []byte("é"+strings.Repeat("x", maxTermination-1)), 0o600)
		case "logs":
			_ = os.WriteFile(c.LogPath, []byte("2026-01-01T00:00:00.0Z stdout F é"+strings.Repeat("x", maxTerminationLog-2)+"\n"), 0o600)
		}
		return memory.Behaviour{ExitAfter: time.Second, ExitCode: 1}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers = []corev1.Container{container1("binary"), container1("long"), container1("logs")}
			p.Spec.Containers[2].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}))
		advance(10 * time.Minute)
		want := map[string]string{
			"binary": "a\uFFFDb", "long": strings.Repeat("x", maxTermination-1), "logs": strings.Repeat("x", maxTerminationLog-2) + "\n",
		}
		for _, cs := range w.pod("a").Status.ContainerStatuses {
			if cs.State.Terminated == nil || cs.State.Terminated.Message != want[cs.Name] {
				t.Errorf("container %s: %+v, want message %q", cs.Name, cs.State.Terminated, want[cs.Name])
			}
		}
		if w.patches > 10 {
			t.Errorf("%d writes of a pod that has ended", w.patches)
		}
	})
}

// TestEqualInJSON: a status whose difference JSON does not show counts as written, also at a
// shutdown of the machine.
func TestEqualInJSON(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		if c.Name == "bad" {
			return memory.Behaviour{Err: errors.New("cannot run \xff")}
		}
		return memory.Behaviour{}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Containers = []corev1.Container{container1("bad"), container1("main")}
		}))
		advance(10 * time.Minute)
		w.wantState("a", "main", "Running")
		if w.patches > 10 {
			t.Errorf("%d writes of a pod that does not change", w.patches)
		}
		if d := <-w.shutDown(w.t.Context(), thirty); d > time.Second {
			t.Errorf("the shutdown waited for %v", d)
		}
		w.wantTerminated("a")
	})
}
