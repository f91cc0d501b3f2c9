// What a process has used.

package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
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
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return 0, fmt.Errorf("get resource usage: %w", err)
	}
	var sum time.Duration
	for _, t := range threads {
		s, err := t.Schedstat()
		if err != nil {
			return 0, fmt.Errorf("get resource usage: %w", err)
		}
		sum += time.Duration(s.RunningNanoseconds) //nolint:gosec // 292 years
	}
	return sum, nil
}

func residentBytes(pid int) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("get resident memory: %w", err)
	}
	s, err := p.Stat()
	if err != nil {
		return 0, fmt.Errorf("get resident memory: %w", err)
	}
	return int64(s.ResidentMemory()), nil
}
