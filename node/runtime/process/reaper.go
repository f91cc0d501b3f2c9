package process

// Starting processes and waiting for their end. One goroutine does both, so that no
// process can end before it is recorded. It keeps its thread, because the parent death
// signal of a process and the cgroup (v1) in which it starts depend on the thread.

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	goruntime "runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// A reaper starts processes and waits for all descendants of this process.
type reaper struct {
	cgroup cgroupDirs
	group  int  // of version 2, open; -1 if there is none
	late   bool // processes are moved to it after their start; see admit

	calls  chan func()
	starts chan start
	ends   chan chan struct{} // each requests that all descendants are killed
	sigs   chan pending
	quit   chan struct{}
	done   chan struct{}

	// Owned by run.
	waiting map[int]chan<- syscall.WaitStatus
	groups  map[int]bool // the process groups of these are killed when they end
	over    bool         // all have been killed; no more are started
}

type start struct {
	path  string
	argv  []string
	attr  *syscall.ProcAttr
	reply chan<- started
}

type started struct {
	pid    int
	status <-chan syscall.WaitStatus // gets one value, when the process has ended
	err    error
}

func newReaper(cg cgroupDirs) *reaper {
	return &reaper{
		cgroup:  cg,
		group:   -1,
		calls:   make(chan func()),
		starts:  make(chan start),
		ends:    make(chan chan struct{}),
		sigs:    make(chan pending),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
		waiting: make(map[int]chan<- syscall.WaitStatus),
		groups:  make(map[int]bool),
	}
}

// start starts a process.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (started, error) {
	reply := make(chan started, 1)
	select {
	case r.starts <- start{path, argv, attr, reply}:
		s := <-reply
		return s, s.err
	case <-r.done:
		return started{}, runtime.ErrNotRunning
	}
}

// call runs f on the thread that starts processes, which has their view of files. It
// returns false once run has ended.
func (r *reaper) call(f func()) bool {
	done := make(chan struct{})
	select {
	case r.calls <- func() { defer close(done); f() }:
		<-done
		return true
	case <-r.done:
		return false
	}
}

// A pending signal is for a process that was started, or for its group.
type pending struct {
	pid   int
	sig   syscall.Signal
	group bool
}

// signal signals a process, or its process group, unless the process has been waited for:
// then the kernel may have given its number to another.
func (r *reaper) signal(pid int, sig syscall.Signal, group bool) {
	select {
	case r.sigs <- pending{pid, sig, group}:
	case <-r.done:
	}
}

// killGroupAfter has the rest of a process's group killed when the process has ended.
func (r *reaper) killGroupAfter(pid int) {
	r.call(func() {
		if _, ok := r.waiting[pid]; ok {
			r.groups[pid] = true
		}
	})
}

// killAll kills every descendant. It returns when none is left, or after 10 s.
func (r *reaper) killAll() {
	reply := make(chan struct{})
	select {
	case r.ends <- reply:
		<-reply
	case <-r.done:
	}
}

// run runs until quit is closed. prepared gets the result of prepare.
func (r *reaper) run(c confinement, prepared chan<- error) {
	goruntime.LockOSThread() // and never unlocked: the thread ends with the process
	defer close(r.done)
	child := make(chan os.Signal, 1)
	signal.Notify(child, unix.SIGCHLD)
	defer signal.Stop(child)

	err := r.prepare(c)
	prepared <- err
	for {
		select {
		case <-r.quit:
			return
		case f := <-r.calls:
			f()
		case s := <-r.starts:
			s.reply <- r.forkExec(s)
		case p := <-r.sigs:
			to := p.pid
			if p.group {
				to = -to
			}
			if _, ok := r.waiting[p.pid]; ok {
				_ = syscall.Kill(to, p.sig)
			}
		case <-child:
			r.reap()
		case reply := <-r.ends:
			r.end(child)
			close(reply)
		}
	}
}

// prepare puts the thread into the container's group and confines it.
func (r *reaper) prepare(c confinement) error {
	if err := r.cgroup.enterThread(); err != nil {
		return err
	}
	if dir, ok := r.cgroup[""]; ok {
		// Once the thread is confined it does not see the directory.
		fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open cgroup: %w", err)
		}
		r.group = fd
	}
	r.late = c.filters()
	return c.enter()
}

func (r *reaper) forkExec(s start) started {
	if r.over {
		return started{err: runtime.ErrNotRunning}
	}
	if r.group >= 0 && r.late {
		s.attr.Sys.Ptrace = true
	} else if r.group >= 0 {
		s.attr.Sys.UseCgroupFD, s.attr.Sys.CgroupFD = true, r.group
	}
	pid, err := syscall.ForkExec(s.path, s.argv, s.attr)
	if err == nil && s.attr.Sys.Ptrace {
		err = r.admit(pid)
	}
	if err != nil {
		return started{err: err}
	}
	status := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = status
	return started{pid: pid, status: status}
}

// admit moves a process, which is stopped before its first instruction, to the group and
// continues it. The filter of system calls does not allow clone3(2), by which a process
// could be started in the group.
func (r *reaper) admit(pid int) error {
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
		return os.NewSyscallError("wait4", err)
	}
	if !ws.Stopped() {
		return fmt.Errorf("enter cgroup: the process ended before it began (%v)", ws)
	}
	fd, err := unix.Openat(r.group, "cgroup.procs", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(strconv.Itoa(pid)))
		closeFD(fd)
	}
	if err == nil {
		err = syscall.PtraceDetach(pid)
	}
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, &ws, 0, nil)
		return fmt.Errorf("enter cgroup: %w", err)
	}
	return nil
}

// reap waits for ended processes and reports whether any are left.
func (r *reaper) reap() (left bool) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return false // ECHILD
		case pid == 0:
			return true
		}
		if r.groups[pid] {
			// The kernel gives this number to no other process while one of the group is left.
			// After that it first gives away all other numbers.
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			delete(r.groups, pid)
		}
		if ch, ok := r.waiting[pid]; ok {
			ch <- ws
			delete(r.waiting, pid)
		}
	}
}

// end kills descendants until none is left. It stops after 10 s: a process in an
// uninterruptible wait does not die.
func (r *reaper) end(child <-chan os.Signal) {
	r.over = true
	patience := time.NewTimer(10 * time.Second)
	defer patience.Stop()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		killDescendants()
		if !r.reap() {
			return
		}
		select {
		case <-child:
		case <-again.C:
		case <-patience.C:
			return
		}
	}
}

// killDescendants kills all processes of this PID namespace if it is the container's,
// and else every descendant of this process. As a subreaper this process is the parent
// of processes whose own parent has ended.
func killDescendants() {
	if os.Getpid() == 1 {
		_ = unix.Kill(-1, unix.SIGKILL)
		return
	}
	for _, p := range descendants(os.Getpid(), processes()) {
		killProcess(p)
	}
}

// statOf reads /proc/PID/stat.
func statOf(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// statOfSelf is of this process, with the number that it has in /proc.
func statOfSelf() (procfs.ProcStat, error) {
	p, err := procfs.Self()
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// processes lists the processes in /proc, without those that end meanwhile.
func processes() []procfs.ProcStat {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	var ps []procfs.ProcStat
	for _, p := range all {
		if st, err := p.Stat(); err == nil {
			ps = append(ps, st)
		}
	}
	return ps
}

// zombie is the state of a process that has ended and has not been waited for.
const zombie = "Z"

// descendants finds the living processes below pid among all.
func descendants(pid int, all []procfs.ProcStat) []procfs.ProcStat {
	children := map[int][]procfs.ProcStat{}
	for _, p := range all {
		if p.State != zombie {
			children[p.PPID] = append(children[p.PPID], p)
		}
	}
	found := children[pid]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].PID]...)
	}
	return found
}
