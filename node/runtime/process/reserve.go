package process

// Limits of all containers together, so that the agent and the system have what is
// reserved for them.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// reservedName is a file in the data directory: what the parent group is limited to is ours.
const reservedName = "reserved"

// reserve keeps Config.Reserved from containers, or takes back what this runtime kept before. It
// leaves the group alone if that was nothing: another agent of the machine may have limited it.
func (r *Runtime) reserve() error {
	file := filepath.Join(r.cfg.DataDir, reservedName)
	if r.cfg.Reserved != (runtime.Resources{}) {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		return r.cgroups.reserve(r.cfg.Reserved)
	}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := r.cgroups.reserve(r.cfg.Reserved); err != nil {
		return err
	}
	return os.Remove(file)
}

// reserve limits the parent group of all pods to the machine's resources less reserved,
// as the kubelet does: memory always, processes if any are reserved, CPU by weight.
// Eviction thresholds are not subtracted, so that the node can evict before the kernel
// kills.
func (c *cgroups) reserve(reserved runtime.Resources) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("read the machine's memory: %w", err)
	}
	memory := int64(info.Totalram)*int64(info.Unit) - reserved.MemoryBytes
	milli := int64(goruntime.NumCPU())*1000 - reserved.CPUMilli
	if memory <= 0 || milli <= 0 {
		return errors.New("the machine has less memory or CPU than is reserved")
	}
	shares := max(milli*1024/1000, 2)
	pids := "max"
	if reserved.PIDs > 0 {
		all, err := pidMax()
		if err != nil {
			return err
		}
		pids = strconv.FormatInt(max(all-reserved.PIDs, 1), 10)
	}
	settings := [][3]string{
		{c.base["memory"], "memory.limit_in_bytes", strconv.FormatInt(memory, 10)},
		{c.base["cpu"], "cpu.shares", strconv.FormatInt(shares, 10)},
		{c.base["pids"], "pids.max", pids},
	}
	if dir, ok := c.base[""]; ok {
		settings = [][3]string{
			{dir, "memory.max", strconv.FormatInt(memory, 10)},
			{dir, "cpu.weight", strconv.FormatInt(weight(shares), 10)},
			{dir, "pids.max", pids},
		}
	}
	var errs []error
	for _, s := range settings {
		if s[0] == "" {
			continue
		}
		if err := writeFile(s[0], s[1], s[2]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("set %s to %s: %w", s[1], s[2], err))
		}
	}
	return errors.Join(errs...)
}

// pidMax is the kernel's limit of processes.
func pidMax() (int64, error) {
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/sys/kernel/pid_max: %w", err)
	}
	return n, nil
}
