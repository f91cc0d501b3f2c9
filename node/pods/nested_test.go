package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
	"github.com/hawser-project/hawser/node/runtime/process"
)

// TestNestedVolumes: volumes are mounted below a ConfigMap and a Secret, also the token that the API
// server adds.
func TestNestedVolumes(t *testing.T) {
	for _, iso := range []process.Isolation{process.Namespaces, process.UserNamespace} {
		t.Run(string(iso), func(t *testing.T) {
			if iso == process.Namespaces && os.Geteuid() != 0 {
				t.Skip("SKIPPED: needs root")
			}
			dir := t.TempDir()
			rt, _ := startProcesses(t, dir, iso)
			if err := rt.Healthy(t.Context()); err != nil {
				t.Skip("SKIPPED: ", err)
			}
			pod := newPod("a", func(p *corev1.Pod) {
				const script = `exec 2>&1; cat /cfg/key; echo written > /cfg/data/out; cat /cfg/data/out
					cat /var/run/secrets/password /var/run/secrets/kubernetes.io/serviceaccount/key; echo end; exec sleep 1000`
				ofMap := corev1.LocalObjectReference{Name: "m"}
				p.Spec.Containers[0].Command = []string{"/bin/sh", "-c", script}
				p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
					{Name: "d", MountPath: "/cfg/data"},
					{Name: "m", MountPath: "/cfg"},
					{Name: "s", MountPath: "/var/run/secrets"},
					{Name: "kube-api-access-12345", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
				}
				p.Spec.Volumes = []corev1.Volume{
					{Name: "m", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ofMap}}},
					{Name: "d", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
					{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
					{Name: "kube-api-access-12345", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
						Sources: []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ofMap}}},
					}}},
				}
			})
			api := fake.NewSimpleClientset(pod,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "m"}, Data: map[string]string{"key": "value\n"}},
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "s"}, Data: map[string][]byte{"password": []byte("word\n")}},
			)
			running(t, Config{API: apiclienttest.From(api), Runtime: rt, Dir: dir})
			eventually(t, func() string {
				list, err := rt.Containers(t.Context())
				if err != nil || len(list) == 0 {
					return fmt.Sprintf("containers %v, %v", list, err)
				}
				text, err := os.ReadFile(list[0].LogPath)
				if err != nil || !strings.Contains(string(text), "F end\n") {
					return fmt.Sprintf("%+v wrote %q, %v", list[0], text, err)
				}
				for i, want := range []string{"value", "written", "word", "value", "end"} {
					if line := strings.Split(string(text), "\n")[i]; !strings.HasSuffix(line, " F "+want) {
						t.Fatalf("wrote %q", text)
					}
				}
				return ""
			})
		})
	}
}

// TestNestedVolumesOfEphemeralContainer: the mount points of a container that is added to a pod are there
// when it starts.
func TestNestedVolumesOfEphemeralContainer(t *testing.T) {
	made := make(chan error, 1) // of the mount point when it starts
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		if c.Name == "e" {
			_, err := os.Stat(filepath.Join(c.Mounts[0].HostPath, "v"))
			made <- err
		}
		return memory.Behaviour{}
	}}
	inWorld(t, o, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{
				{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "d", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
					Items: []corev1.DownwardAPIVolumeFile{{Path: "n", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				}}},
			}
		}))
		advance(5 * time.Second)
		w.wantPhase("a", corev1.PodRunning)
		w.update("a", func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "e", Command: []string{"/bin/e"}, VolumeMounts: []corev1.VolumeMount{{Name: "d", MountPath: "/d"}, {Name: "v", MountPath: "/d/v"}},
			}}}
		})
		advance(time.Second)
		select {
		case err := <-made:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("it is not started: %+v", w.pod("a").Status.EphemeralContainerStatuses)
		}
	})
}
