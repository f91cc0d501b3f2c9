package pods

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestHostAliases: containers of a pod with aliases have the machine's /etc/hosts and the
// aliases, unless a volume is there.
func TestHostAliases(t *testing.T) {
	machine, err := os.ReadFile(hostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"one.example", "two.example"}}, {IP: "fd00::1", Hostnames: []string{"six.example"}}}
			own := container1("own")
			own.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: hostsPath + "/"}}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			p.Spec.Containers = append(p.Spec.Containers, own)
		}))
		w.create(newPod("none", func(*corev1.Pod) {}))
		advance(time.Second)
		w.wantPhase("a", corev1.PodRunning)
		w.wantPhase("none", corev1.PodRunning)
		for _, c := range w.rt.Specs() {
			at := slices.IndexFunc(c.Mounts, func(m runtime.Mount) bool { return m.ContainerPath == hostsPath })
			if c.Name == "own" || c.Pod.Name == "none" {
				if at >= 0 {
					t.Errorf("%s of %s: mounts %+v", c.Name, c.Pod.Name, c.Mounts)
				}
				continue
			}
			if at < 0 {
				t.Errorf("%s: mounts %+v", c.Name, c.Mounts)
				continue
			}
			text, err := os.ReadFile(c.Mounts[at].HostPath)
			if err != nil || !strings.HasPrefix(string(text), string(machine)) ||
				!strings.HasSuffix(string(text), "\n# Entries added by HostAliases.\n10.1.2.3\tone.example\ttwo.example\nfd00::1\tsix.example\n") {
				t.Errorf("hosts %q, %v", text, err)
			}
		}
	})
}
