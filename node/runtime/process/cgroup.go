package process

// Limits and accounting by control groups, version 2 or the older hierarchies.
//
// There is one group for each pod below the parent, and one for each container in it.
// The agent makes and removes groups. The shim starts processes in them, and at the end
// reads whether the kernel killed one for lack of memory.

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// cgroupDirs are the directories of one group. With version 2 there is one, under
// the key "".
type cgroupDirs map[string]string

// cgroups has the parent directories of groups.
type cgroups struct {
	base cgroupDirs
}

// defaultCgroup is the name of the parent group. podPrefix begins the names of those of pods.
const (
	defaultCgroup = "hawser"
	podPrefix     = "pod"
)

var cgroupControllers = []string{"memory", "cpu", "cpuacct", "pids"}

// CheckLimits returns why this process cannot limit containers; nil if it can.
func CheckLimits() error {
	_, err := openCgroups(defaultCgroup)
	return err
}

// openCgroups finds the hierarchies of this machine that can be written and makes
// the parent group in them.
func openCgroups(parent string) (*cgroups, error) {
	ms, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	var cause error
	for _, m := range ms {
		if m.FSType == "cgroup2" && m.Root == "/" {
			dir := filepath.Join(m.Mountpoint, parent)
			if err := openUnified(m.Mountpoint, dir); err != nil {
				cause = err
				continue
			}
			return &cgroups{cgroupDirs{"": dir}}, nil
		}
	}
	base := cgroupDirs{}
	for _, m := range ms {
		if m.FSType != "cgroup" || m.Root != "/" {
			continue
		}
		for _, c := range cgroupControllers {
			if !slices.Contains(strings.Split(m.VFSOptions, ","), c) || base[c] != "" {
				continue
			}
			dir := filepath.Join(m.Mountpoint, parent)
			if err := makeWritable(dir); err != nil {
				cause = err
				continue
			}
			base[c] = dir
		}
	}
	if len(base) == 0 {
		if cause == nil {
			cause = errors.New("no cgroup hierarchy with memory, cpu or pids is mounted")
		}
		return nil, cause
	}
	return &cgroups{base}, nil
}

// openUnified makes dir in the version 2 hierarchy with the available controllers.
func openUnified(mount, dir string) error {
	have, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return err
	}
	if len(controllersIn(have)) == 0 {
		return errors.New("the cgroup2 hierarchy has no controllers")
	}
	if err := enableControllers(mount); err != nil {
		return err
	}
	if err := makeWritable(dir); err != nil {
		return err
	}
	return enableControllers(dir)
}

// makeWritable makes a group in which groups can be made. An existing one may belong to
// another user; then it returns an error.
func makeWritable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func controllersIn(b []byte) []string {
	var cs []string
	for _, c := range strings.Fields(string(b)) {
		if slices.Contains(cgroupControllers, c) {
			cs = append(cs, c)
		}
	}
	return cs
}

// enableControllers enables the controllers of a version 2 group for its children.
func enableControllers(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range controllersIn(have) {
		if err := writeFile(dir, "cgroup.subtree_control", "+"+c); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(dir, name, value string) error {
	// The kernel makes the files of a cgroup.
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (c *cgroups) podDirs(uid string) cgroupDirs {
	dirs := cgroupDirs{}
	for k, base := range c.base {
		dirs[k] = filepath.Join(base, podPrefix+filepath.Base(uid))
	}
	return dirs
}

// pod makes the group of a pod, or finds it.
func (c *cgroups) pod(uid string, limits runtime.Resources) (cgroupDirs, error) {
	dirs := c.podDirs(uid)
	for k := range dirs {
		if err := os.MkdirAll(dirs[k], 0o755); err != nil {
			return nil, err
		}
		if k == "" {
			if err := enableControllers(dirs[k]); err != nil {
				return nil, err
			}
		}
	}
	return dirs, dirs.limit(limits)
}

// child makes a group in d with limits of its own.
func (d cgroupDirs) child(name string, limits runtime.Resources) (cgroupDirs, error) {
	dirs, made := cgroupDirs{}, map[string]bool{}
	for k, parent := range d {
		dirs[k] = filepath.Join(parent, name)
		if made[dirs[k]] {
			continue // cpu and cpuacct are one hierarchy on most machines that have version 1
		}
		made[dirs[k]] = true
		if err := os.Mkdir(dirs[k], 0o755); err != nil {
			dirs.remove()
			return nil, err
		}
	}
	if dir, ok := dirs[""]; ok && limits.MemoryBytes > 0 {
		// As in Kubernetes: if a container runs out of memory, all of its processes are killed.
		_ = writeFile(dir, "memory.oom.group", "1")
	}
	if err := dirs.limit(limits); err != nil {
		dirs.remove()
		return nil, err
	}
	return dirs, nil
}

const cpuPeriodUS = 100_000

// limit sets the limits whose controllers are available.
func (d cgroupDirs) limit(l runtime.Resources) error {
	type setting struct{ v1, file, value string }
	var settings []setting
	if dir, ok := d[""]; ok {
		settings = []setting{
			{dir, "memory.max", positive(l.MemoryBytes, "")},
			// Without this the container would swap at its limit.
			{dir, "memory.swap.max", positive(l.MemoryBytes, "0")},
			{dir, "cpu.max", positive(quotaUS(l.CPUMilli), fmt.Sprintf("%d %d", quotaUS(l.CPUMilli), cpuPeriodUS))},
			{dir, "cpu.weight", positive(weight(l.CPUShares), "")},
			{dir, "pids.max", positive(l.PIDs, "")},
		}
	} else {
		settings = []setting{
			{d["memory"], "memory.limit_in_bytes", positive(l.MemoryBytes, "")},
			{d["memory"], "memory.memsw.limit_in_bytes", positive(l.MemoryBytes, "")},
			{d["cpu"], "cpu.cfs_period_us", positive(quotaUS(l.CPUMilli), strconv.Itoa(cpuPeriodUS))},
			{d["cpu"], "cpu.cfs_quota_us", positive(quotaUS(l.CPUMilli), "")},
			{d["cpu"], "cpu.shares", positive(l.CPUShares, "")},
			// The thread of the shim that starts processes is in the group too.
			{d["pids"], "pids.max", positive(l.PIDs, strconv.FormatInt(l.PIDs+1, 10))},
		}
	}
	for _, s := range settings {
		if s.v1 == "" || s.value == "" {
			continue
		}
		err := writeFile(s.v1, s.file, s.value)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a controller, or swap accounting, that this kernel does not have
		}
		if err != nil {
			return fmt.Errorf("set %s to %s: %w", s.file, s.value, err)
		}
	}
	return nil
}

// positive formats a limit: empty if n is not positive, and else value, or n if value is
// empty.
func positive(n int64, value string) string {
	switch {
	case n <= 0:
		return ""
	case value != "":
		return value
	default:
		return strconv.FormatInt(n, 10)
	}
}

// quotaUS is the quota of CPU time in each period for milli thousandths of a core. The
// kernel's minimum is 1 ms.
func quotaUS(milli int64) int64 {
	if milli <= 0 {
		return 0
	}
	return max(milli*cpuPeriodUS/1000, 1000)
}

// weight maps cpu.shares (2 to 262144) to cpu.weight (1 to 10000) linearly: the minima
// and the maxima correspond, as in the kubelet and runc.
func weight(shares int64) int64 {
	if shares <= 0 {
		return 0
	}
	shares = min(max(shares, 2), 262144)
	return 1 + (shares-2)*9999/262142
}

// remove removes the group of a container, with the groups that a privileged container has
// made in it. Processes that have just ended can keep it busy for a moment. If it still
// exists after 2 s it is left to the next call; an empty group costs little.
func (d cgroupDirs) remove() {
	for i := range 20 {
		if d.tryRemove() {
			return
		}
		for _, dir := range d {
			left := maxChildren
			removeChildren(dir, maxNested, &left)
		}
		if d.tryRemove() {
			return
		}
		time.Sleep(time.Duration(i+1) * 10 * time.Millisecond)
	}
}

// Bounds of one attempt to remove the groups in a container's.
const (
	maxNested   = 16   // levels
	maxChildren = 4096 // entries of all levels, files included
)

// removeChildren removes the groups in dir, the deepest first, down to depth levels. It looks
// at no more entries than are left, and counts those that it has looked at.
func removeChildren(dir string, depth int, left *int) {
	if depth == 0 || *left <= 0 {
		return
	}
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	list, _ := f.ReadDir(*left) // what was read before an error counts
	*left -= len(list)
	for _, e := range list {
		if e.IsDir() {
			child := filepath.Join(dir, e.Name())
			removeChildren(child, depth-1, left)
			_ = unix.Rmdir(child)
		}
	}
}

// tryRemove removes the group if no process and no group is in it.
func (d cgroupDirs) tryRemove() bool {
	gone := true
	for _, dir := range d {
		if err := unix.Rmdir(dir); errors.Is(err, unix.EBUSY) {
			gone = false
		}
	}
	return gone
}

// kill kills the processes in the group.
func (d cgroupDirs) kill() {
	if dir, ok := d[""]; ok && writeFile(dir, "cgroup.kill", "1") == nil {
		return
	}
	for _, dir := range d {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, s := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(s); err == nil && pid > 1 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// enterThread moves the calling thread, and so the processes that it will start, to a
// group of the older hierarchies. With version 2 processes are started in their group
// instead.
func (d cgroupDirs) enterThread() error {
	for k, dir := range d {
		if k == "" {
			continue
		}
		if err := writeFile(dir, "tasks", "0"); err != nil {
			return fmt.Errorf("enter cgroup: %w", err)
		}
	}
	return nil
}

// oomKills is how often the kernel killed a process of the group because the
// group's memory was used up.
func (d cgroupDirs) oomKills() uint64 {
	if dir, ok := d[""]; ok {
		return readStat(dir, "memory.events", "oom_kill")
	}
	if dir, ok := d["memory"]; ok {
		return readStat(dir, "memory.oom_control", "oom_kill")
	}
	return 0
}

// usage reads what the group uses; ok is false when there is no accounting.
func (d cgroupDirs) usage() (u runtime.Usage, ok bool) {
	u.Time = time.Now()
	if dir, unified := d[""]; unified {
		u.CPUNanos = readStat(dir, "cpu.stat", "usage_usec") * 1000
		u.InactiveFile = readStat(dir, "memory.stat", "inactive_file")
		u.MemoryBytes = less(readNumber(dir, "memory.current"), u.InactiveFile)
		u.PIDs = readNumber(dir, "pids.current")
		return u, true
	}
	if d["memory"] == "" || d["cpuacct"] == "" {
		return u, false
	}
	u.CPUNanos = readNumber(d["cpuacct"], "cpuacct.usage")
	u.InactiveFile = readStat(d["memory"], "memory.stat", "total_inactive_file")
	u.MemoryBytes = less(readNumber(d["memory"], "memory.usage_in_bytes"), u.InactiveFile)
	if dir, ok := d["pids"]; ok {
		u.PIDs = less(readNumber(dir, "pids.current"), 1)
	}
	return u, true
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

func readNumber(dir, name string) uint64 {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// readStat reads one line of a file of keys and values.
func readStat(dir, name, key string) uint64 {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		k, v, ok := strings.Cut(s.Text(), " ")
		if !ok || k != key {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64); err == nil {
			return n
		}
	}
	return 0
}
