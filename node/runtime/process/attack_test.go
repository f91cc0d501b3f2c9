package process

// A container that runs as root attacks the node. The attacker is this test's own program: it
// is mounted into a container and gets its targets by the environment.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

const attackEnv = "HAWSER_TEST_ATTACK"

// A target is the attacker's input. Each file of Secrets contains Word.
type target struct {
	Secrets []string
	Dir     string // the data directory
	Word    string
	Major   uint32 // of the disk with the secrets
	Minor   uint32
	Inode   uint64 // of a secret
	Agent   int    // its process
	Shm     int    // a shared memory segment of the machine
	Inner   bool   // inside a user namespace that the attacker has made
}

// attackMain tries all attacks and prints a line for each that worked.
func attackMain() {
	var t target
	if err := json.Unmarshal([]byte(os.Getenv(attackEnv)), &t); err != nil {
		fmt.Println("no target:", err)
		os.Exit(1)
	}
	out := bufio.NewWriter(os.Stdout)
	worked := func(format string, args ...any) { fmt.Fprintf(out, "WORKED: "+format+"\n", args...) }
	if t.Inner {
		for p := t.Dir; p != "/"; p = filepath.Dir(p) {
			if unix.Unmount(p, unix.MNT_DETACH) == nil {
				worked("unmount %s in a user namespace", p)
			}
		}
		t.read("", "a user namespace", worked)
	} else {
		for _, f := range []func(func(string, ...any)){
			t.files, t.processes, t.mounts, t.devices, t.namespaces, t.kernel, t.escape,
		} {
			f(worked)
		}
	}
	fmt.Fprintln(out, "attacked")
	_ = out.Flush()
}

// read looks for the secrets below prefix.
func (t target) read(prefix, how string, worked func(string, ...any)) {
	for _, s := range t.Secrets {
		if b, err := os.ReadFile(prefix + s); err == nil && strings.Contains(string(b), t.Word) {
			worked("read %s through %s", s, how)
		}
	}
}

func (t target) files(worked func(string, ...any)) {
	t.read("", "its path", worked)
	if names, err := os.ReadDir(t.Dir); err == nil && len(names) > 0 {
		worked("list %s: %v", t.Dir, names)
	}
	if err := os.WriteFile(filepath.Join(t.Dir, "planted"), nil, 0o600); err == nil {
		worked("write to %s", t.Dir)
	}
	for _, f := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
		"/proc/kcore", "/dev/mem", "/dev/kmsg",
	} {
		if fd, err := unix.Open(f, unix.O_WRONLY, 0); err == nil {
			worked("open %s for writing", f)
			_ = unix.Close(fd)
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // an unreadable file is not tried
		}
		if fd, err := unix.Open(path, unix.O_WRONLY, 0); err == nil {
			worked("open %s for writing", path)
			_ = unix.Close(fd)
		}
		return nil
	})
	_, _, errno := unix.Syscall(unix.SYS_SHMAT, uintptr(t.Shm), 0, 0)
	if errno == 0 {
		worked("attach shared memory of the machine")
	}
}

func (t target) processes(worked func(string, ...any)) {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(names) == 0 {
		worked("nothing: /proc is empty")
	}
	me := fmt.Sprintf("/proc/%d", os.Getpid())
	for _, p := range names {
		if p == me {
			continue
		}
		t.read(p+"/root", p+"/root", worked)
		t.read(p+"/cwd", p+"/cwd", worked)
		for n := range 32 {
			if f, err := os.Open(fmt.Sprintf("%s/fd/%d", p, n)); err == nil {
				worked("open %s", f.Name())
				_ = f.Close()
			}
		}
		for _, f := range []string{"environ", "mem", "maps", "exe", "ns/mnt"} {
			fd, err := unix.Open(filepath.Join(p, f), unix.O_RDONLY, 0)
			if err != nil {
				continue
			}
			if f == "ns/mnt" {
				if unix.Setns(fd, 0) == nil {
					worked("enter the mounts of %s", p)
				}
			} else if n, err := unix.Read(fd, make([]byte, 64)); err == nil && n > 0 || f == "mem" {
				worked("open %s of %s", f, p)
			}
			_ = unix.Close(fd)
		}
		if _, err := os.ReadFile(p + "/stat"); err == nil && filepath.Base(p) == strconv.Itoa(t.Agent) && t.Agent > 100 {
			worked("see the agent")
		}
	}
	if err := unix.PtraceAttach(1); err == nil {
		worked("ptrace process 1")
	}
	if err := unix.PtraceSeize(1); err == nil {
		worked("seize process 1")
	}
	if t.Agent > 100 && unix.Kill(t.Agent, 0) == nil {
		worked("signal the agent")
	}
}

func (t target) mounts(worked func(string, ...any)) {
	dir, err := os.MkdirTemp("/tmp", "m")
	if err != nil {
		worked("nothing: %v", err)
		return
	}
	for _, m := range []struct {
		source, fs string
		flags      uintptr
	}{
		{"tmpfs", "tmpfs", 0},
		{"proc", "proc", 0},
		{"sysfs", "sysfs", 0},
		{"cgroup", "cgroup", 0},
		{"cgroup2", "cgroup2", 0},
		{"/", "", unix.MS_BIND},
		{"devtmpfs", "devtmpfs", 0},
		{"overlay", "overlay", 0},
	} {
		if unix.Mount(m.source, dir, m.fs, m.flags, "") == nil {
			worked("mount %s", m.source)
		}
	}
	for p := t.Dir; p != "/"; p = filepath.Dir(p) {
		if unix.Unmount(p, unix.MNT_DETACH) == nil {
			worked("unmount %s", p)
		}
	}
	if unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "") == nil {
		worked("remount /")
	}
	if _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); err == nil {
		worked("clone the tree of mounts")
	}
	t.read("", "its path after that", worked)
}

// devices makes device files of the disk, and of memory, in every directory that could be
// another mount.
func (t target) devices(worked func(string, ...any)) {
	disk, mem := int(unix.Mkdev(t.Major, t.Minor)), int(unix.Mkdev(1, 1))
	for _, dir := range []string{"/", "/tmp", "/var", "/usr", "/dev", "/dev/shm", "/vol", "/run", "/etc", "/root"} {
		for name, dev := range map[string]int{"disk": disk, "mem": mem} {
			mode := uint32(unix.S_IFBLK)
			if name == "mem" {
				mode = unix.S_IFCHR
			}
			path := filepath.Join(dir, "attack-"+name)
			if unix.Mknod(path, mode|0o600, dev) != nil {
				continue
			}
			fd, err := unix.Open(path, unix.O_RDONLY, 0)
			if err == nil {
				worked("open %s", path)
				_ = unix.Close(fd)
			} else if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
				worked("get past the mount's flags at %s: %v", path, err)
			}
			_ = unix.Unlink(path)
		}
	}
}

func (t target) namespaces(worked func(string, ...any)) {
	for name, flag := range map[string]int{"mount": unix.CLONE_NEWNS, "network": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS} {
		if unix.Unshare(flag) == nil {
			worked("make a %s namespace", name)
		}
	}
	if unix.Sethostname([]byte("taken")) == nil {
		worked("set the host name")
	}
	t.Inner = true
	self, err := json.Marshal(t)
	if err != nil {
		worked("nothing: %v", err)
	}
	cmd := exec.Command("/attack")
	cmd.Env = []string{attackEnv + "=" + string(self)}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{Size: 1}}, GidMappings: []syscall.SysProcIDMap{{Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err == nil && strings.Contains(string(out), "WORKED") {
		worked("%s", strings.TrimSpace(string(out)))
	}
}

func (t target) kernel(worked func(string, ...any)) {
	if err := unix.InitModule([]byte("x"), ""); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
		worked("load a module: %v", err)
	}
	if err := unix.Settimeofday(&unix.Timeval{Sec: -1}); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
		worked("set the clock: %v", err)
	}
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_ON); err == nil {
		worked("reboot")
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -20); err == nil {
		worked("take precedence")
	}
	root, err := unix.Open("/", unix.O_RDONLY, 0)
	if err != nil {
		worked("nothing: %v", err)
		return
	}
	handle := make([]byte, 8)
	for i := range 4 {
		handle[i] = byte(t.Inode >> (8 * i))
	}
	_, err = unix.OpenByHandleAt(root, unix.NewFileHandle(1, handle), unix.O_RDONLY)
	if !errors.Is(err, unix.EPERM) {
		worked("open a file by its handle: %v", err)
	}
}

// escape leaves a root that is a plain chroot.
func (t target) escape(worked func(string, ...any)) {
	if err := os.MkdirAll("/tmp/jail", 0o755); err != nil {
		worked("nothing: %v", err)
	}
	if err := unix.Chroot("/tmp/jail"); err != nil {
		return
	}
	for range 64 {
		_ = os.Chdir("..")
	}
	_ = unix.Chroot(".")
	t.read("", "an escape from the root", worked)
}

// secrets makes files like those of an agent, and returns their paths.
func secrets(t *testing.T, dir, word string) []string {
	t.Helper()
	var paths []string
	for _, name := range []string{"pki/agent.key", "pods/other/inputs.json", "pods/other/volumes/secret/token", "runtime/pods/x.json", "logs/ns_other_uid/main/0.log"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, word, 0o644)
		paths = append(paths, path)
	}
	return paths
}

// attackRig is a runtime of an agent whose data directory is not below /tmp, which is always
// empty in a container.
func attackRig(t *testing.T) (*rig, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	dir, err := os.MkdirTemp("/var/lib", "hawser-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return newRig(t, Config{DataDir: filepath.Join(dir, "runtime"), Isolation: Namespaces, Hide: []string{dir}}), dir
}

// attacker is a container of root that runs the attack.
func (g *rig) attacker(t *testing.T, to target, name string) runtime.Container {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	c := g.container(name, "exec /attack")
	c.Env = append(c.Env, attackEnv+"="+string(text))
	c.Mounts = append(c.Mounts, runtime.Mount{HostPath: exe, ContainerPath: "/attack", ReadOnly: true},
		runtime.Mount{HostPath: t.TempDir(), ContainerPath: "/vol"})
	return c
}

func TestRootContainerAgainstTheNode(t *testing.T) {
	g, dir := attackRig(t)
	const word = "the-word-that-nobody-may-read"
	to := target{Secrets: secrets(t, dir, word), Dir: dir, Word: word, Agent: os.Getpid()}
	other := g.container("other", "exec sleep 1000")
	other.Pod.UID = "other"
	other.Env = append(other.Env, "PASSWORD="+word)
	victim := g.start(other)
	to.Secrets = append(to.Secrets, filepath.Join(g.containersDir(), victim, specName))
	var st unix.Stat_t
	if err := unix.Stat(to.Secrets[0], &st); err != nil {
		t.Fatal(err)
	}
	to.Major, to.Minor, to.Inode = unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino
	shm, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := unix.SysvShmCtl(shm, unix.IPC_RMID, nil); err != nil {
			t.Error(err)
		}
	})
	to.Shm = shm

	got := g.output(g.attacker(t, to, "attacker"))
	if !strings.HasSuffix(got, "attacked\n") {
		t.Errorf("the attack did not come to its end: %s", got)
	}
	for line := range strings.Lines(got) {
		if strings.Contains(line, "WORKED") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if i := slices.IndexFunc(must(g.Containers(g.ctx)), func(s runtime.ContainerStatus) bool { return s.ID == victim && s.State == runtime.Running }); i < 0 {
		t.Error("the other container does not run any more")
	}
	if _, err := os.Stat(filepath.Join(dir, "planted")); err == nil {
		t.Error("a file was planted")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
