package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node/runtime/memory"
	"github.com/hawser-project/hawser/node/runtime/process"
)

// hostVolume is a volume of that path.
func hostVolume(path string) corev1.Volume {
	return corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
}

// TestHostPathSwapped: who can write to a directory above a hostPath cannot lead the mount elsewhere
// between its check and the mount.
func TestHostPathSwapped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	dir, shared := t.TempDir(), t.TempDir()
	x, link := filepath.Join(shared, "x"), filepath.Join(shared, "link")
	for _, d := range []string{filepath.Join(dir, "pki"), filepath.Join(x, "pki")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	key, decoy := filepath.Join(dir, "pki", "key"), filepath.Join(x, "pki", "key")
	if err := os.WriteFile(key, []byte("THE-KEY\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(decoy, []byte("decoy\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	rt, _ := startProcesses(t, dir, process.Namespaces)
	// As a container with a hostPath of the directory above does.
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				_ = unix.Renameat2(unix.AT_FDCWD, x, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	pod := newPod("evil", func(p *corev1.Pod) {
		p.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "cat /x/pki/key; exit 1"}
		p.Spec.Volumes = []corev1.Volume{hostVolume(x)}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "h", MountPath: "/x", ReadOnly: true}}
	})
	running(t, Config{
		API: apiclienttest.From(fake.NewSimpleClientset(pod)), Runtime: rt, Dir: dir,
		CrashDelay: time.Millisecond, MaxCrashDelay: time.Millisecond, RetryDelay: 50 * time.Millisecond,
	})
	seen := map[string]bool{}
	for end := time.Now().Add(processPatience); len(seen) < 8; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d containers could be started", len(seen))
		}
		list, err := rt.Containers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			text, _ := os.ReadFile(c.LogPath)
			if strings.Contains(string(text), "THE-KEY") {
				t.Fatalf("attempt %d read the key", c.Attempt)
			}
			if strings.Contains(string(text), "decoy") {
				seen[c.ID] = true
			}
		}
	}
}

// TestHostPathInProc: a path that leads to another file in each process can be mounted.
func TestHostPathInProc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	dir := t.TempDir()
	rt, _ := startProcesses(t, dir, process.Namespaces)
	var pods []k8sruntime.Object
	for name, path := range map[string]string{"a": "/etc/mtab", "b": "/proc/mounts", "c": "/proc/net"} {
		pods = append(pods, newPod(name, func(p *corev1.Pod) {
			p.Spec.Containers[0].Command = []string{"sleep", "1000"}
			p.Spec.Volumes = []corev1.Volume{hostVolume(path)}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "h", MountPath: "/tmp/h", ReadOnly: true}}
		}))
	}
	r := running(t, Config{API: apiclienttest.From(fake.NewSimpleClientset(pods...)), Runtime: rt, Dir: dir})
	for _, pod := range pods {
		eventually(t, func() string {
			p, err := r.Pod(t.Context(), idOf(pod.(*corev1.Pod)).NamespacedName, "")
			if err != nil || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].State.Running == nil {
				return fmt.Sprintf("%v, %v", p, err)
			}
			return ""
		})
	}
}

// TestHostPathMountedElsewhere: a path at which the agent's directory, or a part of it, is mounted is
// in the agent's directory. That of the logs is not.
func TestHostPathMountedElsewhere(t *testing.T) {
	dir := t.TempDir()
	p := places{dir: filepath.Join(dir, "data")}
	for _, d := range []string{"data/pki", "data/logs/x", "all", "part", "logs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for at, from := range map[string]string{"all": "data", "part": "data/pki", "logs": "data/logs"} {
		at = filepath.Join(dir, at)
		if err := unix.Mount(filepath.Join(dir, from), at, "", unix.MS_BIND, ""); err != nil {
			t.Skip("SKIPPED: cannot mount:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	}
	for path, ok := range map[string]bool{"all": false, "all/pki": false, "part": false, "part/new": false, "all/logs/x": true, "logs": true, "logs/x": true} {
		if _, err := p.hostPathAllowed(filepath.Join(dir, path)); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestRefusedSubPathIsNotMade: a refused subPath of a hostPath leaves nothing in the agent's directory,
// where a directory could take the place of another pod's file.
func TestRefusedSubPathIsNotMade(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("victim", func(p *corev1.Pod) { p.UID = "victim-uid" }))
		advance(time.Second)
		w.wantPhase("victim", corev1.PodRunning)
		w.create(newPod("evil", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{hostVolume(filepath.Dir(w.cfg.Dir))}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{
				Name: "h", MountPath: "/h", ReadOnly: true, SubPath: filepath.Base(w.cfg.Dir) + "/pods/victim-uid/containers/main/1.termination",
			}}
		}))
		advance(5 * time.Second)
		w.wantState("evil", "main", "Waiting CreateContainerConfigError")
		w.rt.Exit("victim", "main", 1)
		advance(10 * time.Minute)
		w.wantState("victim", "main", "Running")
	})
}

// TestPrivilegedHostPathIsMade: what is missing of a hostPath in a directory that containers do not see
// is made for a privileged container, and for no other.
func TestPrivilegedHostPathIsMade(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		own, hidden := filepath.Join(w.cfg.Dir, "own"), t.TempDir()
		w.cfg.Hide = []string{hidden}
		if err := os.Mkdir(own, 0o700); err != nil {
			t.Fatal(err)
		}
		w.start()
		// mixed has a privileged container beside main, which is not.
		for name, at := range map[string][2]string{
			"below": {own, "below"}, "own": {filepath.Join(own, "a/b"), ""}, "hide": {filepath.Join(hidden, "certs"), ""},
			"plain": {own, "plain"}, "plain2": {filepath.Join(hidden, "plain2"), ""}, "mixed": {own, "mixed"},
		} {
			w.create(newPod(name, func(p *corev1.Pod) {
				c := &p.Spec.Containers[0]
				p.Spec.Volumes = []corev1.Volume{hostVolume(at[0])}
				c.VolumeMounts = []corev1.VolumeMount{{Name: "h", MountPath: "/h", SubPath: at[1]}}
				if name == "mixed" {
					p.Spec.Containers = append(p.Spec.Containers, *c.DeepCopy())
					c = &p.Spec.Containers[1]
					c.Name, c.VolumeMounts[0].SubPath = "other", ""
				}
				if !strings.HasPrefix(name, "plain") {
					c.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
				}
			}))
		}
		advance(5 * time.Second)
		for _, name := range []string{"below", "own", "hide"} {
			w.wantState(name, "main", "Running")
		}
		w.wantState("plain", "main", "Waiting CreateContainerConfigError")
		w.wantState("plain2", "main", "Waiting ContainerCreating")
		w.wantState("mixed", "main", "Waiting CreateContainerConfigError")
		w.wantState("mixed", "other", "Running")
		for path, want := range map[string]bool{
			own + "/below": true, own + "/a/b": true, hidden + "/certs": true, own + "/plain": false, hidden + "/plain2": false, own + "/mixed": false,
		} {
			if _, err := os.Stat(path); (err == nil) != want {
				t.Errorf("%s: %v", path, err)
			}
		}
		w.stop()
	})
}

// TestHostPathInHiddenDirectory: what containers do not see is no hostPath, by whatever name.
func TestHostPathInHiddenDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"data/pki", "data/pods/uid", "data/logs/x", "data-too", "etc/own"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("data/pki", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	// The token is not there yet.
	p := places{dir: filepath.Join(dir, "data"), hide: []string{filepath.Join(dir, "etc/own"), filepath.Join(dir, "token")}}
	for path, ok := range map[string]bool{
		"data": false, "data/pki": false, "data/pods/uid": false, "link": false, "data/logs/../pki": false,
		"data/logs": true, "data/logs/x": true, "data-too": true, ".": true, "missing": true,
		"data/new/dir": false, "link/new": false, "data/logs/new": true,
		"etc": true, "etc/own": false, "etc/own/new": false, "token": false, "tokens": true,
	} {
		if _, err := p.hostPathAllowed(filepath.Join(dir, path)); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "only privileged") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestHostPathThatDoesNotAnswer: a hostPath is asked for only once it answers, when the pod is prepared
// and when a container is started.
func TestHostPathThatDoesNotAnswer(t *testing.T) {
	var away atomic.Bool
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, memory.Options{})
		w.cfg.Answers = func(_ context.Context, path string) error {
			if away.Load() {
				return errors.New(path + " does not answer")
			}
			return nil
		}
		away.Store(true)
		w.start()
		path := filepath.Join(t.TempDir(), "new")
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{hostVolume(path)}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "h", MountPath: "/h", SubPath: "sub"}}
		}))
		advance(time.Minute)
		if _, err := os.Stat(path); err == nil {
			t.Error("it is made")
		}
		w.wantState("a", "main", "Waiting ContainerCreating")
		away.Store(false)
		advance(time.Minute)
		w.wantState("a", "main", "Running")
		away.Store(true)
		if err := os.Remove(filepath.Join(path, "sub")); err != nil {
			t.Error(err)
		}
		w.rt.Exit("a", "main", 1)
		advance(time.Minute)
		w.wantState("a", "main", "Waiting CreateContainerConfigError")
		if _, err := os.Stat(filepath.Join(path, "sub")); err == nil {
			t.Error("its subPath is made")
		}
		away.Store(false)
		advance(time.Minute)
		w.wantState("a", "main", "Running")
		w.stop()
	})
}
