// Package process is a container runtime whose containers are processes of this
// machine.
//
// A container is a process group with a supervisor of its own, the shim. The shim is
// this same program, started again under another name (see ShimMain). It runs the
// command, writes its output to the log, records how it ended and serves a unix socket
// for stop, exec, attach and so on. It is in a session of its own and does not depend
// on the agent: when the agent ends, containers go on, and the next agent finds them in
// the data directory.
//
//	agent ──spawns──▶ shim ──spawns──▶ command, exec'd commands
//	  │                │  ▲
//	  └──unix socket───┘  └── pipes or terminal
//
// If this process may make them (as root, or by an unprivileged user namespace), a
// container has its own mount, PID, IPC and UTS namespaces. It sees the file system of
// the machine by an overlay, so that its writes are private, with its volumes, a /tmp,
// /dev and /proc of its own and the pod's host name. The shim is process 1 of the PID
// namespace: when it dies, the kernel kills all processes of the container. Without
// these privileges the command sees the machine's files, and Start fails for a volume
// that has to be mounted; if the shim of such a container is killed, its processes are
// found by the variable HAWSER_CONTAINER, its id. Memory, CPU and PID limits are set if
// cgroups can be written (v2, or v1 hierarchies), and else ignored.
//
// A container that runs as root has the default capabilities of container runtimes, and
// more only if it is privileged. It cannot see the directories of Config.Hide, open
// devices beyond the usual ones, mount or unmount, read the shim's memory, or signal
// processes outside. Otherwise it reads the machine's files as root does, because it has
// no image of its own, and network and users are the machine's. A privileged container
// is root on the machine.
//
// The files of the data directory; ID is random:
//
//	pods/UID.json     a sandbox
//	c/ID/spec.json    the spec (0600: it has the environment)
//	c/ID/status.json  the record; the shim replaces it as a whole
//	c/ID/lock         locked by the shim for as long as it lives
//	c/ID/sock         the shim's socket
//	c/ID/rootfs, tmp, layers   the container's own files
//
// spec, record and protocol have a version (see store.go): containers of an earlier
// agent are adopted, those of a later one are listed and not touched.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// Isolation is how far a container is kept apart from the machine.
type Isolation string

// The kinds of isolation.
const (
	// Auto is the strongest of the others that works.
	Auto Isolation = ""
	// Namespaces are made with the privileges of this process.
	Namespaces Isolation = "namespaces"
	// UserNamespace makes them inside a user namespace. The container sees one
	// user, itself.
	UserNamespace Isolation = "user-namespace"
	// None runs commands in the machine's own namespaces.
	None Isolation = "none"
)

// Config configures a Runtime.
type Config struct {
	// DataDir is required. It is made if missing, with mode 0700. One Runtime at
	// a time may use it.
	DataDir string
	// Version is the version in Info; empty means "unknown".
	Version   string
	Isolation Isolation
	// Hide lists directories that containers do not see, such as those with keys in
	// them. DataDir always is one.
	Hide []string
	// CgroupParent is the name of the cgroup in which those of the pods are made;
	// empty means hawser.
	CgroupParent string
	// Reserved is not available to containers: memory in bytes, CPU in thousandths of a
	// core as a weight, and processes. The runtime of another data directory may share
	// CgroupParent: what it keeps stays as it is if this one keeps nothing.
	Reserved runtime.Resources
	// LogMaxBytes bounds one file of a container's log, LogMaxFiles the number of
	// its files; zero means 10 MiB and 5.
	LogMaxBytes int64
	LogMaxFiles int
	Log         *slog.Logger // nil means discard
}

// A Runtime runs containers as processes. It implements runtime.Runtime.
type Runtime struct {
	cfg Config
	log *slog.Logger

	ready chan struct{} // closed once the containers of an earlier process have been adopted
	done  chan struct{} // closed when Run is to return
	turns turns         // of looking for the owners of ports

	clientTurns turns  // likewise, for DialPod and DialPodAt
	sockets     places // where those that listen were found

	looks *looks

	// Written before ready is closed, and not changed after.
	isolation Isolation
	cgroups   *cgroups // nil when none can be written

	wg sync.WaitGroup // everything that Run waits for

	// grouping orders the making of a container's cgroup, below its pod's, and the
	// removal of that.
	grouping sync.Mutex
	searched map[string]bool // the pods, by UID, whose groups endStrangers has searched; guarded by grouping

	mu         sync.Mutex // guards the following
	running    bool
	closed     bool // done is closed; nothing is added to wg any more
	containers map[string]*container
	sandboxes  map[string]*sandbox // by pod UID
	watchers   map[*watcher]struct{}
	saidLimits bool
}

var _ runtime.Runtime = (*Runtime)(nil)

// New checks c. Nothing is started or written before Run.
func New(c Config) (*Runtime, error) {
	if c.DataDir == "" {
		return nil, errors.New("process runtime: no data directory given")
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return nil, fmt.Errorf("process runtime: data directory: %w", err)
	}
	c.DataDir = dir
	c.Hide = slices.Clone(c.Hide)
	for i, h := range c.Hide {
		if c.Hide[i], err = filepath.Abs(h); err != nil {
			return nil, fmt.Errorf("process runtime: directory to hide: %w", err)
		}
	}
	switch c.Isolation {
	case Auto, Namespaces, UserNamespace, None:
	default:
		return nil, fmt.Errorf("process runtime: unknown isolation %q", c.Isolation)
	}
	if c.Version == "" {
		c.Version = "unknown"
	}
	if c.CgroupParent == "" {
		c.CgroupParent = defaultCgroup
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Runtime{
		cfg:         c,
		log:         c.Log,
		ready:       make(chan struct{}),
		turns:       make(turns, maxTurns),
		clientTurns: make(turns, maxTurns),
		looks:       newLooks(askProcess),
		searched:    make(map[string]bool),
		done:        make(chan struct{}),
		containers:  make(map[string]*container),
		sandboxes:   make(map[string]*sandbox),
		watchers:    make(map[*watcher]struct{}),
	}, nil
}

// Run probes the isolation that this machine allows, adopts the containers of an earlier
// process, and follows all containers until ctx is done. Containers go on after it has
// returned. The other methods wait until it has adopted all. It can be called once.
func (r *Runtime) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.running {
		r.mu.Unlock()
		return errors.New("process runtime: run twice")
	}
	r.running = true
	r.mu.Unlock()

	err := r.open(ctx)
	if err == nil {
		close(r.ready)
		<-ctx.Done()
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	close(r.done)
	r.wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *Runtime) open(ctx context.Context) error {
	for _, d := range []string{r.cfg.DataDir, r.containersDir(), r.podsDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("process runtime: make data directory: %w", err)
		}
	}
	iso, err := probeIsolation(ctx, r.cfg)
	if err != nil {
		return fmt.Errorf("process runtime: %w", err)
	}
	r.isolation = iso
	if iso == None && r.cfg.Isolation == Auto {
		r.log.Info("containers share the files of this machine: neither root nor unprivileged user namespaces can be had")
	}
	cg, err := openCgroups(r.cfg.CgroupParent)
	if err != nil {
		r.log.Info("memory and cpu limits are not enforced", "reason", err)
	}
	r.cgroups = cg
	if cg != nil {
		if err := r.reserve(); err != nil {
			r.log.Warn("what is reserved for the rest of the machine is not kept from containers", "err", err)
		}
	}
	if err := r.loadSandboxes(); err != nil {
		return fmt.Errorf("process runtime: %w", err)
	}
	if err := r.adoptAll(ctx); err != nil {
		return fmt.Errorf("process runtime: %w", err)
	}
	return nil
}

// wait returns nil once Run has adopted all containers.
func (r *Runtime) wait(ctx context.Context) error {
	select {
	case <-r.done:
		return errStopped
	default:
	}
	select {
	case <-r.ready:
		return nil
	case <-r.done:
		return errStopped
	case <-ctx.Done():
		return fmt.Errorf("process runtime: not ready: %w", context.Cause(ctx))
	}
}

// spawn runs f in a goroutine that Run waits for. It returns false once Run has ended.
func (r *Runtime) spawn(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.wg.Go(f)
	return true
}

// Info returns the runtime's name, version and directory.
func (r *Runtime) Info(context.Context) (runtime.Info, error) {
	return runtime.Info{Name: "process", Version: r.cfg.Version, Dir: r.cfg.DataDir, RecursiveReadOnly: restrictsAll()}, nil
}

// Healthy returns nil while Run runs and the data directory can be written, or is full: that is
// told as pressure, and pods that run do without.
func (r *Runtime) Healthy(ctx context.Context) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	probe := filepath.Join(r.cfg.DataDir, "healthy")
	if err := os.WriteFile(probe, []byte(time.Now().UTC().Format(time.RFC3339)), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("process runtime: data directory: %w", err)
	}
	return nil
}

func (r *Runtime) containersDir() string { return filepath.Join(r.cfg.DataDir, "c") }
func (r *Runtime) podsDir() string       { return filepath.Join(r.cfg.DataDir, "pods") }
