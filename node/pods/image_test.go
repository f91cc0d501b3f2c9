// Containers whose image is changed while they run.

package pods

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestChangedImageRestartsTheContainer(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", nil))
		advance(time.Second)
		w.update("a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "busybox:2"; p.Generation = 2 })
		advance(time.Second)
		w.wantState("a", "main", "Running")
		w.wantCalls("start a/main#0", "stop a/main#0 30s", "start a/main#1")
		w.wantEvent("a Normal Killing Container main definition changed, will be restarted")
	})
}

// TestChangedImageAndPolicy: a container is restarted for another image whatever its policy is, also
// if it ends well; one that has ended by itself is not, and an init container runs on.
func TestChangedImageAndPolicy(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure} {
		inWorld(t, exits(time.Minute, map[string]int{"init": 0, "short": 0}), func(w *world) {
			p := newPod("a", nil)
			p.Spec.RestartPolicy = policy
			p.Spec.Containers = append(p.Spec.Containers, container1("short"))
			p.Spec.InitContainers = []corev1.Container{container1("init")}
			w.create(p)
			change := func(c func(*corev1.Pod) *corev1.Container) {
				w.update("a", func(p *corev1.Pod) { c(p).Image += "2"; p.Generation++ })
				advance(time.Second)
			}
			advance(time.Second)
			change(func(p *corev1.Pod) *corev1.Container { return &p.Spec.InitContainers[0] })
			w.wantState("a", "init", "Running")
			advance(time.Minute)
			change(func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] })
			w.wantState("a", "main", "Running")
			advance(2 * time.Minute)
			change(func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[1] })
			w.wantState("a", "short", "Terminated Completed 0")
			w.wantPhase("a", corev1.PodRunning)
			w.wantCalls("start a/init#0", "start a/main#0", "start a/short#0", "stop a/main#0 30s", "start a/main#1")
		})
	}
}
