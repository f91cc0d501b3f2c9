package volumes

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/downward"
)

// TestNestedMountPoints: a volume with content from the API has a directory for each volume that is
// mounted directly below it, also after a refresh, and keeps its files.
func TestNestedMountPoints(t *testing.T) {
	objects := &fakeObjects{cm: map[string]string{"a": "1"}}
	s, pod, err := setup(t, objects, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: ref("cm"), Items: []corev1.KeyToPath{{Key: "a", Path: "a"}, {Key: "a", Path: "dir/a"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "d", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	mounts := func(paths ...string) (list []corev1.VolumeMount) {
		list = append(list, corev1.VolumeMount{Name: "v", MountPath: "/cfg/"})
		for _, path := range paths {
			list = append(list, corev1.VolumeMount{Name: "d", MountPath: path})
		}
		return list
	}
	pod.Spec.Containers[0].VolumeMounts = mounts("/cfg/data/inner", "/cfg/data", "/cfg/dir/sub", "/cfg/x/y/", "/cfgs/no", "/cfg/a")
	pod.Spec.InitContainers = []corev1.Container{{Name: "i", VolumeMounts: mounts("/cfg/init")}}
	part := corev1.VolumeMount{Name: "v", MountPath: "/part", SubPath: "dir"}
	pod.Spec.InitContainers[0].VolumeMounts = append(pod.Spec.InitContainers[0].VolumeMounts, part, corev1.VolumeMount{Name: "d", MountPath: "/part/below"})
	dir, _, err := s.Resolve(pod, "v", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"1", "1", "2"} {
		objects.cm["a"] = value
		if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"dir/sub", "dir/below"} { // they would go with the content
			if _, err := os.Lstat(filepath.Join(dir, path)); err == nil {
				t.Errorf("%s is made", path)
			}
		}
		for _, path := range []string{"data", "x/y", "init"} {
			if info, err := os.Stat(filepath.Join(dir, path)); err != nil || !info.IsDir() {
				t.Errorf("%s: %v", path, err)
			}
		}
		for _, path := range []string{"a", "dir/a"} {
			if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(b) != value {
				t.Errorf("%s: %q, %v", path, b, err)
			}
		}
	}
	pod.Spec.Containers[0].VolumeMounts = mounts("/cfg/x/z")
	if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
		t.Fatal(err)
	}
	if names := namesIn(t, dir); !slices.Equal(names[len(names)-4:], []string{"a", "dir", "init", "x"}) {
		t.Errorf("the volume has %v", names)
	}
	if names := namesIn(t, filepath.Join(dir, "x")); len(names) != 2 {
		t.Errorf("x has %v", names)
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestFileAtNestedMountPoint: the directory that a container may have a volume mounted on stays when
// the volume gets a file at its path. A file that was there first stays, too.
func TestFileAtNestedMountPoint(t *testing.T) {
	objects := &fakeObjects{cm: map[string]string{"a": "1"}}
	s, pod, err := setup(t, objects, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("cm")}})
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/cfg"}, {Name: "d", MountPath: "/cfg/b"}, {Name: "d", MountPath: "/cfg/a"}}
	dir, _, err := s.Resolve(pod, "v", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, files := range []map[string]string{{"a": "1"}, {"a": "2", "b": "file"}, {"a": "3"}} {
		objects.cm = files
		if err := s.Setup(t.Context(), pod, downward.Facts{}); (err != nil) != (files["b"] != "") {
			t.Errorf("with %v: %v", files, err)
		}
		if info, err := os.Stat(filepath.Join(dir, "b")); err != nil || !info.IsDir() {
			t.Errorf("with %v: %v, %v", files, info, err)
		}
		if a, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(a) != files["a"] {
			t.Errorf("with %v: %q, %v", files, a, err)
		}
	}
}
