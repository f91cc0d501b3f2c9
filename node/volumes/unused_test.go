// Tests of volumes that no container uses.

package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/downward"
)

// TestUnused: a volume that no container uses is not made, and its Secret may be missing. One that a
// container uses in any way is.
func TestUnused(t *testing.T) {
	mount := []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	for name, change := range map[string]func(s *corev1.PodSpec){
		"": func(*corev1.PodSpec) {},
		"init container": func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "i", VolumeMounts: mount}}
		},
		"container": func(s *corev1.PodSpec) { s.Containers[1].VolumeMounts = mount },
		"device": func(s *corev1.PodSpec) {
			s.Containers[1].VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
		},
		"variable": func(s *corev1.PodSpec) {
			s.Containers[1].Env = []corev1.EnvVar{{Name: "A"}, {Name: "B", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v"}}}}
		},
		"ephemeral container": func(s *corev1.PodSpec) {
			s.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{VolumeMounts: mount}}}
		},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c"}, {Name: "d"}},
			Volumes: []corev1.Volume{
				{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "w", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "missing"}}},
			},
		}}
		change(&pod.Spec)
		s := New(t.TempDir(), &fakeObjects{}, nil, nil)
		if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err := os.Stat(filepath.Join(s.volumesDir("u"), "v"))
		if made := err == nil; made != (name != "") {
			t.Errorf("%s: the volume is made: %t", name, made)
		}
		if _, _, err := s.Resolve(pod, "w", ""); err == nil || !strings.Contains(err.Error(), `volume "w"`) {
			t.Errorf("%s: a volume that is not made resolves: %v", name, err)
		}
		if err := s.TearDown("u"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
