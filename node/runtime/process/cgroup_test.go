package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

func limited(t *testing.T) *rig {
	t.Helper()
	g := newRig(t, Config{})
	if g.cgroups == nil {
		t.Skip("SKIPPED: no cgroup can be written")
	}
	return g
}

func TestOutOfMemory(t *testing.T) {
	g := limited(t)
	eater := "head -c 200000000 /dev/zero | tail -c 150000000 > /dev/null"
	c := g.container("limited", "exec dd if=/dev/zero of=/dev/null bs=150M count=1")
	c.Resources.MemoryBytes = 32 << 20
	if st := g.wait(g.start(c)); !st.OOMKilled || st.ExitCode != 137 {
		t.Errorf("limited: %+v", st)
	}
	c = g.container("child", "sh -c 'exec dd if=/dev/zero of=/dev/null bs=150M count=1'; exit $?")
	c.Resources.MemoryBytes = 32 << 20
	if st := g.wait(g.start(c)); !st.OOMKilled || st.ExitCode != 137 {
		t.Errorf("child: %+v", st)
	}
	c = g.container("unlimited", eater)
	if st := g.wait(g.start(c)); st.OOMKilled || st.ExitCode != 0 {
		t.Errorf("unlimited: %+v", st)
	}
	// Killed is not the same as out of memory.
	c = g.container("killed", "kill -9 $$")
	c.Resources.MemoryBytes = 32 << 20
	if st := g.wait(g.start(c)); st.OOMKilled || st.ExitCode != 137 {
		t.Errorf("killed: %+v", st)
	}
	list, err := g.Containers(g.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		g.waitGone(c.ID)
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/" + testCgroup() + "/pod" + string(testPod.UID) + "/*/cgroup.procs")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// A pod's group is removed with its last container, whether or not the pod goes on, and also
// if Run ends right after the container.
func TestGroupsGoWithTheirContainers(t *testing.T) {
	g := limited(t)
	groups := func() []string {
		t.Helper()
		found, err := filepath.Glob("/sys/fs/cgroup/*/" + testCgroup() + "/pod" + string(testPod.UID))
		unified, uerr := filepath.Glob("/sys/fs/cgroup/" + testCgroup() + "/pod" + string(testPod.UID))
		if err != nil || uerr != nil {
			t.Fatal(err, uerr)
		}
		return append(found, unified...)
	}
	if _, err := g.EnsureSandbox(g.ctx, runtime.Sandbox{Pod: testPod, Hostname: "pod"}); err != nil {
		t.Fatal(err)
	}
	brief, long := g.start(g.container("brief", "exit 0")), g.start(g.container("long", "exec sleep 1000"))
	g.wait(brief)
	g.waitGone(brief)
	if len(groups()) == 0 {
		t.Error("the group is gone while a container of the pod runs")
	}
	if err := g.Stop(g.ctx, long, 0); err != nil {
		t.Fatal(err)
	}
	g.waitGone(long)
	if left := groups(); len(left) > 0 {
		t.Errorf("left behind without a container: %v", left)
	}
	last := g.start(g.container("last", "exec sleep 1000"))
	if len(groups()) == 0 {
		t.Error("a later container has no group")
	}
	if err := g.Stop(g.ctx, last, 0); err != nil {
		t.Fatal(err)
	}
	g.stop()
	if left := groups(); len(left) > 0 {
		t.Errorf("left behind after Run: %v", left)
	}
}

// An exec'd command has the container's limits.
func TestPIDLimit(t *testing.T) {
	g := limited(t)
	c := g.container("c", "echo ready; sleep 1000")
	c.Resources.PIDs = 5
	id := g.start(c)
	g.waitLog(id, "ready")
	out := newScreen()
	_, err := g.Exec(g.ctx, id, []string{"sh", "-c", "for i in 1 2 3 4 5 6; do sleep 1000 & done 2>&1; kill %1"}, runtime.Stdio{Out: out, Err: out})
	if err != nil || !strings.Contains(strings.ToLower(out.String()), "fork") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestUsage(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		for _, cgroups := range []bool{true, false} {
			g := newRig(t, Config{Isolation: iso})
			if cgroups && g.cgroups == nil {
				continue
			}
			if !cgroups {
				g.cgroups = nil
			}
			id := g.start(g.container("c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo ready; sleep 1000"))
			g.waitLog(id, "ready")
			u, err := g.Usage(g.ctx, id)
			if err != nil || u.CPUNanos < 10_000_000 || u.CPUNanos > 60e9 || u.MemoryBytes < 10_000 || u.PIDs < 1 || u.PIDs > 3 || u.Time.IsZero() {
				t.Errorf("cgroups %v: %+v, %v", cgroups, u, err)
			}
		}
	})
}

func TestSample(t *testing.T) {
	at := time.Unix(1000, 0)
	s := sample{}.next(at, 5e9)
	if s.rate != 0 {
		t.Errorf("first: %+v", s)
	}
	s = s.next(at.Add(2*time.Second), 6e9)
	if s.rate != 5e8 {
		t.Errorf("half a core: %+v", s)
	}
	if again := s.next(at.Add(2*time.Second+time.Millisecond), 7e9); again != s {
		t.Errorf("too soon: %+v", again)
	}
	if s = s.next(at.Add(10*time.Second), 1); s.rate != 0 {
		t.Errorf("counted backwards: %+v", s)
	}
}

// Version 2 is tested on plain files with the same names, for machines without it.
func TestUnifiedFiles(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "hawser")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.subtree_control": "",
		"hawser/cgroup.controllers": "cpu memory pids\n", "hawser/cgroup.subtree_control": "",
		"hawser/memory.max": "max", "hawser/memory.swap.max": "max", "hawser/cpu.max": "max", "hawser/cpu.weight": "100", "hawser/pids.max": "max",
		"hawser/memory.events": "low 0\noom 3\noom_kill 2\n", "hawser/cpu.stat": "usage_usec 1500\nuser_usec 1\n",
		"hawser/memory.current": "1000\n", "hawser/memory.stat": "anon 1\ninactive_file 300\n", "hawser/pids.current": "4\n",
	} {
		write(t, filepath.Join(root, name), text, 0o600)
	}
	if err := openUnified(root, dir); err != nil {
		t.Fatal(err)
	}
	d := cgroupDirs{"": dir}
	if err := d.limit(runtime.Resources{MemoryBytes: 1 << 20, CPUMilli: 250, CPUShares: 1024, PIDs: 9}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"memory.max": "1048576", "memory.swap.max": "0", "cpu.max": "25000 100000", "cpu.weight": "39", "pids.max": "9",
	} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.HasPrefix(string(b), want) {
			t.Errorf("%s is %q, want %q (%v)", name, b, want, err)
		}
	}
	if n := d.oomKills(); n != 2 {
		t.Errorf("%d kills", n)
	}
	u, ok := d.usage()
	if !ok || u.CPUNanos != 1_500_000 || u.MemoryBytes != 700 || u.InactiveFile != 300 || u.PIDs != 4 {
		t.Errorf("usage %+v, %v", u, ok)
	}
	write(t, filepath.Join(root, "cgroup.controllers"), "\n", 0o600)
	if err := openUnified(root, dir); err == nil {
		t.Error("a hierarchy without controllers was accepted")
	}
}

func TestLimitValues(t *testing.T) {
	for _, tt := range []struct{ got, want int64 }{
		{quotaUS(0), 0},
		{quotaUS(1), 1000},
		{quotaUS(500), 50_000},
		{quotaUS(4000), 400_000},
		{weight(0), 0},
		{weight(1), 1},
		{weight(2), 1},
		{weight(1024), 39},
		{weight(262144), 10000},
		{weight(1 << 30), 10000},
	} {
		if tt.got != tt.want {
			t.Errorf("got %d, want %d", tt.got, tt.want)
		}
	}
}

// A privileged container can make groups in its own.
func TestRemoveNestedGroups(t *testing.T) {
	cg, err := openCgroups(testCgroup())
	if err != nil {
		t.Skip("SKIPPED: no cgroup can be written: ", err)
	}
	t.Cleanup(func() { cg.base.tryRemove() })
	pod, err := cg.pod("nested", runtime.Resources{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pod.tryRemove() })
	group, err := pod.child("c", runtime.Resources{})
	if err != nil {
		t.Fatal(err)
	}
	below := []string{"b", "a/b", "a", ""} // deepest first
	for _, dir := range group {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755), os.Mkdir(filepath.Join(dir, "b"), 0o755)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, name := range below {
				_ = unix.Rmdir(filepath.Join(dir, name))
			}
		})
	}
	pod.tryRemove()
	for _, dir := range group {
		if _, err := os.Stat(filepath.Join(dir, "a")); err != nil {
			t.Errorf("removed with the pod's: %v", err)
		}
	}
	group.remove()
	for _, dir := range group {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// Version 1 has cpu and cpuacct in one hierarchy on most machines.
func TestSharedHierarchy(t *testing.T) {
	dir := t.TempDir()
	d, err := cgroupDirs{"cpu": dir, "cpuacct": dir}.child("c", runtime.Resources{CPUMilli: 500})
	if err != nil || d["cpu"] != filepath.Join(dir, "c") || d["cpuacct"] != d["cpu"] {
		t.Fatalf("%v, %v", d, err)
	}
	if _, err := (cgroupDirs{"cpu": dir}).child("c", runtime.Resources{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a group that is there: %v", err)
	}
}
