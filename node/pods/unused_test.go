// Tests of pods with volumes that no container mounts.

package pods

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestUnusedVolume: a pod does not wait for a volume that no container mounts. An ephemeral container
// that mounts it later does.
func TestUnusedVolume(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "late"}}}}
		}))
		advance(time.Second)
		w.wantState("a", "main", "Running")
		w.update("a", func(p *corev1.Pod) {
			debug := container1("debug")
			debug.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(debug)}}
		})
		advance(time.Second)
		w.wantState("a", "debug", "Waiting CreateContainerConfigError")
		w.wantEvent(`a Warning FailedMount MountVolume.SetUp failed for volume "v" : secret "late" not found`)
		if err := w.api.Tracker().Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}}); err != nil {
			t.Fatal(err)
		}
		advance(2 * time.Minute) // volumes are refreshed after 90 s at most
		w.wantState("a", "debug", "Running")
		w.wantCalls("start a/main#0", "start a/debug#0")
	})
}
