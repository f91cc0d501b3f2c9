package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestParseThresholds(t *testing.T) {
	for in, want := range map[string]string{
		"":                                       "[]",
		"memory.available<100Mi":                 "[{memory.available 104857600 0}]",
		" nodefs.available < 7.5% ":              "[{nodefs.available 0 7.5}]",
		"pid.available<1k,imagefs.inodesFree<5%": "[{pid.available 1000 0} {imagefs.inodesFree 0 5}]",
		"nodefs.available<0%,nodefs.inodesFree<100%": "[]",
		"memory.available<0":                         "[]",
		"memory.available":                           "is not SIGNAL<QUANTITY",
		"memory.available>100Mi":                     "is not SIGNAL<QUANTITY",
		"memory.free<100Mi":                          `signal "memory.free" is unknown, want memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree or pid.available`,
		"containerfs.available<1%":                   `signal "containerfs.available" is unknown`,
		"<1%":                                        `signal "" is unknown`,
		"memory.available<1Gi,memory.available<2Gi":  "memory.available is given twice",
		"nodefs.available<1%,nodefs.available<0%":    "nodefs.available is given twice",
		"memory.available<lots":                      `"lots" is no quantity of memory.available`,
		"memory.available<-1":                        `"-1" is no quantity`,
		"memory.available<":                          `"" is no quantity`,
		"nodefs.available<-1%":                       "is not 0% to 100%",
		"nodefs.available<101%":                      "is not 0% to 100%",
		"nodefs.available<NaN%":                      "is not 0% to 100%",
		"nodefs.available<%":                         "is not 0% to 100%",
	} {
		got, err := ParseThresholds(in)
		if s := fmt.Sprint(got); err == nil && (s != want || got == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ParseThresholds(%q): %s, %v; want %s", in, s, err, want)
		}
	}
}

func FuzzParseThresholds(f *testing.F) {
	f.Add(DefaultEvictionHard)
	f.Add("memory.available<1e99,nodefs.available<1e-9%")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParseThresholds(s)
		if err != nil {
			return
		}
		for _, h := range list {
			if h.Signal.condition() == "" || h.Amount < 0 || h.Percent < 0 || h.Percent >= 100 || (h.Amount > 0) == (h.Percent > 0) {
				t.Errorf("%q: %+v", s, h)
			}
			if at := h.of(1 << 40); at < 0 {
				t.Errorf("%q: %+v of 1 TiB is %d", s, h, at)
			}
		}
	})
}

func TestShort(t *testing.T) {
	const gi = 1 << 30
	well := facts{
		memory: 16 * gi, available: 8 * gi, pids: 1000, pidsUsed: 100,
		nodefs:  fileSystem{device: 1, size: 100 * gi, free: 50 * gi, inodes: 1000, inodesFree: 500},
		imagefs: fileSystem{device: 2, size: 10 * gi, free: 5 * gi, inodes: 1000, inodesFree: 500},
	}
	const none = ""
	for _, tt := range []struct {
		name   string
		hard   string // "default" for nil
		change func(f *facts)
		want   corev1.NodeConditionType
	}{
		{"all is well", "default", func(*facts) {}, none},
		{"memory at the threshold", "default", func(f *facts) { f.available = 100 << 20 }, none},
		{"memory below it", "default", func(f *facts) { f.available = 100<<20 - 1 }, corev1.NodeMemoryPressure},
		{"memory as a percentage", "memory.available<75%", func(*facts) {}, corev1.NodeMemoryPressure},
		{"disk at the threshold", "default", func(f *facts) { f.nodefs.free = 10 * gi }, none},
		{"disk below it", "default", func(f *facts) { f.nodefs.free = 10*gi - 1 }, corev1.NodeDiskPressure},
		{"disk in bytes", "nodefs.available<60Gi", func(*facts) {}, corev1.NodeDiskPressure},
		{"inodes", "default", func(f *facts) { f.nodefs.inodesFree = 49 }, corev1.NodeDiskPressure},
		{"no inodes to count", "default", func(f *facts) { f.nodefs.inodes, f.nodefs.inodesFree = 0, 0 }, none},
		{"disk of images", "default", func(f *facts) { f.imagefs.free = gi }, corev1.NodeDiskPressure},
		{"inodes of images", "default", func(f *facts) { f.imagefs.inodesFree = 49 }, corev1.NodeDiskPressure},
		{"no disk of images", "default", func(f *facts) { f.nodefs.free = 12 * gi; f.imagefs = f.nodefs }, none},
		{"no disk of images, but a threshold", "imagefs.available<15%", func(f *facts) { f.nodefs.free = 12 * gi; f.imagefs = f.nodefs }, corev1.NodeDiskPressure},
		{"processes have no threshold", "default", func(f *facts) { f.pidsUsed = 999 }, none},
		{"processes", "pid.available<901", func(*facts) {}, corev1.NodePIDPressure},
		{"what is not named", "pid.available<1", func(f *facts) { f.available, f.nodefs.free = 0, 0 }, none},
		{"nothing is named", "", func(f *facts) { f.available, f.nodefs.free, f.pidsUsed = 0, 0, 1000 }, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var th Thresholds
			if tt.hard != "default" {
				var err error
				if th.Hard, err = ParseThresholds(tt.hard); err != nil {
					t.Fatal(err)
				}
			}
			if err := th.defaults(); err != nil {
				t.Fatal(err)
			}
			f := well
			tt.change(&f)
			for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
				if got := th.short(&f, c); got != (c == tt.want) {
					t.Errorf("%s is %v", c, got)
				}
			}
		})
	}
}

// TestThresholdsOfTheNode has a node go through them: the conditions, and what is
// left for pods.
func TestThresholdsOfTheNode(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cfg.Thresholds = Thresholds{
			Hard:     []Threshold{{Signal: MemoryAvailable, Percent: 25}, {Signal: NodefsAvailable, Amount: 1 << 62}},
			Recovery: time.Minute,
		}
	}, func(w *world) {
		advance(20 * time.Second)
		n := w.node()
		if c := condition(n, corev1.NodeDiskPressure); c.Status != corev1.ConditionTrue || c.Reason != "KubeletHasDiskPressure" {
			t.Errorf("condition %+v", c)
		}
		if c := condition(n, corev1.NodeMemoryPressure); c.Status != corev1.ConditionFalse {
			t.Errorf("condition %+v", c)
		}
		disk, memory := n.Status.Allocatable[corev1.ResourceEphemeralStorage], n.Status.Allocatable[corev1.ResourceMemory]
		if disk.Sign() != 0 {
			t.Errorf("allocatable disk %s, want 0 and not less", disk.String())
		}
		f, err := w.n.machine.read("")
		if err != nil {
			t.Fatal(err)
		}
		huge := int64(0)
		for _, n := range f.hugePages {
			huge += n
		}
		if want := f.memory - huge - f.memory/4; memory.Value() != want {
			t.Errorf("allocatable memory %d, want %d", memory.Value(), want)
		}
		write(t, filepath.Join(w.root, "proc/meminfo"), "MemTotal:       16777216 kB\nMemAvailable:    4194303 kB\n")
		advance(10 * time.Second)
		if c := condition(w.node(), corev1.NodeMemoryPressure); c.Status != corev1.ConditionTrue {
			t.Errorf("condition %+v", c)
		}
		write(t, filepath.Join(w.root, "proc/meminfo"), "MemTotal:       16777216 kB\nMemAvailable:    4194304 kB\n")
		advance(time.Minute + 10*time.Second)
		if c := condition(w.node(), corev1.NodeMemoryPressure); c.Status != corev1.ConditionFalse {
			t.Errorf("condition %+v", c)
		}
	})
}
