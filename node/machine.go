// This file reads facts about the machine from /proc, /sys and /etc.

package node

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"
)

// A machine reads below root, which is / except in tests.
type machine struct{ root, dataDir string }

// facts are the machine's properties for the node's status and conditions.
type facts struct {
	cpus         int
	memory       int64 // bytes
	available    int64 // of it, without swapping
	swap         int64
	hugePages    map[string]int64 // bytes by page size, such as 2Mi
	nodefs       fileSystem       // of the data directory
	imagefs      fileSystem       // of the runtime
	pids         int64            // the limit of processes and threads
	pidsUsed     int64
	kernel       string
	osImage      string
	machineID    string
	systemUUID   string
	bootID       string
	architecture string
}

// A fileSystem has the size and the free space of one.
type fileSystem struct {
	device             uint64
	size, free         int64 // bytes, free for users
	inodes, inodesFree int64
}

// read collects the facts. Those that only identify the machine are left empty if they
// cannot be read; the others are required. runtimeDir is where the runtime keeps images and
// containers; if it does not report that, the data directory is used.
func (m *machine) read(runtimeDir string) (facts, error) {
	f := facts{cpus: goruntime.NumCPU(), architecture: goruntime.GOARCH}
	err := errors.Join(m.readMemory(&f), f.nodefs.read(m.dataDir), f.imagefs.read(cmp.Or(runtimeDir, m.dataDir)), m.readPIDs(&f))
	f.hugePages = m.hugePages()
	f.kernel = m.text("proc/sys/kernel/osrelease")
	f.osImage = m.osImage()
	f.bootID = m.text("proc/sys/kernel/random/boot_id")
	f.machineID = m.text("etc/machine-id")
	if f.machineID == "" {
		f.machineID = m.text("var/lib/dbus/machine-id")
	}
	f.systemUUID = strings.ToLower(m.text("sys/class/dmi/id/product_uuid"))
	if f.systemUUID == "" { // only root may read it, and not every machine has it
		f.systemUUID = f.machineID
	}
	if err != nil {
		return f, fmt.Errorf("read the machine's resources: %w", err)
	}
	return f, nil
}

func (m *machine) path(name string) string { return filepath.Join(m.root, name) }

// text returns a file's content without space around it, or nothing.
func (m *machine) text(name string) string {
	data, err := os.ReadFile(m.path(name))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(data))
}

func (m *machine) number(name string) (int64, error) {
	n, err := strconv.ParseInt(m.text(name), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/%s: %w", name, err)
	}
	return n, nil
}

func (m *machine) readMemory(f *facts) error {
	proc, err := procfs.NewFS(m.path("proc"))
	if err != nil {
		return err
	}
	info, err := proc.Meminfo()
	if err != nil {
		return fmt.Errorf("/proc/meminfo: %w", err)
	}
	size := func(n *uint64) int64 { return int64(ptr.Deref(n, 0)) } //nolint:gosec // no machine has 8 EiB
	f.memory, f.available, f.swap = size(info.MemTotalBytes), size(info.MemAvailableBytes), size(info.SwapTotalBytes)
	if f.memory == 0 {
		return errors.New("/proc/meminfo has no MemTotal")
	}
	return nil
}

func (s *fileSystem) read(dir string) error {
	var of unix.Stat_t
	if err := unix.Stat(dir, &of); err != nil {
		return fmt.Errorf("device of %s: %w", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("file system of %s: %w", dir, err)
	}
	s.device = of.Dev
	s.size, s.free = int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize //nolint:gosec // disks are smaller than 8 EiB
	s.inodes, s.inodesFree = int64(st.Files), int64(st.Ffree)             //nolint:gosec // as above
	return nil
}

func (m *machine) readPIDs(f *facts) error {
	most, err := m.number("proc/sys/kernel/pid_max")
	if err != nil {
		return err
	}
	if threads, unknown := m.number("proc/sys/kernel/threads-max"); unknown == nil {
		most = min(most, threads)
	}
	// The fourth field of loadavg is RUNNING/ALL, counting threads.
	fields := strings.Fields(m.text("proc/loadavg"))
	if len(fields) < 4 {
		return errors.New("/proc/loadavg has no fourth field")
	}
	_, all, _ := strings.Cut(fields[3], "/")
	used, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return fmt.Errorf("/proc/loadavg: %w", err)
	}
	f.pids, f.pidsUsed = most, used
	return nil
}

// hugePages returns the memory set aside for each size of huge pages.
func (m *machine) hugePages() map[string]int64 {
	const dir = "sys/kernel/mm/hugepages"
	sizes := map[string]int64{}
	entries, err := os.ReadDir(m.path(dir))
	if err != nil {
		return sizes
	}
	for _, e := range entries {
		kb, ok := strings.CutPrefix(e.Name(), "hugepages-")
		size, err := strconv.ParseInt(strings.TrimSuffix(kb, "kB"), 10, 64)
		if !ok || err != nil {
			continue
		}
		n, err := m.number(filepath.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			continue
		}
		name := strconv.FormatInt(size, 10) + "Ki"
		switch {
		case size%(1<<20) == 0:
			name = strconv.FormatInt(size>>20, 10) + "Gi"
		case size%(1<<10) == 0:
			name = strconv.FormatInt(size>>10, 10) + "Mi"
		}
		sizes[name] = n * size << 10
	}
	return sizes
}

// osImage is PRETTY_NAME of os-release.
func (m *machine) osImage() string {
	for _, file := range []string{"etc/os-release", "usr/lib/os-release"} {
		for line := range strings.Lines(m.text(file)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				if s, err := strconv.Unquote(value); err == nil {
					return s
				}
				return strings.Trim(value, `'"`)
			}
		}
	}
	return "Linux"
}
