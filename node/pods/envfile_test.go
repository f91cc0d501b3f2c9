package pods

// Tests of variables from files.

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestEnvOfFile(t *testing.T) {
	for _, tt := range []struct {
		name, file, want string
		err              string
	}{
		{"value", "K='v'\n", "v", ""},
		{"later line", "# c\n\n  \t\nA='1'\n \tK='v w' # why\n", "v w", ""},
		{"without newline", "K='v'", "v", ""},
		{"many lines", "A='K=\nK='\nK='a\nb'\n", "a\nb", ""},
		{"literal", `K='$(A) "\n"'`, `$(A) "\n"`, ""},
		{"first one", "K='1'\nK='2'\n", "1", ""},
		{"empty", "K=''\n", "", ""},
		{"absent", "A='1'\n", "", ""},
		{"nothing", "", "", ""},
		{"space after =", "K= 'v'\n", "", ""},
		{"space before =", "K ='v'\n", "", "line 1: whitespace before '=' is not allowed"},
		{"no =", "A='1'\nK\n", "", "line 2: missing '='"},
		{"no name", "='v'\n", "", "line 1: empty variable name"},
		{"no quote", "K=v\n", "", "line 1: value must be enclosed in single quotes"},
		{"double quotes", "K=\"v\"\n", "", "line 1: value must be enclosed in single quotes"},
		{"more after the quote", "K='v'x\n", "", "line 1: unexpected content after closing quote"},
		{"closed by the next quote", "A='1'\nK='v\nB='\n", "v\nB=", ""},
		{"no end at all", "A='1'\nK='v\n", "", "starting at line 2: unclosed single quote"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := envOfFile([]byte(tt.file), "K")
			if got != tt.want || (tt.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q, %v; want %q, %q", got, err, tt.want, tt.err)
			}
		})
	}
}

func FuzzEnvOfFile(f *testing.F) {
	f.Add([]byte("# c\nK='v\nw' # d\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, _ := envOfFile(data, "K"); len(got) > len(data) || strings.Contains(got, "'") {
			t.Errorf("%q of %q", got, data)
		}
	})
}

// TestFileKeyRef: a variable has the value that an init container has written to a file.
func TestFileKeyRef(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("K='of the machine'"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		make func(path string) error
		ref  corev1.FileKeySelector
		want string // an entry of the environment, or a part of the error
	}{
		{"key", written("K='v'\n"), corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K"}, "VAR=v"},
		{"absent", written("A='v'\n"), corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K"}, `environment variable key "K" not found in file`},
		{"optional", written("A='v'\n"), corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K", Optional: ptr.To(true)}, "HOSTNAME=a"},
		{"malformed", written("K=v\n"), corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K"}, "couldn't parse env file"},
		{"no file", written(""), corev1.FileKeySelector{VolumeName: "v", Path: "other", Key: "K", Optional: ptr.To(true)}, "couldn't parse env file"},
		{"no volume", written(""), corev1.FileKeySelector{VolumeName: "no", Path: "d/env", Key: "K"}, `cannot find the volume "no" referenced by FileKeyRef`},
		{"large", written(strings.Repeat("#\n", maxEnvFile/2) + "K='v'\n"), corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K"}, "couldn't parse env file"},
		{"link out", func(path string) error { return os.Symlink(secret, path) }, corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K"}, "couldn't parse env file"},
		{"FIFO", func(path string) error { return unix.Mkfifo(path, 0o600) }, corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K"}, "couldn't parse env file"},
		{"link in", func(path string) error {
			return errors.Join(os.WriteFile(path+".1", []byte("K='v'"), 0o600), os.Symlink("/d/env.1", path))
		}, corev1.FileKeySelector{VolumeName: "v", Path: "d/env", Key: "K"}, "VAR=v"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
				if c.Name != "i1" {
					return memory.Behaviour{}
				}
				path := filepath.Join(c.Mounts[0].HostPath, "d", "env")
				if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), tt.make(path)); err != nil {
					return memory.Behaviour{Err: err}
				}
				return memory.Behaviour{ExitAfter: time.Second}
			}}
			inWorld(t, o, func(w *world) {
				w.create(newPod("a", func(p *corev1.Pod) {
					withInit("i1")(p)
					p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
					p.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
					p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VAR", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &tt.ref}}}
				}))
				advance(2 * time.Second)
				if st := w.pod("a").Status.ContainerStatuses[0].State; st.Waiting != nil {
					if st.Waiting.Reason != "CreateContainerConfigError" || !strings.Contains(st.Waiting.Message, tt.want) {
						t.Errorf("it waits: %+v, want %q", st.Waiting, tt.want)
					}
					return
				}
				for _, c := range w.rt.Specs() {
					if c.Name == "main" && (!slices.Contains(c.Env, tt.want) || len(c.Env) > 2) {
						t.Errorf("environment %q, want %q", c.Env, tt.want)
					}
				}
			})
		})
	}
}

func written(text string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
}
