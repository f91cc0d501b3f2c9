// What a process has used.

package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A usage is what some processes have used so far.
type usage struct {
	CPU      time.Duration `json:"cpu"`      // user and system time
	Resident int64         `json:"resident"` // bytes
}

// used adds up what processes have used.
func used(pids []int) (usage, error) {
	var sum usage
	for _, pid := range pids {
		var (
			cpu time.Duration
			err error
		)
		if pid == os.Getpid() {
			cpu, err = ownCPU()
		} else {
			cpu, err = otherCPU(pid)
		}
		var resident int64
		if err == nil {
			resident, err = residentBytes(pid)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended, as one of sshd's may
		}
		if err != nil {
			return usage{}, err
		}
		sum.CPU += cpu
		sum.Resident += resident
	}
	return sum, nil
}

// ownCPU is exact.
func ownCPU() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, fmt.Errorf("get resource usage: %w", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

// otherCPU is that of the threads that are there now, which is all of it for a
// program without threads, as sshd is. The kernel tells it in nanoseconds.
func otherCPU(pid int) (time.Duration, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("get resource usage: %w", err)
	}
	var sum time.Duration
	for _, t := range threads {
		b, err := os.ReadFile(filepath.Join(dir, t.Name(), "schedstat"))
		if err != nil {
			return 0, fmt.Errorf("get resource usage: %w", err)
		}
		first, _, _ := strings.Cut(string(b), " ")
		ran, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("get resource usage: %w", err)
		}
		sum += time.Duration(ran)
	}
	return sum, nil
}

func residentBytes(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("get resident memory: %w", err)
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0, fmt.Errorf("get resident memory: /proc/%d/statm has %d fields", pid, len(f))
	}
	pages, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("get resident memory: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}
