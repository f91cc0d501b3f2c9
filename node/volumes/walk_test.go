package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/downward"
)

// TestHostPathIsMadeWhereItWasChecked: a symbolic link that replaces a directory of a hostPath once it is
// checked does not lead to the place where directories and files are made.
func TestHostPathIsMadeWhereItWasChecked(t *testing.T) {
	for _, tt := range []struct {
		kind    corev1.HostPathType
		subPath string
	}{{corev1.HostPathUnset, ""}, {corev1.HostPathFileOrCreate, ""}, {corev1.HostPathUnset, "sub/new"}} {
		top, elsewhere := t.TempDir(), t.TempDir()
		dir := filepath.Join(top, "dir")
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		replaced := dir
		s := New(t.TempDir(), &fakeObjects{}, func(path string, _ bool) (string, error) {
			return path, errors.Join(os.Rename(replaced, filepath.Join(top, "old")), os.Symlink(elsewhere, replaced))
		}, nil)
		path := filepath.Join(dir, "new")
		if tt.subPath != "" {
			path, replaced = dir, filepath.Join(dir, "sub")
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-1"}, Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{
				{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &tt.kind}}},
			},
			Containers: []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		}}
		err := s.Setup(t.Context(), pod, downward.Facts{})
		if tt.subPath != "" && err == nil {
			_, _, err = s.Resolve(pod, "v", tt.subPath)
		}
		made, rerr := os.ReadDir(elsewhere)
		if err == nil || rerr != nil || len(made) > 0 {
			t.Errorf("%+v: error %v, made %v, %v", tt, err, made, rerr)
		}
	}
}
