package process

// The shim: the program that supervises one container.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/crilog"
)

// shimName is the name of the shim's process, by which ShimMain recognizes it.
const shimName = "hawser-shim"

// The descriptors a shim is started with.
const (
	controlFD = 3 // a connected socket to the agent that started it
	listenFD  = 4 // its own socket, listening
	lockFD    = 5 // the lock, held
)

// ShimMain runs the shim and exits, if this process was started as a shim, and else does
// nothing. A program that uses this package calls it at the start of main, and a test at
// the start of TestMain.
func ShimMain() {
	if len(os.Args) < 2 || os.Args[0] != shimName {
		return
	}
	// Exit at once: there is nothing to flush, and the agent waits.
	switch os.Args[1] {
	case probeArg:
		unix.Exit(probeMain(os.Args[2:]))
	case lookArg:
		unix.Exit(lookMain(os.Args[2:]))
	}
	// There is one shim for each container: memory matters, speed does not.
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(32 << 20)
	if err := shimMain(); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-shim:", err)
		unix.Exit(1)
	}
	unix.Exit(0)
}

func shimMain() error {
	closeOnExec()
	unix.Umask(0o022)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	// Signals are handled and not ignored: the container would inherit that they are
	// ignored.
	sigs := make(chan os.Signal, 8)
	signal.Notify(sigs, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTERM)

	control, err := connFromFD(controlFD)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	lf := os.NewFile(listenFD, "socket")
	ln, err := net.FileListener(lf)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	_ = lf.Close()
	var req request
	if err := control.recv(&req); err != nil {
		return fmt.Errorf("read what to run: %w", err)
	}
	if req.Op != opRun || req.Spec == nil {
		return fmt.Errorf("expected to be told what to run, got %q", req.Op)
	}
	if req.Spec.Version > version {
		return fmt.Errorf("told to run a container of version %d, and knows %d", req.Spec.Version, version)
	}
	if req.Spec.sharesPIDs() {
		req.Spec.Container.Env = append(req.Spec.Container.Env, containerEnv+"="+req.Spec.ID)
	}
	s := &shim{
		spec:   req.Spec,
		dir:    openLinked(req.Spec.Dir),
		reaper: newReaper(req.Spec.Cgroup),
		ended:  make(chan struct{}),
	}
	return s.run(control, ln, sigs)
}

// closeOnExec prevents that the container inherits descriptors: the shim's own, and those
// that were open when the agent was started.
func closeOnExec() {
	if unix.CloseRange(controlFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	// Linux before 5.11.
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range fds {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= controlFD {
			unix.CloseOnExec(fd)
		}
	}
}

// A shim supervises one container.
type shim struct {
	spec   *spec
	dir    *os.File // the container's directory, open; nil if its removal could not be seen
	reaper *reaper

	ended chan struct{} // closed when it has ended and the record is written

	// Set by start.
	launch   *launch
	main     started
	log      *crilog.Writer
	tty      *os.File // the terminal of a container that has one
	outFiles []*os.File

	outputs sync.WaitGroup // copying of the command's output
	conns   sync.WaitGroup // connections being served

	mu       sync.Mutex // guards the following
	record   record
	stdin    *os.File // the command's standard input; nil when closed
	attached []*attachment
	execs    int
	probes   int         // and hooks, being executed
	kill     *time.Timer // not nil once the container is being stopped
	killAt   time.Time
	nconns   int
}

// run starts the command, serves ln until the command has ended, and returns when the
// remaining clients have got their answers.
func (s *shim) run(control *conn, ln net.Listener, sigs <-chan os.Signal) error {
	defer control.hangUp()
	if err := s.start(); err != nil {
		_ = control.send(reply{Failure: failureOf(err)})
		return err
	}

	var loops sync.WaitGroup
	loops.Go(func() { s.accept(ln) })
	loops.Go(func() { s.onSignals(sigs) })
	s.conns.Go(func() { s.watch(control) })
	s.supervise()
	_ = ln.Close()
	loops.Wait()
	s.conns.Wait()
	close(s.reaper.quit)
	<-s.reaper.done
	return nil
}

// start sets up the container and starts its command.
func (s *shim) start() error {
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become the parent of orphans: %w", err)
		}
	}
	if err := mayAdd(s.spec.Container.Security, s.spec.Isolation); err != nil {
		return cannotRun(err)
	}
	if err := setOOMScore(s.spec.Container.OOMScoreAdj); err != nil {
		return cannotRun(fmt.Errorf("set OOM score: %w", err))
	}
	// The container must not read the memory of this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protect the shim: %w", err)
	}
	root, err := s.surroundings()
	if err != nil {
		return cannotRun(err)
	}
	prepared := make(chan error, 1)
	// Joined by run, or by the end of the process if it fails before.
	go s.reaper.run(confinement{root: root, security: s.spec.Container.Security}, prepared)
	if err = <-prepared; err != nil {
		return cannotRun(err)
	}
	if s.launch, err = newLaunch(s.spec, root); err != nil {
		return err
	}
	c := s.spec.Container
	path, err := s.launch.lookup(c.Argv[0], s.launch.env)
	if err != nil {
		return err
	}
	if s.log, err = crilog.Create(c.LogPath, s.spec.LogBytes, s.spec.LogFiles); err != nil {
		return cannotRun(err)
	}
	io, err := s.stdio()
	if err != nil {
		return cannotRun(err)
	}
	s.launch.chownPipes(io.command)
	s.main, err = s.reaper.start(path, c.Argv, s.launch.attributes(io.command, s.launch.env))
	io.closeChild()
	if err != nil {
		return startError(exitCodeOf(err), fmt.Sprintf("exec: %q: %v", c.Argv[0], err))
	}
	if err := s.recordStart(); err != nil {
		s.reaper.killAll()
		return cannotRun(err)
	}
	s.stdin, s.tty = io.stdin, io.tty
	for stream, f := range io.outputs {
		s.outFiles = append(s.outFiles, f)
		s.outputs.Go(func() { s.copyOutput(f, stream) })
	}
	return nil
}

// recordStart writes down that the command runs.
func (s *shim) recordStart() error {
	s.record = record{Version: version, State: runtime.Running, BootID: bootID(), PID: s.main.pid, StartedAt: time.Now()}
	// /proc is still that of the machine. In it this process has another number than in
	// its own namespace.
	if self, err := statOfSelf(); err == nil {
		s.record.ShimPID, s.record.ShimStart = self.PID, self.Starttime
	}
	if s.spec.sharesPIDs() {
		if main, err := statOf(s.main.pid); err == nil {
			s.record.PIDStart = main.Starttime
		}
	}
	return writeJSON(filepath.Join(s.spec.Dir, statusName), s.record)
}

// surroundings sets the container's host name and makes its root. It returns the root, or
// "" if the container has none of its own.
func (s *shim) surroundings() (string, error) {
	c := s.spec.Container
	if s.spec.Isolation == None {
		if c.Security.ReadOnlyRoot {
			return "", errors.New("a read-only root file system needs an agent that runs as root, or user namespaces for unprivileged users")
		}
		for _, m := range c.Mounts {
			same := filepath.Join(m.HostPath, m.SubPath) == filepath.Clean(m.ContainerPath) && !m.ReadOnly
			if !same && !m.Optional {
				return "", fmt.Errorf("mounting a volume at %q needs an agent that runs as root, or user namespaces for unprivileged users", m.ContainerPath)
			}
		}
		return "", nil
	}
	if s.spec.Hostname != "" {
		if err := unix.Sethostname([]byte(s.spec.Hostname)); err != nil {
			return "", fmt.Errorf("set host name: %w", err)
		}
	}
	r := rootfs{spec: s.spec, owner: [2]int{os.Geteuid(), -1}}
	if c.UID != nil {
		r.owner[0] = int(*c.UID)
	}
	if err := r.build(); err != nil {
		return "", err
	}
	return r.path, nil
}

// supervise waits for the command, cleans up after it and records how it ended.
func (s *shim) supervise() {
	ws := <-s.main.status
	oom := s.spec.Cgroup.oomKills() > 0
	s.reaper.killAll()
	s.joinOutputs()
	_ = s.log.Close()

	s.mu.Lock()
	r := s.record
	r.State, r.EndedAt = runtime.Exited, time.Now()
	r.ExitCode, r.Signal = exitOf(ws)
	// A shell whose child was killed exits with the same code.
	r.OOMKilled = oom && r.ExitCode == 128+int(unix.SIGKILL)
	if n := s.log.Dropped(); n > 0 {
		r.Message = fmt.Sprintf("%d bytes of output could not be written to the log", n)
	}
	s.record = r
	if s.kill != nil {
		s.kill.Stop()
	}
	s.mu.Unlock()
	if err := writeRecord(filepath.Join(s.spec.Dir, statusName), r); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-shim: write status:", err)
	}
	close(s.ended)
}

// exitOf returns the exit code by the convention of shells, and the signal if there was
// one.
func exitOf(ws syscall.WaitStatus) (code, sig int) {
	if ws.Signaled() {
		return 128 + int(ws.Signal()), int(ws.Signal())
	}
	return ws.ExitStatus(), 0
}

// onSignals stops the container when its shim gets SIGTERM, or when its directory was removed. Others
// are for its command, which who signals process 1 of the container means. A terminal or a session
// sends none: the shim has its own.
func (s *shim) onSignals(sigs <-chan os.Signal) {
	look := time.NewTicker(lostCheck)
	defer look.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-look.C:
			if s.dir != nil && links(s.dir) == 0 {
				s.stop(lostGrace)
			}
		case sig := <-sigs:
			if sig == unix.SIGTERM {
				s.stop(10 * time.Second)
			} else if sig, ok := sig.(syscall.Signal); ok {
				s.reaper.signal(s.main.pid, sig, false)
			}
		}
	}
}

// stop sends its stop signal to the command and kills it after grace. Another call can only make
// the kill earlier.
func (s *shim) stop(grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(grace)
	if s.kill != nil && !at.Before(s.killAt) {
		return
	}
	first := s.kill == nil
	s.killAt = at
	if !first {
		s.kill.Stop()
	}
	s.kill = time.AfterFunc(grace, s.reaper.killAll)
	if first && grace > 0 {
		s.reaper.signal(s.main.pid, cmp.Or(syscall.Signal(s.spec.Container.StopSignal), unix.SIGTERM), true)
	}
}

func (s *shim) resize(size *runtime.Size) error {
	if s.tty == nil || size == nil {
		return errors.New("the container has no terminal")
	}
	return setSize(s.tty, *size)
}

// isOver reports whether the command has ended.
func (s *shim) isOver() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// usage adds up the usage of the container's processes, for containers without a cgroup.
func (s *shim) usage() runtime.Usage {
	u := runtime.Usage{Time: time.Now()}
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &ru) == nil {
		u.CPUNanos = uint64(ru.Utime.Nano() + ru.Stime.Nano())
	}
	self, err := statOfSelf()
	if err != nil {
		return u
	}
	for _, p := range descendants(self.PID, processes()) {
		u.CPUNanos += (uint64(p.UTime) + uint64(p.STime) + uint64(p.CUTime) + uint64(p.CSTime)) * nanosPerTick
		u.MemoryBytes += uint64(p.ResidentMemory())
		u.PIDs++
	}
	return u
}

// nanosPerTick is the unit of times in /proc, a constant of Linux's interface.
const nanosPerTick = uint64(time.Second) / 100
