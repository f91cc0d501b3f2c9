package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/downward"
)

// fakeObjects has one ConfigMap "cm" and one Secret "s".
type fakeObjects struct {
	cm map[string]string
	s  map[string][]byte
}

func (f *fakeObjects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if name != "cm" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: f.cm, BinaryData: map[string][]byte{"bin": {0, 1}}}, nil
}

func (f *fakeObjects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name != "s" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
	}
	return &corev1.Secret{Data: f.s}, nil
}

func (f *fakeObjects) Token(_ context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error) {
	return "token for " + pod.Name + " " + p.Audience, nil
}

func setup(t *testing.T, o Objects, src corev1.VolumeSource) (*Set, *corev1.Pod, error) {
	t.Helper()
	s := New(t.TempDir(), o, func(path string, _ bool) (string, error) {
		if strings.Contains(path, "/kept/") {
			return "", errors.New("kept")
		}
		return path, nil
	}, func(_ context.Context, path string) error {
		if strings.Contains(path, "/away/") {
			return errors.New("it does not answer")
		}
		return nil
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-1", Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: src}}, Containers: []corev1.Container{
			{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
		}},
	}
	return s, pod, s.Setup(t.Context(), pod, downward.Facts{NodeName: "n", PodIPs: []string{"10.0.0.1"}})
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || strings.HasPrefix(rel, "..") || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrInvalid) || err != nil && strings.Contains(err.Error(), "is a directory") {
			sub := contents(t, path+"/")
			for k, v := range sub {
				got[rel+"/"+k] = v
			}
			return nil
		}
		got[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func ref(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }

func TestContent(t *testing.T) {
	objects := &fakeObjects{cm: map[string]string{"a": "1", "b": "2"}, s: map[string][]byte{"k": []byte("secret")}}
	field := &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}
	for _, tt := range []struct {
		name string
		src  corev1.VolumeSource
		want map[string]string
		err  string
	}{
		{
			"configMap",
			corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("cm")}},
			map[string]string{"a": "1", "b": "2", "bin": "\x00\x01"},
			"",
		},
		{"configMap items", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: ref("cm"),
			Items:                []corev1.KeyToPath{{Key: "a", Path: "deep/er/a.txt"}},
		}}, map[string]string{"deep/er/a.txt": "1"}, ""},
		{"configMap missing key", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: ref("cm"),
			Items:                []corev1.KeyToPath{{Key: "z", Path: "z"}},
		}}, nil, "references non-existent config key: z"},
		{"configMap optional key", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: ref("cm"), Optional: ptr.To(true),
			Items: []corev1.KeyToPath{{Key: "z", Path: "z"}, {Key: "a", Path: "a"}},
		}}, map[string]string{"a": "1"}, ""},
		{
			"configMap missing",
			corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("no")}},
			nil, `MountVolume.SetUp failed for volume "v" : configmap "no" not found`,
		},
		{
			"configMap optional",
			corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("no"), Optional: ptr.To(true)}},
			map[string]string{},
			"",
		},
		{"path that leaves", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: ref("cm"),
			Items:                []corev1.KeyToPath{{Key: "a", Path: "../x"}},
		}}, nil, "invalid path"},
		{"path of ours", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: ref("cm"),
			Items:                []corev1.KeyToPath{{Key: "a", Path: "..data"}},
		}}, nil, "invalid path"},
		{"secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, map[string]string{"k": "secret"}, ""},
		{"secret missing", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no"}}, nil, `secret "no" not found`},
		{"downwardAPI", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: field},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "requests.cpu"}},
		}}}, map[string]string{"labels": `app="x"`, "cpu": "0"}, ""},
		{"projected", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("cm"), Items: []corev1.KeyToPath{{Key: "a", Path: "a"}}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: ref("s")}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "l", FieldRef: field}}}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "x"}},
		}}}, map[string]string{"a": "1", "k": "secret", "l": `app="x"`, "token": "token for p x"}, ""},
		{"claim", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}, nil, "not supported here"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, pod, err := setup(t, objects, tt.src)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				var se *SetupError
				if !errors.As(err, &se) || se.Volume != "v" {
					t.Errorf("error %#v names no volume", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			dir, _, err := s.Resolve(pod, "v", "")
			if err != nil {
				t.Fatal(err)
			}
			if got := contents(t, dir); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("volume has %q, want %q", got, tt.want)
			}
		})
	}
}

func TestModes(t *testing.T) {
	objects := &fakeObjects{cm: map[string]string{"a": "1", "b": "2"}}
	s, pod, err := setup(t, objects, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: ref("cm"), DefaultMode: ptr.To[int32](0o400),
		Items: []corev1.KeyToPath{{Key: "a", Path: "a"}, {Key: "b", Path: "b", Mode: ptr.To[int32](0o755)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	dir, _, err := s.Resolve(pod, "v", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"a": 0o400, "b": 0o755} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, info.Mode(), err, want)
		}
	}
}

// TestReaderSeesOldOrNew reads two files that always change together while they
// are replaced: through one directory handle they are always of the same version.
func TestReaderSeesOldOrNew(t *testing.T) {
	objects := &fakeObjects{cm: map[string]string{"a": "0", "b": "0"}}
	s, pod, err := setup(t, objects, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("cm")}})
	if err != nil {
		t.Fatal(err)
	}
	dir, _, err := s.Resolve(pod, "v", "")
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() {
		for !stop.Load() {
			if bad := readPair(dir); bad != nil {
				done <- bad
				return
			}
		}
		done <- nil
	}()
	for i := range 200 {
		objects.cm = map[string]string{"a": fmt.Sprint(i), "b": fmt.Sprint(i)}
		if err = s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	if err = <-done; err != nil {
		t.Error(err)
	}
	if got := contents(t, dir)["a"]; got != "199" {
		t.Errorf("a is %q", got)
	}
	old, err := filepath.Glob(filepath.Join(dir, "..[0-9]*"))
	if err != nil || len(old) != 1 {
		t.Errorf("directories %q, %v; want only the newest", old, err)
	}
}

func readPair(dir string) error {
	root, err := os.OpenRoot(filepath.Join(dir, "..data"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // replaced and removed since the link was read
	}
	if err != nil {
		return err
	}
	defer root.Close()
	a, err := root.ReadFile("a")
	if errors.Is(err, os.ErrNotExist) {
		return nil // replaced and removed since it was opened
	}
	if err != nil {
		return err
	}
	b, err := root.ReadFile("b")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if string(a) != string(b) {
		return fmt.Errorf("a is %q and b is %q", a, b)
	}
	return nil
}

func TestFilesThatGo(t *testing.T) {
	objects := &fakeObjects{cm: map[string]string{"a": "1", "b": "2"}}
	s, pod, err := setup(t, objects, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("cm")}})
	if err != nil {
		t.Fatal(err)
	}
	objects.cm = map[string]string{"b": "3"}
	if err = s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
		t.Fatal(err)
	}
	dir, _, err := s.Resolve(pod, "v", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(contents(t, dir)), fmt.Sprint(map[string]string{"b": "3", "bin": "\x00\x01"}); got != want {
		t.Errorf("volume has %s, want %s", got, want)
	}
	before, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Readlink(filepath.Join(dir, dataLink)); err != nil || after != before {
		t.Errorf("same content was written anew: %s, %v; before %s", after, err, before)
	}
}

func TestFSGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give files to a group")
	}
	s := New(t.TempDir(), &fakeObjects{cm: map[string]string{"a": "1"}}, nil, nil)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: "u"},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To[int64](4711)},
			Containers:      []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "e", MountPath: "/e"}, {Name: "m", MountPath: "/m"}, {Name: "c", MountPath: "/c"}}}},
			Volumes: []corev1.Volume{
				{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "m", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
				{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("cm"), DefaultMode: ptr.To[int32](0o400)}}},
			},
		},
	}
	if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.TearDown(pod.UID); err != nil {
			t.Error(err)
		}
	})
	e, err := os.Stat(filepath.Join(s.volumesDir("u"), "e"))
	if err != nil || e.Mode()&os.ModeSetgid == 0 {
		t.Errorf("emptyDir has mode %v, %v; want setgid", e.Mode(), err)
	}
	m, err := os.Stat(filepath.Join(s.volumesDir("u"), "m"))
	if want := 0o777 | os.ModeDir | os.ModeSetgid | os.ModeSticky; err != nil || m.Mode() != want {
		t.Errorf("emptyDir in memory has mode %v, %v; want %v", m.Mode(), err, want)
	}
	c, err := os.Stat(filepath.Join(s.volumesDir("u"), "c", "a"))
	if err != nil || c.Mode().Perm() != 0o440 {
		t.Errorf("file has mode %v, %v; want 0440", c.Mode(), err)
	}
}

// FuzzCheckPath: an accepted path never leads out of the volume.
func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"a", "a/b", "..", "../a", "a/../../b", "/a", "..a", "a/..b", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkPath(s) != nil {
			return
		}
		if p := filepath.Join("/volume", s); p != "/volume" && !strings.HasPrefix(p, "/volume/") {
			t.Errorf("%q leads to %q", s, p)
		}
	})
}
