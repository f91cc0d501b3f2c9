package pods

// Tests of limits of local storage.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

const mebi = 1 << 20

// fill writes a file of n bytes and makes its directory.
func fill(t *testing.T, path string, n int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("x", n)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// withStorage gives container i a limit of local storage.
func withStorage(p *corev1.Pod, i int, limit string) {
	p.Spec.Containers[i].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
}

func withEmptyDir(p *corev1.Pod, limit *resource.Quantity) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: limit}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
}

func TestStorageLimits(t *testing.T) {
	layers := t.TempDir()
	one := ptr.To(resource.MustParse("1Mi"))
	volume := func(w *world, p *corev1.Pod) string {
		return filepath.Join(w.runner.places.pod(p.UID), "volumes", "v", "file")
	}
	logs := func(w *world, p *corev1.Pod) string { return w.runner.places.log(idOf(p), "main", 7) }
	layer := func(*world, *corev1.Pod) string { return filepath.Join(layers, "main", "file") }
	termination := func(w *world, p *corev1.Pod) string { return w.runner.places.terminationLog(p.UID, "main", 0) }
	hosts := func(w *world, p *corev1.Pod) string { return filepath.Join(filepath.Dir(termination(w, p)), "hosts") }
	for name, tt := range map[string]struct {
		change func(p *corev1.Pod)
		file   func(w *world, p *corev1.Pod) string
		want   string // the message of the eviction; empty for none
	}{
		"emptyDir": {func(p *corev1.Pod) { withEmptyDir(p, one) }, volume, `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `},
		"emptyDir of a pod with a limit": {
			func(p *corev1.Pod) { withEmptyDir(p, nil); withStorage(p, 0, "1Mi") }, volume,
			"Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
		},
		"logs":             {func(p *corev1.Pod) { withStorage(p, 0, "1Mi") }, logs, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "},
		"layer":            {func(p *corev1.Pod) { withStorage(p, 0, "1Mi") }, layer, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "},
		"one of two":       {func(p *corev1.Pod) { withStorage(p, 0, "1Mi"); withStorage(p, 1, "1Gi") }, layer, `Container main exceeded its local ephemeral storage limit "1Mi". `},
		"logs, one of two": {func(p *corev1.Pod) { withStorage(p, 0, "1Mi"); withStorage(p, 1, "1Gi") }, logs, `Container main exceeded its local ephemeral storage limit "1Mi". `},
		"termination message": {
			func(p *corev1.Pod) { withStorage(p, 0, "1Mi") }, termination,
			"Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
		},
		"termination message, one of two": {
			func(p *corev1.Pod) { withStorage(p, 0, "1Mi"); withStorage(p, 1, "1Gi") }, termination,
			`Container main exceeded its local ephemeral storage limit "1Mi". `,
		},
		"hosts":    {func(p *corev1.Pod) { withStorage(p, 0, "1Mi") }, hosts, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "},
		"within":   {func(p *corev1.Pod) { withEmptyDir(p, ptr.To(resource.MustParse("100Mi"))); withStorage(p, 0, "100Mi") }, volume, ""},
		"no limit": {func(p *corev1.Pod) { withEmptyDir(p, nil) }, volume, ""},
		"critical": {func(p *corev1.Pod) {
			withEmptyDir(p, one)
			p.Spec.Priority = ptr.To[int32](CriticalPriority)
		}, volume, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
				return memory.Behaviour{Dir: filepath.Join(layers, c.Name)}
			}}
			inWorld(t, o, func(w *world) {
				p := newPod("a", func(p *corev1.Pod) {
					p.Spec.Containers = append(p.Spec.Containers, container1("other"))
					tt.change(p)
				})
				w.create(p)
				small := newPod("small", func(p *corev1.Pod) { withEmptyDir(p, one) })
				w.create(small)
				advance(30 * time.Second)
				w.wantRunning("before", p, p, small)
				fill(t, tt.file(w, p), 10*mebi)
				fill(t, volume(w, small), mebi/2)
				advance(storagePeriod + 2*time.Second)
				if tt.want == "" {
					advance(time.Minute)
					w.wantRunning("in the end", p, p, small)
					return
				}
				w.wantRunning("in the end", small)
				if st := w.pod("a").Status; st.Phase != corev1.PodFailed || st.Reason != "Evicted" || st.Message != tt.want {
					t.Errorf("phase %s, reason %q, message %q; want %q", st.Phase, st.Reason, st.Message, tt.want)
				}
				advance(time.Minute)
				if n := w.saw("a Warning Evicted " + tt.want); n != 1 {
					t.Errorf("%d events, want one: %q", n, w.events)
				}
				w.restart()
				advance(time.Minute)
				w.wantRunning("after a restart", small)
			})
			if err := os.RemoveAll(filepath.Join(layers, "main")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestUnmountedMemoryCounts: without the right to mount, an emptyDir in memory is on the disk.
func TestUnmountedMemoryCounts(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		p := newPod("a", func(p *corev1.Pod) {
			withEmptyDir(p, nil)
			withStorage(p, 0, "1Mi")
			p.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory
		})
		fill(t, filepath.Join(w.runner.places.pod(p.UID), "volumes", "v", "file"), 2*mebi)
		const want = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "
		if got := w.runner.excess(w.t.Context(), new(measurement), p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// diskUsage measures dir until ctx is done.
func diskUsage(ctx context.Context, dir string) int64 {
	var w tally
	w.run(ctx, dir)
	return w.sum
}

func TestDiskUsage(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	fill(t, filepath.Join(outside, "large"), 8*mebi)
	want := func(what string, n int64) {
		t.Helper()
		// Directories and the ends of files have blocks of their own.
		if got := diskUsage(t.Context(), dir); got < n || got > n+mebi/2 {
			t.Errorf("%s: %d bytes, want %d", what, got, n)
		}
	}
	want("nothing", 0)
	deep := filepath.Join(dir, strings.Repeat("d/", 60))
	fill(t, filepath.Join(deep, "file"), mebi)
	want("a file", mebi)
	if err := os.Link(filepath.Join(deep, "file"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	want("a hard link", mebi)
	for name, target := range map[string]string{"dir": outside, "file": filepath.Join(outside, "large"), "loop": "."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	want("symbolic links", mebi)
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sparse.Truncate(64 * mebi); err != nil {
		t.Fatal(err)
	}
	if err := sparse.Close(); err != nil {
		t.Fatal(err)
	}
	want("a file without content", mebi)
	for _, path := range []string{filepath.Join(outside, "none"), filepath.Join(outside, "large"), filepath.Join(dir, "dir")} {
		if got := diskUsage(t.Context(), path); got != 0 {
			t.Errorf("%s is no directory and has %d bytes", path, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := diskUsage(ctx, dir); got > mebi/2 {
		t.Errorf("%d bytes were read for a caller that is gone", got)
	}
}

// TestDiskUsageDeep: files count at any depth. An inode counts whole, wherever its links are.
func TestDiskUsageDeep(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, strings.Repeat("d/", 140))
	fill(t, filepath.Join(deep, "file"), mebi)
	want := func(what string, n int64) {
		t.Helper()
		if got := diskUsage(t.Context(), dir); got < n || got > n+2*mebi {
			t.Errorf("%s: %d bytes, want %d", what, got, n)
		}
	}
	want("a file at level 140", mebi)
	fill(t, filepath.Join(dir, "linked"), 10*mebi)
	for i := range 9 {
		if err := os.Link(filepath.Join(dir, "linked"), filepath.Join(deep, fmt.Sprint("link", i))); err != nil {
			t.Fatal(err)
		}
	}
	want("a file with links at level 140", 11*mebi)
	// Directories beside those on the way down are read on the way up.
	for _, level := range []int{0, 63, 64, 65, 100, 139} {
		at := filepath.Join(dir, strings.Repeat("d/", level))
		for i := range 20 {
			fill(t, filepath.Join(at, fmt.Sprint("beside", i), "sub", "file"), mebi/20)
		}
	}
	want("files beside", 17*mebi)
	outside := t.TempDir()
	fill(t, filepath.Join(outside, "a", "large"), 40*mebi)
	if err := os.Symlink(filepath.Join(outside, "a"), filepath.Join(deep, "out")); err != nil {
		t.Fatal(err)
	}
	want("a link out of a deep directory", 17*mebi)
}

// A portion is a context that is done once it has been looked at as often as left says.
type portion struct {
	context.Context
	left int
}

func (p *portion) Err() error {
	if p.left--; p.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestStoragePortions: what one portion does not reach is measured by the next. A round that
// is at its end is followed by another.
func TestStoragePortions(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		for i := range 200 {
			fill(t, filepath.Join(dir, fmt.Sprint("empty", i)), 0)
		}
		for _, level := range []int{1, 66, 67, 100} {
			for i := range 10 {
				fill(t, filepath.Join(dir, strings.Repeat("d/", level), fmt.Sprint(i), "file"), mebi/20)
			}
		}
	}
	const total, margin = 4 * mebi, 2 * mebi
	round := func(m *measurement, entries int) (sum int64, portions int) {
		for sum < total && portions < 1000 {
			m.begin()
			ctx := &portion{t.Context(), entries}
			sum = 0
			for _, dir := range dirs {
				sum += m.usage(ctx, dir)
			}
			for _, w := range m.now {
				for _, l := range w.levels {
					if l.open != nil {
						t.Fatalf("%s is open after a portion", l.name)
					}
				}
			}
			portions++
		}
		return sum, portions
	}
	m := &measurement{}
	for range 2 {
		if sum, portions := round(m, 50); sum < total || sum > total+margin || portions < 10 || portions > 100 {
			t.Errorf("%d bytes in %d portions, want %d", sum, portions, total)
		}
		for !m.now[dirs[1]].done {
			m.begin()
			m.usage(t.Context(), dirs[0])
			m.usage(t.Context(), dirs[1])
		}
	}
	// What another round finds is what is there by then.
	if err := os.RemoveAll(dirs[0]); err != nil {
		t.Fatal(err)
	}
	m.begin()
	if got := m.usage(t.Context(), dirs[0]) + m.usage(t.Context(), dirs[1]); got < total/2 || got > total/2+margin {
		t.Errorf("%d bytes in one portion, want %d", got, total/2)
	}
}

// TestDiskUsageMoved: a directory that is moved while it is read does not end the walk.
func TestDiskUsageMoved(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, strings.Repeat("d/", 90))
	fill(t, filepath.Join(deep, "file"), mebi)
	for i := range 10 {
		fill(t, filepath.Join(dir, fmt.Sprint("beside", i)), mebi)
	}
	var w tally
	for len(w.levels) < 80 && !w.done {
		w.run(&portion{t.Context(), 2}, dir)
	}
	if err := os.Rename(filepath.Join(dir, strings.Repeat("d/", 70)), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	w.run(t.Context(), dir)
	if w.sum < 10*mebi || w.sum > 12*mebi || !w.done {
		t.Errorf("%d bytes, done %v", w.sum, w.done)
	}
}
