package process

// The identity of a process whose number is on disk. The number alone does not identify
// it: after a reboot, or once the kernel has reused it, another process may have it.

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// bootID identifies the boot of the machine. It is empty if it cannot be read.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// killProcess kills a process that was read from /proc, unless it has ended and another
// process has its number.
func killProcess(p procfs.ProcStat) { signalProcess(p, unix.SIGKILL) }

// signalProcess signals a process as killProcess kills it.
func signalProcess(p procfs.ProcStat, sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return // it has ended
	}
	defer closeFD(fd)
	// The descriptor refers to the process that had the number before this read.
	if now, err := statOf(p.PID); err == nil && now.Starttime == p.Starttime {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// sameBoot reports whether the machine has not been rebooted since the record was made.
// If the record has no boot ID, as in version 0, its shim's start by the clock and in
// ticks must agree.
func (r *record) sameBoot() bool {
	if now := bootID(); r.BootID != "" && now != "" {
		return r.BootID == now
	}
	return r.ShimStart != 0 && near(ticksAt(r.ShimStart), r.StartedAt)
}

// rebooted reports whether the machine is known to have been rebooted since the record was
// made.
func (r *record) rebooted() bool {
	now := bootID()
	return r.BootID != "" && now != "" && r.BootID != now
}

// leads reports whether p is the main process of the record. A record of version 0 does
// not have its start in ticks.
func (r *record) leads(p procfs.ProcStat) bool {
	if p.PID != r.PID {
		return false
	}
	if r.PIDStart != 0 {
		return p.Starttime == r.PIDStart
	}
	return r.Version == 0 && near(ticksAt(p.Starttime), r.StartedAt)
}

// near allows for clocks that are set in small steps, and for a shim's own start.
func near(a, b time.Time) bool { return a.Sub(b).Abs() < 5*time.Second }

// ticksAt is the time of day at so many ticks after boot.
func ticksAt(ticks uint64) time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ticks*nanosPerTick) - time.Duration(now.Nano()))
}

// containerEnv is the variable with the container's id in the environment of each process
// of a container that shares process ids with the machine. It identifies processes that have
// left their session and whose parents have ended.
const containerEnv = "HAWSER_CONTAINER"

// maxEnviron bounds what is read of an environment. The kernel's default limit is 2 MiB;
// procfs.Proc.Environ reads 1 MiB.
const maxEnviron = 4 << 20

// marked reports whether a process was started in the container with that id. certain is
// whether that is known: during execve(2) a process has no environment for a moment.
func marked(proc string, pid int, id string) (is, certain bool) {
	f, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "environ"))
	if err != nil {
		return false, true // it has ended, or is another user's
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxEnviron))
	if err != nil && !errors.Is(err, io.EOF) {
		return false, true
	}
	if len(b) > 0 {
		return hasMark(b, id), true
	}
	return false, !inExec(proc, pid)
}

// inExec reports whether a process whose environment was empty is in execve(2), or has an
// environment by now. See startcode, env_start and env_end in proc_pid_stat(5). The last
// two are zero during execve(2), and equal while the environment is being copied, as in a
// process that has none; startcode is zero until the end. procfs.ProcStat does not have
// the last two.
func inExec(proc string, pid int) bool {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return false // it has ended
	}
	// The name may contain spaces and parentheses; the fields after it do not.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const vsize, startCode, envStart, envEnd = 23 - 3, 26 - 3, 50 - 3, 51 - 3
	if len(fields) <= envEnd || fields[vsize] == "0" { // a kernel thread, or it is ending
		return false
	}
	return fields[startCode] == "0" || fields[envEnd] == "0" || fields[envStart] != fields[envEnd]
}

// hasMark looks for the mark in an environment as proc_pid_environ(5) has it.
func hasMark(environ []byte, id string) bool {
	for kv := range bytes.SplitSeq(environ, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(containerEnv+"=")); ok && id != "" && string(v) == id {
			return true
		}
	}
	return false
}

// killPasses bounds the passes of killRemaining: processes may start others while they are
// being killed.
const killPasses = 20

// killRemaining kills the processes of a container that shares process ids with the machine
// and whose shim has died: those with its mark, and those of its session if the session is
// still the container's.
func killRemaining(s *spec, r *record) {
	if !s.sharesPIDs() || !r.sameBoot() {
		return
	}
	for range killPasses {
		left, sure := remainingOf(s.ID, r, processes())
		if len(left) == 0 && sure {
			return
		}
		for _, p := range left {
			killProcess(p)
		}
		time.Sleep(time.Millisecond) // killed processes take a moment to end
	}
}

// killStarted kills the processes of a container whose start was interrupted: its command may
// have run before there was a record of it.
func (s *spec) killStarted() {
	s.Cgroup.kill()
	killRemaining(s, &record{BootID: bootID()})
}

// remainingOf finds the processes of a container among all. The kernel does not reuse a
// session's number while a process is in it, so that one process of the container in it
// identifies the session as the container's. sure is false while the environment of a
// process cannot be read.
func remainingOf(id string, r *record, all []procfs.ProcStat) (left []procfs.ProcStat, sure bool) {
	var session []procfs.ProcStat
	ours := false
	sure = true
	for _, p := range all {
		if p.State == zombie || p.PID <= 1 {
			continue
		}
		inSession := r.PID > 1 && p.Session == r.PID
		known := r.leads(p)
		if !known {
			var certain bool
			known, certain = marked("/proc", p.PID, id)
			sure = sure && certain
		}
		switch {
		case inSession:
			ours = ours || known
			session = append(session, p)
		case known:
			left = append(left, p)
		}
	}
	if ours {
		left = append(left, session...)
	}
	return left, sure
}
