package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// status prints the lines of /proc/self/status about privileges.
const statusScript = `grep -E '^(CapEff|CapBnd|CapInh|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t\n' ' ,'`

func TestCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	user := int64(1234)
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		full := fmt.Sprintf("%016x", fullCaps(t, iso))
		g := newRig(t, Config{Isolation: iso})
		for name, tt := range map[string]struct {
			security runtime.Security
			uid      *int64
			eff, bnd string
		}{
			"default":       {eff: "00000000a80425fb", bnd: "00000000a80425fb"},
			"user":          {uid: &user, eff: "0000000000000000", bnd: "00000000a80425fb"},
			"drop all":      {security: runtime.Security{DropCapabilities: []string{"ALL"}}, eff: "0000000000000000", bnd: "0000000000000000"},
			"drop one":      {security: runtime.Security{DropCapabilities: []string{"NET_RAW"}}, eff: "00000000a80405fb", bnd: "00000000a80405fb"},
			"all but":       {security: runtime.Security{DropCapabilities: []string{"all"}, AddCapabilities: []string{"cap_chown"}}, eff: "0000000000000001", bnd: "0000000000000001"},
			"drop wins":     {security: runtime.Security{AddCapabilities: []string{"CHOWN"}, DropCapabilities: []string{"CHOWN"}}, eff: "00000000a80425fa", bnd: "00000000a80425fa"},
			"add":           {security: runtime.Security{AddCapabilities: []string{"NET_ADMIN"}}, eff: "00000000a80435fb", bnd: "00000000a80435fb"},
			"add all":       {security: runtime.Security{AddCapabilities: []string{"ALL"}}, eff: full, bnd: full},
			"privileged":    {security: runtime.Security{Privileged: true, DropCapabilities: []string{"ALL"}}, eff: full, bnd: full},
			"unknown":       {security: runtime.Security{AddCapabilities: []string{"FLY"}}},
			"unknown (not)": {security: runtime.Security{DropCapabilities: []string{"CAP_"}}},
		} {
			t.Run(name, func(t *testing.T) {
				c := g.container(strings.ReplaceAll(name, " ", "-"), statusScript+"; echo; sleep 1000")
				c.Security, c.UID, c.GID = tt.security, tt.uid, tt.uid
				id, err := g.Start(g.ctx, c)
				beyond := name == "add" || name == "add all"
				switch {
				case tt.eff == "" && (err == nil || !strings.Contains(err.Error(), "is unknown")):
					t.Errorf("an unknown capability: %v", err)
				case iso == UserNamespace && beyond && (err == nil || !strings.Contains(err.Error(), "needs an agent that runs as root")):
					t.Errorf("capabilities without effect: %v", err)
				case err != nil && tt.eff != "" && (iso != UserNamespace || !beyond):
					t.Fatal(err)
				}
				if err != nil {
					return
				}
				want := fmt.Sprintf("CapInh: 0000000000000000,CapEff: %s,CapBnd: %s,CapAmb: 0000000000000000,NoNewPrivs: 0,Seccomp: 0,", tt.eff, tt.bnd)
				g.waitLog(id, want)
				// An exec'd command has no more privileges.
				out := newScreen()
				if _, err := g.Exec(g.ctx, id, []string{"sh", "-c", statusScript}, runtime.Stdio{Out: out, Err: out}); err != nil || out.String() != want {
					t.Errorf("exec: %q, %v; want %q", out.String(), err, want)
				}
			})
		}
	})
}

// fullCaps are all that this process has, or in a user namespace of its own can have.
func fullCaps(t *testing.T, iso Isolation) (set uint64) {
	t.Helper()
	for n := range uintptr(64) {
		have, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, n, 0, 0, 0)
		if err != nil {
			return set
		}
		if have == 1 || iso == UserNamespace {
			set |= 1 << n
		}
	}
	return set
}

func TestNoNewPrivileges(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", statusScript)
		c.Security.NoNewPrivileges = true
		if got := g.output(c); !strings.Contains(got, "NoNewPrivs: 1,") {
			t.Errorf("got %q", got)
		}
	})
}

func TestReadOnlyRoot(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", `for d in / /tmp /var /usr /etc /run /home; do touch $d/x 2>/dev/null && echo wrote to $d; done
			mkdir /new 2>/dev/null && echo made a directory
			mount -o remount,rw / 2>/dev/null && echo mounted
			set -e; touch /dev/shm/x /vol/x /etc/vol/x; echo x > /dev/null`)
		c.Security.ReadOnlyRoot = true
		c.Mounts = []runtime.Mount{{HostPath: t.TempDir(), ContainerPath: "/vol"}, {HostPath: t.TempDir(), ContainerPath: "/etc/vol"}}
		if got := g.output(c); got != "" {
			t.Errorf("got %q", got)
		}
		// A volume at a place that is a mount of the machine, or of the root itself, is a volume;
		// so is one that has directories where the machine has mounts.
		run := t.TempDir()
		for _, m := range own(t, "/run") {
			if err := os.MkdirAll(filepath.Join(run, strings.TrimPrefix(m, "/run/")), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		c = g.container("over", `for d in / /usr /etc; do touch $d/x 2>/dev/null && echo wrote to $d; done
			set -e; touch /tmp/x /var/x /home/x /run/x /run/secrets/x/x`)
		c.Security.ReadOnlyRoot = true
		for _, at := range []string{"/tmp", "/var", "/home", "/run/secrets/x"} {
			c.Mounts = append(c.Mounts, runtime.Mount{HostPath: t.TempDir(), ContainerPath: at})
		}
		c.Mounts = append(c.Mounts, runtime.Mount{HostPath: run, ContainerPath: "/run"})
		if got := g.output(c); got != "" {
			t.Errorf("volumes over mounts: got %q", got)
		}
		// The view of another container is not changed by that.
		if got := g.output(g.container("other", "touch /x /tmp/x /var/x")); got != "" {
			t.Errorf("another container: %q", got)
		}
	})
	g := newRig(t, Config{Isolation: None})
	c := g.container("c", "true")
	c.Security.ReadOnlyRoot = true
	if _, err := g.Start(g.ctx, c); err == nil || !strings.Contains(err.Error(), "needs an agent that runs as root") {
		t.Errorf("without namespaces: %v", err)
	}
}

// A privileged container has the machine's devices, and another one has not.
func TestPrivilegedDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: privileged containers need root")
	}
	g := newRig(t, Config{Isolation: Namespaces})
	const list = `cd /dev; find . -path ./pts -prune -o -path ./shm -prune -o -path ./mqueue -prune -o ! -name console ! -name ptmx ! -type l ! -type d -print |
		sort | while read -r d; do if [ -b "$d" ] || [ -c "$d" ]; then stat -c '%n %a %t:%T' "$d"; fi; done`
	here := func() string {
		out, err := exec.Command("sh", "-c", list).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for range 5 { // again if a device has come or gone meanwhile
		want, c := here(), g.container("privileged", list)
		c.Security.Privileged = true
		got := g.output(c)
		if want != here() {
			continue
		}
		if got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		break
	}
	if got := strings.Count(g.output(g.container("other", list)), "\n"); got != 6 {
		t.Errorf("another one has %d devices, want 6", got)
	}
}

// own are the mounts of this machine below dir.
func own(t *testing.T, dir string) []string {
	t.Helper()
	ms, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for _, m := range ms {
		if m.Mountpoint != dir {
			points = append(points, m.Mountpoint)
		}
	}
	return points
}

func TestDefaultSeccomp(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		script := statusScript + `; unshare -U true 2>&1 || echo refused; (true | cat; date > /dev/null) && echo works`
		c := g.container("c", script+"; echo ready; sleep 1000")
		c.Security.DefaultSeccomp = true
		id := g.start(c)
		g.waitLog(id, "ready")
		got := g.log(id)
		if !strings.Contains(got, "Seccomp: 2,") || !strings.Contains(got, "refused\nworks\n") {
			t.Errorf("got %q", got)
		}
		out := newScreen()
		if _, err := g.Exec(g.ctx, id, []string{"sh", "-c", script}, runtime.Stdio{Out: out, Err: out}); err != nil || !strings.Contains(out.String(), "refused\nworks\n") {
			t.Errorf("exec: %q, %v", out.String(), err)
		}
		c = g.container("privileged", script)
		c.Security.DefaultSeccomp, c.Security.Privileged = true, true
		if got := g.output(c); !strings.Contains(got, "Seccomp: 0,") {
			t.Errorf("privileged: %q", got)
		}
	})
}

// With control groups of version 2 and the filter, a process is moved to its group before its
// first instruction.
func TestDefaultSeccompUnified(t *testing.T) {
	g := limited(t)
	ms, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if m.FSType != "cgroup2" || m.Root != "/" {
			continue
		}
		dir := filepath.Join(m.Mountpoint, testCgroup())
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		g.cgroups = &cgroups{cgroupDirs{"": dir}}
		for _, filter := range []bool{true, false} {
			c := g.container(fmt.Sprint(filter), "cat /proc/self/cgroup; "+statusScript)
			c.Security.DefaultSeccomp = filter
			if got := g.output(c); !strings.Contains(got, "0::/"+testCgroup()+"/pod"+string(testPod.UID)+"/") || strings.Contains(got, "Seccomp: 2") != filter {
				t.Errorf("filter %v: %q", filter, got)
			}
		}
		g.clear()
		return
	}
	t.Skip("SKIPPED: no cgroup2 hierarchy is mounted")
}

// A subPath that leads out of its volume is refused, also if the link is made during the
// mount.
func TestSubPathStaysInItsVolume(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		volume := t.TempDir()
		outside := t.TempDir()
		write(t, filepath.Join(outside, "file"), "outside", 0o644)
		for name, to := range map[string]string{"absolute": outside, "relative": "../" + filepath.Base(filepath.Dir(outside)), "proc": "/proc/self/root", "inside": "dir"} {
			if err := os.Symlink(to, filepath.Join(volume, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Mkdir(filepath.Join(volume, "dir"), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, sub := range []string{"absolute", "relative", "proc", "absolute/file", "..", "dir/../..", "inside", "dir"} {
			c := g.container(strings.NewReplacer("/", "-", ".", "d").Replace(sub), "true")
			c.Mounts = []runtime.Mount{{HostPath: volume, SubPath: sub, ContainerPath: "/vol"}}
			_, err := g.Start(g.ctx, c)
			if ok := sub == "inside" || sub == "dir"; (err == nil) != ok || !ok && !strings.Contains(err.Error(), "leaves its volume") {
				t.Errorf("%s: %v", sub, err)
			}
		}
	})
}

// The agent's directory is hidden in a hostPath volume that contains it.
func TestHiddenInVolumes(t *testing.T) {
	g, dir := attackRig(t)
	paths := secrets(t, dir, "word")
	c := g.container("c", "cat /host"+strings.Join(paths, " /host")+"; ls -A /host"+dir)
	c.Mounts = []runtime.Mount{{HostPath: "/", ContainerPath: "/host"}}
	if id := g.start(c); g.wait(id).ExitCode != 0 || strings.Contains(g.log(id), "word") {
		t.Errorf("got %q", g.log(id))
	}
}
