package pods

// Tests of what a status has.

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestReadyToStartContainers: the condition says why it is false, in the kubelet's words.
func TestReadyToStartContainers(t *testing.T) {
	want := func(w *world, want string) {
		w.t.Helper()
		c := conditionOf(w.pod("a").Status.Conditions, corev1.PodReadyToStartContainers)
		if got := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); got != want {
			w.t.Errorf("condition %q, want %q", got, want)
		}
	}
	t.Run("ends", func(t *testing.T) {
		inWorld(t, exits(time.Second, map[string]int{"main": 0}), func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }))
			want(w, "True : ")
			advance(2 * time.Second)
			want(w, "False PodSandboxNotReady: pod sandbox is not ready")
			w.restart()
			want(w, "False PodSandboxNotReady: pod sandbox is not ready")
		})
	})
	t.Run("has no sandbox", func(t *testing.T) {
		inWorld(t, memory.Options{}, func(w *world) {
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					Secret: &corev1.SecretVolumeSource{SecretName: "none"},
				}}}
				p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			}))
			want(w, "False PodSandboxNotReady: no pod sandbox exists")
		})
	})
}

// A shallow runtime cannot make the mounts below a read-only one read-only.
type shallow struct{ *memory.Runtime }

func (s shallow) Info(ctx context.Context) (runtime.Info, error) {
	info, err := s.Runtime.Info(ctx)
	info.RecursiveReadOnly = false
	return info, err
}

// TestVolumeMountsInStatus: a status has the mounts of each container, also before it runs, and says
// of read-only ones what they are and not what was asked for.
func TestVolumeMountsInStatus(t *testing.T) {
	mounts := []corev1.VolumeMount{
		{Name: "v", MountPath: "/rw"},
		{Name: "v", MountPath: "/ro", ReadOnly: true},
		{Name: "v", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyIfPossible)},
	}
	for mode, recursive := range map[corev1.RecursiveReadOnlyMode]bool{corev1.RecursiveReadOnlyEnabled: true, corev1.RecursiveReadOnlyDisabled: false} {
		t.Run(string(mode), func(t *testing.T) {
			want := []corev1.VolumeMountStatus{
				{Name: "v", MountPath: "/rw"},
				{Name: "v", MountPath: "/ro", ReadOnly: true, RecursiveReadOnly: &mode},
				{Name: "v", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: &mode},
			}
			inWorld(t, memory.Options{}, func(w *world) {
				if !recursive {
					w.stop()
					w.cfg.Runtime = shallow{w.rt}
					w.start()
				}
				w.create(newPod("a", func(p *corev1.Pod) {
					withInit("i1")(p)
					p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
					p.Spec.Containers[0].VolumeMounts, p.Spec.InitContainers[0].VolumeMounts = mounts, mounts
				}))
				st := w.pod("a").Status
				for _, cs := range []corev1.ContainerStatus{st.InitContainerStatuses[0], st.ContainerStatuses[0]} {
					if !equality.Semantic.DeepEqual(cs.VolumeMounts, want) {
						t.Errorf("container %s: %+v", cs.Name, cs.VolumeMounts)
					}
				}
			})
		})
	}
}

// TestRecursiveReadOnlyEnabled: a container that needs it does not start where it cannot be had.
func TestRecursiveReadOnlyEnabled(t *testing.T) {
	for want, recursive := range map[string]bool{"Running": true, "Waiting CreateContainerConfigError": false} {
		inWorld(t, memory.Options{}, func(w *world) {
			if !recursive {
				w.stop()
				w.cfg.Runtime = shallow{w.rt}
				w.start()
			}
			w.create(newPod("a", func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
				p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
					{Name: "v", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: ptr.To(corev1.RecursiveReadOnlyEnabled)},
				}
			}))
			advance(time.Second)
			w.wantState("a", "main", want)
			if !recursive {
				w.wantEvent(`Error: volume "v" requested recursive read-only mode, but it is not supported by the runtime`)
			}
		})
	}
}

// TestManyMountsInStatus: a status has no mounts where they would take too much of what an object may
// have.
func TestManyMountsInStatus(t *testing.T) {
	pod := newPod("a", func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, container1("other"))
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/" + strings.Repeat("x", maxStatusMounts)}}
		p.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/x"}}
	})
	var facts []fact
	for i := range pod.Spec.Containers {
		facts = append(facts, fact{spec: &pod.Spec.Containers[i], kind: mainContainer})
	}
	for _, cs := range statusOf(situation{pod: pod, facts: facts}, intent{}, &corev1.PodStatus{}, surroundings{}).ContainerStatuses {
		if len(cs.VolumeMounts) != 0 {
			t.Errorf("container %s has mounts", cs.Name)
		}
	}
	if one := statusOf(situation{pod: pod, facts: facts[1:]}, intent{}, &corev1.PodStatus{}, surroundings{}).ContainerStatuses[0]; len(one.VolumeMounts) != 1 {
		t.Errorf("few mounts are not there: %+v", one)
	}
}

// TestNoSignalInStatus: as with a kubelet, the exit code alone tells of a signal.
func TestNoSignalInStatus(t *testing.T) {
	o := memory.Options{Start: func(runtime.Container) memory.Behaviour { return memory.Behaviour{TermDelay: time.Hour} }}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.ActiveDeadlineSeconds, p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1), ptr.To[int64](2)
		}))
		advance(4 * time.Second)
		if end := w.pod("a").Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 137 || end.Signal != 0 {
			t.Errorf("it ended as %+v", end)
		}
	})
}
