package volumes

// Tests of the volumes that are directories of the node: emptyDir, hostPath, and paths in them.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/downward"
)

func TestSubPath(t *testing.T) {
	s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	if err != nil {
		t.Fatal(err)
	}
	base, _, err := s.Resolve(pod, "v", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, sub, err := s.Resolve(pod, "v", "./x//y"); err != nil || got != base || sub != "x/y" {
		t.Errorf("Resolve: %q, %q, %v", got, sub, err)
	}
	if err := os.Symlink("/etc", filepath.Join(base, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("x", filepath.Join(base, "in")); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"..", "../v2", "/etc", "out", "out/passwd", "x/../../.."} {
		if got, sub, err := s.Resolve(pod, "v", bad); err == nil {
			t.Errorf("subPath %q leads to %q %q", bad, got, sub)
		}
	}
	if got, sub, err := s.Resolve(pod, "v", "in/y"); err != nil || got != base || sub != "in/y" {
		t.Errorf("a link within the volume: %q, %q, %v", got, sub, err)
	}
	if _, _, err := s.Resolve(pod, "other", ""); err == nil {
		t.Error("an unknown volume is found")
	}
}

// The directories that are made for a subPath have the mode of their volume; existing ones keep
// theirs.
func TestSubPathHasTheVolumesMode(t *testing.T) {
	for _, mode := range []os.FileMode{0o777, 0o750, 0o770 | os.ModeSetgid} {
		s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
		if err != nil {
			t.Fatal(err)
		}
		base, _, err := s.Resolve(pod, "v", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(base, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(base, "old"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Resolve(pod, "v", "old/a/b"); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]os.FileMode{"old": 0o700, "old/a": mode.Perm(), "old/a/b": mode.Perm()} {
			if info, err := os.Stat(filepath.Join(base, path)); err != nil || info.Mode().Perm() != want {
				t.Errorf("volume %v: %s has %v, %v", mode, path, info.Mode(), err)
			}
		}
		if info, err := os.Stat(filepath.Join(base, "old/a/b")); err != nil || info.Mode()&os.ModeSetgid != mode&os.ModeSetgid {
			t.Errorf("volume %v: group %v, %v", mode, info.Mode(), err)
		}
	}
}

// A refresh of volumes does not change the mode that a container has given its emptyDir.
func TestEmptyDirKeepsItsMode(t *testing.T) {
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumDefault, corev1.StorageMediumMemory} {
		s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.TearDown(pod.UID); err != nil {
				t.Error(err)
			}
		})
		dir, _, err := s.Resolve(pod, "v", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(dir, 1234, 1234); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm() != 0o700 || os.Geteuid() == 0 && info.Sys().(*syscall.Stat_t).Uid != 1234 {
			t.Errorf("medium %q: %v, %v", medium, info.Mode(), err)
		}
		if names, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(names) != 1 {
			t.Errorf("left beside it: %v, %v", names, err)
		}
	}
}

// TestEmptyDirOfUnknownMedium: it would be a directory of the disk that nobody asked for.
func TestEmptyDirOfUnknownMedium(t *testing.T) {
	for _, medium := range []corev1.StorageMedium{corev1.StorageMediumHugePages, "HugePages-2Mi", "memory"} {
		s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}})
		if want := fmt.Sprintf("unknown storage medium %q", medium); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if names, err := os.ReadDir(s.volumesDir(pod.UID)); err != nil || len(names) > 0 {
			t.Errorf("made %v, %v", names, err)
		}
	}
}

func TestEmptyDir(t *testing.T) {
	limit := resource.MustParse("1Mi")
	for name, src := range map[string]*corev1.EmptyDirVolumeSource{
		"disk":   {},
		"memory": {Medium: corev1.StorageMediumMemory, SizeLimit: &limit},
	} {
		t.Run(name, func(t *testing.T) {
			s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{EmptyDir: src})
			if err != nil {
				t.Fatal(err)
			}
			dir, _, err := s.Resolve(pod, "v", "")
			if err != nil {
				t.Fatal(err)
			}
			want := 0o777 | os.ModeDir
			if name == "memory" {
				want |= os.ModeSticky
			}
			if info, no := os.Stat(dir); no != nil || info.Mode() != want {
				t.Errorf("mode %v, %v; want %v", info.Mode(), no, want)
			}
			if err = os.WriteFile(filepath.Join(dir, "kept"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err = s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
				t.Fatal(err)
			}
			if _, err = os.Stat(filepath.Join(dir, "kept")); err != nil {
				t.Errorf("a second Setup has emptied the volume: %v", err)
			}
			mounted, err := mountinfo.Mounted(dir)
			if err != nil {
				t.Fatal(err)
			}
			if name == "memory" && os.Geteuid() == 0 && mounted {
				if err := os.WriteFile(filepath.Join(dir, "large"), make([]byte, 2<<20), 0o600); err == nil {
					t.Error("the size limit of memory is not kept")
				}
			} else if name == "disk" && mounted {
				t.Error("a plain emptyDir is mounted")
			}
			if err := s.TearDown(pod.UID); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after TearDown: %v", err)
			}
			if err := s.TearDown(pod.UID); err != nil {
				t.Errorf("TearDown again: %v", err)
			}
		})
	}
}

func TestHostPath(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		kind corev1.HostPathType
		err  string
	}{
		{dir, corev1.HostPathUnset, ""},
		{dir, corev1.HostPathDirectory, ""},
		{file, corev1.HostPathFile, ""},
		{file, corev1.HostPathDirectory, "is not a directory"},
		{dir, corev1.HostPathFile, "is not a file"},
		{"/dev/null", corev1.HostPathCharDev, ""},
		{"/dev/null", corev1.HostPathBlockDev, "is not a block device"},
		{filepath.Join(dir, "no"), corev1.HostPathDirectory, "no such file"},
		{filepath.Join(dir, "new/dir"), corev1.HostPathDirectoryOrCreate, ""},
		{filepath.Join(dir, "new/too"), corev1.HostPathUnset, ""},
		{filepath.Join(dir, "kept/dir"), corev1.HostPathUnset, "it does not exist and is not made: kept"},
		{filepath.Join(dir, "kept/dir"), corev1.HostPathDirectoryOrCreate, "kept"},
		{filepath.Join(dir, "kept/file"), corev1.HostPathFileOrCreate, "kept"},
		{filepath.Join(dir, "away/dir"), corev1.HostPathUnset, "hostPath: it does not answer"},
		{filepath.Join(dir, "away/file"), corev1.HostPathFile, "hostPath: it does not answer"},
		{filepath.Join(dir, "dangling"), corev1.HostPathUnset, "file exists"},
		{filepath.Join(dir, "dangling"), corev1.HostPathFileOrCreate, "no such file"},
		{filepath.Join(dir, "newfile"), corev1.HostPathFileOrCreate, ""},
		{"relative", corev1.HostPathUnset, "not absolute"},
	} {
		t.Run(string(tt.kind)+" "+filepath.Base(tt.path), func(t *testing.T) {
			s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: tt.path, Type: &tt.kind}})
			switch {
			case tt.err == "" && err != nil, tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Fatalf("error %v, want %q", err, tt.err)
			case err != nil:
				return
			}
			if got, _, err := s.Resolve(pod, "v", ""); err != nil || got != tt.path {
				t.Errorf("Resolve: %q, %v", got, err)
			}
			if err := s.TearDown(pod.UID); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(tt.path); err != nil {
				t.Errorf("TearDown has touched the host's path: %v", err)
			}
		})
	}
	for _, name := range []string{"kept", "nowhere"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v, want that it was not made", name, err)
		}
	}
}

// A container may leave directories that a user other than root cannot empty as they are.
func TestTearDownWithoutPrivileges(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "hawser-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		// The kernel judges this thread's use of files as that of nobody.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if _, err := unix.SetfsuidRetUid(nobody); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = unix.SetfsuidRetUid(0) }()
	}
	s := New(dir, &fakeObjects{}, nil, nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "e", MountPath: "/e"}}}}
	if err := s.Setup(t.Context(), pod, downward.Facts{}); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{"readonly/deep": 0o555, "closed": 0} {
		d := filepath.Join(s.volumesDir("u"), "e", path)
		if err := errors.Join(os.MkdirAll(d, 0o755), os.WriteFile(filepath.Join(d, "file"), nil, 0o444), os.Chmod(d, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.TearDown("u"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.volumesDir("u")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("volumes are left: %v", err)
	}
}

// TestSubPathOfFIFO: a volume that is a FIFO is refused; nobody waits for its other end.
func TestSubPathOfFIFO(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s, pod, err := setup(t, &fakeObjects{}, corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: fifo}})
	if err != nil {
		t.Fatal(err)
	}
	resolved := make(chan error, 1)
	go func() {
		_, _, err := s.Resolve(pod, "v", "a")
		resolved <- err
	}()
	select {
	case err := <-resolved:
		if !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it is waited for")
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		t.Log(errors.Join(err, f.Close(), <-resolved))
	}
}

// TestNewDirectoryIsReplaced: what replaces a directory that was made for a subPath is left alone.
func TestNewDirectoryIsReplaced(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err = errors.Join(err, syscall.Mkfifo(filepath.Join(dir, "a"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := setVolumeMode(root, "a", info); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("got %v", err)
	}
}

// TestMemorySize: the smallest of the node's allocatable memory, the pod's limit and the volume's.
func TestMemorySize(t *testing.T) {
	memory := func(s string) corev1.ResourceList {
		if s == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(s)}
	}
	for name, tc := range map[string]struct {
		node, pod, first, second, volume string
		want                             int64
	}{
		"nothing is known":          {},
		"the node":                  {node: "1Gi", want: 1 << 30},
		"the pod":                   {node: "1Gi", pod: "64Mi", want: 64 << 20},
		"its containers":            {node: "1Gi", first: "16Mi", second: "32Mi", want: 48 << 20},
		"one of them has no limit":  {node: "1Gi", first: "16Mi", want: 1 << 30},
		"the volume":                {node: "1Gi", pod: "64Mi", volume: "1Mi", want: 1 << 20},
		"the volume has more":       {node: "1Gi", pod: "64Mi", volume: "2Gi", want: 64 << 20},
		"the volume, and no others": {volume: "1Mi", want: 1 << 20},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "a", Resources: corev1.ResourceRequirements{Limits: memory(tc.first)}},
			{Name: "b", Resources: corev1.ResourceRequirements{Limits: memory(tc.second)}},
		}}}
		if tc.pod != "" {
			pod.Spec.Resources = &corev1.ResourceRequirements{Limits: memory(tc.pod)}
		}
		src := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
		if tc.volume != "" {
			src.SizeLimit = new(resource.MustParse(tc.volume))
		}
		if got := memorySize(pod, src, downward.Facts{Allocatable: memory(tc.node)}); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
