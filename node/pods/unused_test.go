// Tests of pods with volumes that no container mounts.

package pods

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

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
		advance(21 * time.Second) // the volume is tried again after 10 s at most, and so is the container
		w.wantState("a", "debug", "Running")
		w.wantCalls("start a/main#0", "start a/debug#0")
	})
}

// TestUnusedVolumeIsTriedAgain: a volume that an ephemeral container is the first to mount, and that
// could not be made, is tried again soon and not when volumes are refreshed. The others of the pod
// are started meanwhile.
func TestUnusedVolumeIsTriedAgain(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		var failing atomic.Bool
		w.api.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, apiruntime.Object, error) {
			if failing.Load() {
				return true, nil, apierrors.NewInternalError(errors.New("out of order"))
			}
			return true, &corev1.Secret{Data: map[string][]byte{"a": nil}}, nil
		})
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}
		}))
		advance(time.Second)
		failing.Store(true)
		w.update("a", func(p *corev1.Pod) {
			debug := container1("debug")
			debug.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(debug)}}
		})
		advance(time.Second)
		w.rt.Exit("a", "main", 1)
		advance(time.Second)
		w.wantCalls("start a/main#0", "start a/main#1")
		failing.Store(false)
		advance(10 * time.Second) // the container is tried again after as long
		w.wantState("a", "debug", "Running")
		w.wantCalls("start a/main#0", "start a/main#1", "start a/debug#0")
	})
}
