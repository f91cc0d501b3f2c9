package process

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// groupValue reads a setting of a group, by its name in version 2 or 1.
func groupValue(t *testing.T, dirs cgroupDirs, controller, unified, old string) string {
	t.Helper()
	path := filepath.Join(dirs[controller], old)
	if dir, ok := dirs[""]; ok {
		path = filepath.Join(dir, unified)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestReserved(t *testing.T) {
	limited(t).stop() // skips where there are no groups
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	page := int64(os.Getpagesize())
	whole := int64(info.Totalram) * int64(info.Unit)
	pids, err := pidMax()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, reserved := range []runtime.Resources{{MemoryBytes: 64 << 20, CPUMilli: 500, PIDs: 1000}, {}} {
		g := newRig(t, Config{DataDir: dir, Reserved: reserved})
		newRig(t, Config{}).stop() // another agent, which reserves nothing, changes nothing
		c := g.cgroups
		shares := (int64(goruntime.NumCPU())*1000 - reserved.CPUMilli) * 1024 / 1000
		wantPIDs := "max"
		if reserved.PIDs > 0 {
			wantPIDs = fmt.Sprint(pids - reserved.PIDs)
		}
		cpu := fmt.Sprint(shares)
		if _, ok := c.base[""]; ok {
			cpu = fmt.Sprint(weight(shares))
		}
		if got, want := groupValue(t, c.base, "memory", "memory.max", "memory.limit_in_bytes"), fmt.Sprint((whole-reserved.MemoryBytes)/page*page); got != want {
			t.Errorf("memory: %s, want %s", got, want)
		}
		if got := groupValue(t, c.base, "cpu", "cpu.weight", "cpu.shares"); got != cpu {
			t.Errorf("cpu: %s, want %s", got, cpu)
		}
		if got := groupValue(t, c.base, "pids", "pids.max", "pids.max"); got != wantPIDs {
			t.Errorf("pids: %s, want %s", got, wantPIDs)
		}
		g.stop()
	}
}

// The pod's own group has the limits of the pod, and its containers the score.
func TestLimitsOfThePod(t *testing.T) {
	g := limited(t)
	limits := runtime.Resources{MemoryBytes: 64 << 20, CPUShares: 512, CPUMilli: 1500, PIDs: 50}
	if _, err := g.EnsureSandbox(g.ctx, runtime.Sandbox{Pod: testPod, Hostname: "pod", Limits: limits}); err != nil {
		t.Fatal(err)
	}
	c := g.container("c", "cat /proc/self/oom_score_adj; exec sleep 1000")
	c.OOMScoreAdj = 789
	id := g.start(c)
	g.waitLog(id, "789")
	pod := g.cgroups.podDirs(string(testPod.UID))
	for _, tt := range [][5]string{
		{"memory", "memory.max", "memory.limit_in_bytes", "67108864", "67108864"},
		{"cpu", "cpu.max", "cpu.cfs_quota_us", "150000 100000", "150000"},
		{"cpu", "cpu.weight", "cpu.shares", fmt.Sprint(weight(512)), "512"},
		{"pids", "pids.max", "pids.max", "50", "51"},
	} {
		want := tt[4]
		if _, ok := pod[""]; ok {
			want = tt[3]
		}
		if got := groupValue(t, pod, tt[0], tt[1], tt[2]); got != want {
			t.Errorf("%s: %s, want %s", tt[2], got, want)
		}
	}
	// A container without a limit of its own is bounded by its pod's.
	c = g.container("eater", "exec dd if=/dev/zero of=/dev/null bs=150M count=1")
	if st := g.wait(g.start(c)); !st.OOMKilled || st.ExitCode != 137 {
		t.Errorf("%+v", st)
	}
}
