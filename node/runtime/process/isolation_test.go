package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// withNamespaces runs a test for both ways to have namespaces.
func withNamespaces(t *testing.T, f func(t *testing.T, iso Isolation)) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		if iso != None {
			f(t, iso)
		}
	})
}

// output runs a container to its end and returns what it wrote.
func (g *rig) output(c runtime.Container) string {
	g.t.Helper()
	id := g.start(c)
	st := g.wait(id)
	out := g.log(id)
	if st.ExitCode != 0 {
		g.t.Errorf("%s: exit code %d: %s", c.Name, st.ExitCode, out)
	}
	return out
}

func TestFilesAreTheContainersOwn(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		secret := filepath.Join(g.cfg.DataDir, "secret")
		write(t, secret, "secret", 0o600)
		name := fmt.Sprintf("hawser-test-%d", os.Getpid())
		got := g.output(g.container("writer", strings.ReplaceAll(`set -e
			pwd
			echo x > NAME; echo x > /usr/bin/NAME; echo x > /tmp/NAME; echo x > /var/NAME
			ls /tmp
			mkdir /NAME.d; rmdir /NAME.d
			stat -c %a /tmp
			ls /proc | grep -c '^[0-9]'
			test -c /dev/null; echo x > /dev/null; test ! -e /dev/kmsg; ls -d /dev/pts /dev/shm /proc/self /sys/class
			tar --version | head -1 | cut -d' ' -f1
			`, "NAME", name)))
		lines := strings.Split(got, "\n")
		if lines[0] != "/" || lines[1] != name || lines[2] != "1777" {
			t.Errorf("got %q", lines)
		}
		if n, err := strconv.Atoi(lines[3]); err != nil || n > 6 {
			t.Errorf("%d processes are seen", n)
		}
		if want := "/dev/pts\n/dev/shm\n/proc/self\n/sys/class\ntar\n"; !strings.HasSuffix(got, want) {
			t.Errorf("got %q", got)
		}
		for _, dir := range []string{"/", "/usr/bin", "/tmp", "/var"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				t.Errorf("%s/%s was written to the machine", dir, name)
				_ = os.Remove(filepath.Join(dir, name))
			}
		}
		// Files of one container, and of the runtime, are not visible in another.
		c := g.container("other", fmt.Sprintf("ls -d /%s /usr/bin/%s /tmp/* %s %s; true", name, name, secret, filepath.Dir(secret)+"/c"))
		if got := g.output(c); strings.Count(got, "No such file") != 5 {
			t.Errorf("seen: %q", got)
		}
	})
}

// TestWrittenFilesAreInDir: what a container writes outside of its volumes is below Dir of its
// status, where the agent measures it.
func TestWrittenFilesAreInDir(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		name := fmt.Sprintf("hawser-test-%d", os.Getpid())
		id := g.start(g.container("writer", strings.ReplaceAll("echo x > /var/NAME; echo x > /tmp/NAME", "NAME", name)))
		st := g.wait(id)
		var found []string
		err := filepath.WalkDir(st.Dir, func(path string, _ fs.DirEntry, err error) error {
			if filepath.Base(path) == name {
				found = append(found, path)
			}
			if errors.Is(err, fs.ErrPermission) {
				return nil // the kernel's own, of an overlay
			}
			return err
		})
		want := 1
		if layers, _ := os.ReadDir(filepath.Join(st.Dir, layersName)); len(layers) > 0 {
			want = 2 // else the file system of the data directory takes no layers, and memory has them
		}
		if err != nil || len(found) != want {
			t.Errorf("%q are below %q, %v; want %d files", found, st.Dir, err, want)
		}
	})
}

// TestHostPID: a container that shares process ids with the machine sees its processes by
// their numbers, and so do commands in it.
func TestHostPID(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		script := fmt.Sprintf("cat /proc/%d/comm && echo $$", os.Getpid())
		c := g.container("main", script+"; read x")
		c.Security.HostPID, c.Stdin = true, true
		id := g.start(c)
		comm, err := os.ReadFile("/proc/self/comm")
		if err != nil {
			t.Fatal(err)
		}
		main := g.containers[id].record.PID
		g.waitLog(id, fmt.Sprintf("%s%d\n", comm, main))
		if p, err := statOf(main); err != nil || p.PPID != g.containers[id].record.ShimPID {
			t.Errorf("the number it has for itself is not the machine's: %+v %v", p, err)
		}
		var out bytes.Buffer
		if code, err := g.Exec(g.ctx, id, []string{"sh", "-c", script}, runtime.Stdio{Out: &out}); err != nil || code != 0 || !strings.HasPrefix(out.String(), string(comm)) {
			t.Errorf("exec: %q %d %v", &out, code, err)
		}
	})
}

// The data directory is not below /tmp, which is always empty in a container.
func TestDataDirIsHidden(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root to write to /var/lib")
	}
	dir, err := os.MkdirTemp("/var/lib", "hawser-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Chdir("/usr")
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{DataDir: filepath.Join(dir, string(iso)), Isolation: iso, Hide: []string{"share"}})
		volume := filepath.Join(dir, string(iso), "volume")
		if err := os.Mkdir(volume, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(volume, "file"), "content", 0o644)
		c := g.container("c", "ls -A "+g.cfg.DataDir+"; ls -A /usr/share; cat /vol/file")
		c.Mounts = []runtime.Mount{{HostPath: volume, ContainerPath: "/vol"}}
		if got := g.output(c); got != "content" {
			t.Errorf("got %q", got)
		}
	})
}

func TestMounts(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		host := t.TempDir()
		for _, d := range []string{"rw", "ro", "nested"} {
			if err := os.Mkdir(filepath.Join(host, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		write(t, filepath.Join(host, "ro", "a"), "A\n", 0o644)
		write(t, filepath.Join(host, "nested", "b"), "B\n", 0o644)
		write(t, filepath.Join(host, "file"), "", 0o644)
		c := g.container("c", `exec 2>&1; cat /data/ro/a /data/ro/deep/b
			echo written > /data/rw/out
			echo message > /dev/termination-log
			echo no > /data/ro/a; echo no > /data/ro/deep/b
			ls /var/run/secrets/kubernetes.io/serviceaccount
			cat /etc/hosts`)
		c.TerminationLog = filepath.Join(host, "file")
		c.Mounts = []runtime.Mount{
			{HostPath: filepath.Join(host, "nested"), ContainerPath: "/data/ro/deep", ReadOnly: true},
			{HostPath: filepath.Join(host, "ro"), ContainerPath: "/data/ro"},
			{HostPath: filepath.Join(host, "rw"), ContainerPath: "/data/rw/"},
			{HostPath: c.TerminationLog, ContainerPath: "/dev/termination-log", Optional: true},
			{HostPath: filepath.Join(host, "ro"), ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
			{HostPath: filepath.Join(host, "ro", "a"), ContainerPath: "/etc/hosts", ReadOnly: true},
			{HostPath: "/no/such", ContainerPath: "/optional", Optional: true},
		}
		// The nested mount point must exist in the outer mount.
		if err := os.Mkdir(filepath.Join(host, "ro", "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
		got := g.output(c)
		if !strings.HasPrefix(got, "A\nB\n") || strings.Count(got, "Read-only file system") != 1 || !strings.Contains(got, "a\ndeep\nno\n") {
			t.Errorf("got %q", got)
		}
		for path, want := range map[string]string{"rw/out": "written\n", "file": "message\n", "ro/a": "no\n", "nested/b": "B\n"} {
			if b, err := os.ReadFile(filepath.Join(host, path)); err != nil || string(b) != want {
				t.Errorf("%s: %q, %v", path, b, err)
			}
		}
		for _, path := range []string{"relative", "/", "/data/../.."} {
			c := g.container("bad", "true")
			c.Mounts = []runtime.Mount{{HostPath: host, ContainerPath: path}}
			if _, err := g.Start(g.ctx, c); err == nil {
				t.Errorf("mounted at %q", path)
			}
		}
	})
}

// TestReadOnlyMountsBelow: a read-only mount does with those below it what Info says.
func TestReadOnlyMountsBelow(t *testing.T) {
	if below, err := mountinfo.Mounted("/dev/shm"); err != nil || !below {
		t.Skip("SKIPPED: /dev/shm is not mounted")
	}
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", "echo x 2>&1 >/data/shm/hawser-test && rm /data/shm/hawser-test && echo written; true")
		c.Mounts = []runtime.Mount{{HostPath: "/dev", ContainerPath: "/data", ReadOnly: true}}
		info, err := g.Info(g.ctx)
		got := g.output(c)
		if refused := strings.Contains(got, "Read-only file system"); err != nil || refused != info.RecursiveReadOnly || !refused && got != "written\n" {
			t.Errorf("info %+v, %v; got %q", info, err, got)
		}
	})
}

// Without namespaces a volume cannot be mounted, and the error says what is missing.
func TestMountsWithoutNamespaces(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	dir := t.TempDir()
	c := g.container("c", "pwd; echo x > file; cat "+dir+"/a")
	write(t, filepath.Join(dir, "a"), "A\n", 0o644)
	c.Mounts = []runtime.Mount{{HostPath: dir, ContainerPath: dir}, {HostPath: "/etc/passwd", ContainerPath: "/dev/termination-log", Optional: true}}
	got := g.output(c)
	if !strings.HasPrefix(got, g.containersDir()) || !strings.HasSuffix(got, "A\n") {
		t.Errorf("got %q", got)
	}
	c.Attempt++
	c.Mounts = []runtime.Mount{{HostPath: dir, ContainerPath: "/data"}}
	_, err := g.Start(g.ctx, c)
	if err == nil || !strings.Contains(err.Error(), `mounting a volume at "/data" needs an agent that runs as root, or user namespaces`) {
		t.Errorf("got %v", err)
	}
}

func TestUsers(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("default", "id -u; id -g; id -G; pwd; touch here")
		if got := g.output(c); got != "0\n0\n0\n/\n" {
			t.Errorf("default: %q", got)
		}
		c = g.container("user", "id -u; id -g; pwd; touch here /tmp/there; grep CapEff /proc/self/status; echo x > /dev/stdout")
		c.UID, c.GID = id(1234), id(4321)
		if got := g.output(c); got != "1234\n4321\n/\nCapEff:\t0000000000000000\nx\n" {
			t.Errorf("user: %q", got)
		}
		var out bytes.Buffer
		c = g.container("exec", "sleep 1000")
		c.UID = id(1234)
		cid := g.start(c)
		code, err := g.Exec(g.ctx, cid, []string{"sh", "-c", "id -u; grep CapEff /proc/self/status; tty; touch $(tty)"}, runtime.Stdio{Out: &out, TTY: true})
		if got := out.String(); code != 0 || err != nil || !strings.HasPrefix(got, "1234\r\nCapEff:\t0000000000000000\r\n/dev/pts/") {
			t.Errorf("exec: %d %v %q", code, err, got)
		}
	})
	if os.Geteuid() != 0 {
		return
	}
	g := newRig(t, Config{Isolation: Namespaces})
	c := g.container("groups", "id -G; echo $HOME")
	c.UID, c.Groups = id(65534), []int64{7, 8}
	if got := g.output(c); got != "65534 7 8\n/nonexistent\n" {
		t.Errorf("groups: %q", got)
	}
	g = newRig(t, Config{Isolation: UserNamespace})
	c = g.container("groups", "true")
	c.Groups = []int64{7}
	if _, err := g.Start(g.ctx, c); err == nil || !strings.Contains(err.Error(), "needs an agent that runs as root") {
		t.Errorf("groups in a user namespace: %v", err)
	}
}

func TestHostname(t *testing.T) {
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		for range 2 {
			if _, err := g.EnsureSandbox(g.ctx, runtime.Sandbox{Pod: testPod, Hostname: "my-pod"}); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.output(g.container("c", "uname -n")); got != "my-pod\n" {
			t.Errorf("got %q", got)
		}
	})
	if after, _ := os.Hostname(); after != before {
		t.Errorf("the machine is called %q now", after)
	}
}

// Mounts of a container are not visible outside, and end with it.
func TestNothingStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	g := newRig(t, Config{Isolation: Namespaces})
	c := g.container("c", "mkdir /m && mount -t tmpfs none /m && touch /m/x && grep -c ' /m ' /proc/self/mounts")
	c.Security.Privileged = true
	if got := g.output(c); got != "1\n" {
		t.Errorf("got %q", got)
	}
	g.clear()
	ms, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if runtime.Under(m.Mountpoint, g.cfg.DataDir) {
			t.Errorf("left mounted: %s", m.Mountpoint)
		}
	}
}

// The files of a file system that is mounted in a container's directory must not be removed.
func TestRemoveUnmountsFirst(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	precious := t.TempDir()
	write(t, filepath.Join(precious, "file"), "x", 0o600)
	dir := filepath.Join(t.TempDir(), "container")
	if err := os.MkdirAll(filepath.Join(dir, rootName), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := bind(precious, filepath.Join(dir, rootName), true); err != nil {
		t.Skipf("SKIPPED: cannot mount: %v", err)
	}
	if err := removeContainer(&spec{Dir: dir}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(precious, "file")); err != nil {
		t.Errorf("lost: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}

// An agent without privileges has namespaces by a user namespace, if the system allows it, and
// works without them.
func TestUnprivilegedAgent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: the other tests show it, this one needs root to become nobody")
	}
	const nobody = 65534
	for _, iso := range []Isolation{Auto, None} {
		t.Run("isolation "+string(iso), func(t *testing.T) {
			dir, err := os.MkdirTemp("/tmp", "hawser-test-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if err = os.Chown(dir, nobody, nobody); err != nil {
				t.Fatal(err)
			}
			a := startAgent(t, agentOptions{dir: dir, uid: nobody, iso: iso})
			volume := filepath.Join(dir, "volume")
			if err = os.Mkdir(volume, 0o777); err != nil {
				t.Fatal(err)
			}
			if err = os.Chmod(volume, 0o777); err != nil {
				t.Fatal(err)
			}
			c := runtime.Container{
				Pod: testPod, Name: "c", LogPath: filepath.Join(dir, "log"), Env: []string{"V=" + volume},
				Argv: []string{"sh", "-c", "id -u > $V/out; mkdir -p secret/deep; chmod 0 secret; pwd >> $V/out"},
			}
			want := "65534\n"
			if iso == Auto && probe(t.Context(), Config{DataDir: t.TempDir()}, UserNamespace) == nil {
				c.Env = []string{"V=/vol"}
				c.Mounts = []runtime.Mount{{HostPath: volume, ContainerPath: "/vol"}}
				want = "0\n/\n"
			}
			if ans := a.start(t, c); ans.Err != "" {
				t.Fatal(ans.Err)
			}
			a.end(t)
			out, err := os.ReadFile(filepath.Join(volume, "out"))
			if err != nil || !strings.HasPrefix(string(out), want) {
				t.Errorf("%q, %v", out, err)
			}
			left, err := os.ReadDir(filepath.Join(dir, "c"))
			if err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(volume, "out"), &st); err != nil || st.Uid != nobody {
				t.Errorf("written by %d, %v", st.Uid, err)
			}
		})
	}
}

// A working directory that is missing is made in the container's own files, or in a volume.
func TestWorkingDirectoryIsMade(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		volume := t.TempDir()
		for _, dir := range []string{"/no/such", "/made/for/it/below"} {
			c := g.container("c"+strings.ReplaceAll(dir, "/", "-"), "pwd; test -d /no/such && exit 7; exit 0")
			c.WorkingDir, c.Mounts = dir, []runtime.Mount{{HostPath: volume, ContainerPath: "/made/for/it"}}
			c.Security.ReadOnlyRoot = true
			id := g.start(c)
			if st := g.wait(id); st.ExitCode != map[bool]int{true: 7}[dir == "/no/such"] || !strings.Contains(g.log(id), dir+"\n") {
				t.Errorf("%s: exit code %d, %q", dir, st.ExitCode, g.log(id))
			}
		}
		if _, err := os.Stat("/no/such"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("made on the machine: %v", err)
		}
		if info, err := os.Stat(filepath.Join(volume, "below")); err != nil || !info.IsDir() {
			t.Errorf("in the volume: %v", err)
		}
	})
}

// A disk without room for a file is no reason to run containers without isolation.
func TestIsolationOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 || probe(t.Context(), Config{DataDir: t.TempDir()}, Namespaces) != nil {
		t.Skip("SKIPPED: needs root, with namespaces")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=1"); err != nil { // which the root has
		t.Skip("SKIPPED: no small disk can be mounted: ", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	if iso, err := probeIsolation(t.Context(), Config{Isolation: Auto, DataDir: dir, Log: testLog(t)}); iso != Namespaces || err != nil {
		t.Errorf("got %q, %v", iso, err)
	}
}

// What is short for now is told from what a machine does not have.
func TestIsolationIsShort(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EPERM: true, unix.ENOSYS: true, unix.EINVAL: true,
		unix.EAGAIN: false, unix.ENOMEM: false, unix.EMFILE: false, unix.ENOSPC: false,
	} {
		if notHad(fmt.Errorf("mount: %w", err)) != want {
			t.Errorf("%v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it cannot be tried
	if iso, err := probeIsolation(ctx, Config{Isolation: Auto, DataDir: t.TempDir(), Log: testLog(t)}); err == nil {
		t.Errorf("containers would have %q", iso)
	}
}
