// Package runtime is what a node needs from whatever runs its containers.
//
// A Runtime knows sandboxes (what the containers of one pod share) and
// containers (one attempt at running one container). It decides nothing: when
// to restart, in which order, with which back-off, and what a pod's status says
// is decided above it, in package pods. It does not read the API either: all it
// is told arrives in the arguments.
//
// Implementations live in the packages below this one: process runs containers
// as process groups of this machine.
package runtime

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrNotFound is wrapped by errors about a sandbox or container that the
// runtime does not know.
var ErrNotFound = errors.New("not found")

// ErrNotRunning is wrapped by errors about a container that exists and has no
// live process, such as an exec into a dead container.
var ErrNotRunning = errors.New("container is not running")

// A StartError says that a command could not be run at all, as against one that
// ran and failed. It is in the chain of the errors of Start and Exec.
type StartError struct {
	// ExitCode is what a shell would make of it: 127 when there is no such
	// command, 126 when it may not be run, 128 for all else.
	ExitCode int
	// Reason is a word for the container's status: StartError when the command
	// could not be run, ContainerCannotRun when its surroundings could not be
	// made.
	Reason  string
	Message string // for people, such as: exec: "foo": executable file not found in $PATH
}

func (e *StartError) Error() string { return e.Message }

// A PodID names one incarnation of a pod. A pod that was deleted and made anew
// under the same name is another pod.
type PodID struct {
	types.NamespacedName
	UID types.UID
}

// Info says what the runtime is.
type Info struct {
	// Name and Version make up nodeInfo.containerRuntimeVersion, NAME://VERSION.
	Name, Version string
	// Dir is where it keeps images and containers. Empty means not to be known.
	Dir string
}

// A Sandbox is what the containers of a pod share.
type Sandbox struct {
	Pod PodID
	// Hostname is what the containers see as their host name where the runtime
	// can arrange that.
	Hostname string
	// LogDir is where the runtime may expect container log files to be; the
	// caller makes it.
	LogDir string
	// Limits of the pod as a whole; zero fields mean none.
	Limits Resources
}

// SandboxStatus is what the runtime made of a Sandbox.
type SandboxStatus struct {
	// IPs are the addresses of the pod, primary first. Empty means that the pod
	// shares the addresses of the node.
	IPs       []string
	CreatedAt time.Time
}

// Resources bound a container. Zero fields mean no bound.
type Resources struct {
	MemoryBytes int64 // limit
	CPUMilli    int64 // limit, thousandths of a core
	CPUShares   int64 // weight, from the request
	PIDs        int64
}

// A Mount makes a file or directory of the host visible in a container.
type Mount struct {
	HostPath string
	// SubPath is the part of HostPath to be mounted; empty means all of it. No
	// symbolic link on it leads out of HostPath, whoever makes one while it is
	// being mounted.
	SubPath       string
	ContainerPath string // absolute
	ReadOnly      bool
	// Optional mounts are left out where they cannot be made; any other one that
	// cannot be made is an error of Start.
	Optional bool
}

// Security is what the processes of a container may do. The zero value is what a
// container of Kubernetes gets whose securityContext is empty: the capabilities
// that container runtimes usually leave to root, and no filter of system calls.
type Security struct {
	// Privileged processes are not confined: as root they are root on the machine.
	// What else is asked for here is done all the same where it can be.
	Privileged bool
	// AddCapabilities and DropCapabilities change the usual set. They are names as
	// capabilities(7) has them, with or without CAP_, or ALL; a name in both is
	// dropped.
	AddCapabilities  []string
	DropCapabilities []string
	// ReadOnlyRoot lets the container write to its volumes and to /dev only.
	ReadOnlyRoot bool
	// NoNewPrivileges keeps set-user-id programs and file capabilities from having
	// an effect.
	NoNewPrivileges bool
	// DefaultSeccomp filters system calls as the runtime does by default.
	DefaultSeccomp bool
	// HostIPC shares System V IPC and message queues with the machine.
	HostIPC bool
}

// A Container says how to run one attempt of one container.
type Container struct {
	Pod     PodID
	Name    string
	Attempt int    // restart count, from 0
	Image   string // recorded; the process runtime pulls nothing

	Argv       []string // command and args, resolved; never empty
	Env        []string // KEY=VALUE, complete: nothing of the agent's is inherited
	WorkingDir string   // empty: the runtime's choice
	Mounts     []Mount
	Resources  Resources

	UID    *int64 // nil: the runtime's choice
	GID    *int64
	Groups []int64

	Security Security
	// OOMScoreAdj is how early the kernel kills the container when the machine has
	// no memory left, -1000 to 1000 as in proc_pid_oom_score_adj(5).
	OOMScoreAdj int

	Stdin     bool // keep standard input open for attach
	StdinOnce bool // close it after the first attach ends
	TTY       bool

	// LogPath is the file that gets the output in CRI log format, rotated.
	LogPath string
	// TerminationLog is a file of the host whose content, at most 4096 bytes, is
	// the termination message. The caller makes it, reads it, and lists it among
	// Mounts as an optional one.
	TerminationLog string
}

// State of a container.
type State string

// The states of a container.
const (
	Created State = "created"
	Running State = "running"
	Exited  State = "exited"
)

// ContainerStatus is what the runtime knows of a container. It is kept after
// the container has ended, until Remove, and through restarts of the agent.
type ContainerStatus struct {
	ID        string // without the NAME:// prefix
	Pod       PodID
	Name      string
	Attempt   int
	Image     string
	State     State
	CreatedAt time.Time
	StartedAt time.Time // zero until it runs
	EndedAt   time.Time // zero until it has ended
	ExitCode  int       // 128+n when signal n ended it
	Signal    int       // 0 when no signal ended it
	OOMKilled bool
	// Reason is empty when the process ran and the exit code says it all, or a
	// word for why it never ran, such as ContainerCannotRun or StartError.
	Reason  string
	Message string // for people
	LogPath string
}

// An Image is one that containers can be made of without fetching it.
type Image struct {
	Names     []string // at least one
	SizeBytes int64    // what it takes of the disk; zero when it takes none
}

// Stdio is a command's terminal or pipes. Nil fields are absent.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
	TTY      bool
	Resize   <-chan Size // nil without a terminal
}

// A Size of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// Usage is what a pod's container uses now.
type Usage struct {
	Time         time.Time
	CPUNanos     uint64 // consumed since the container started
	MemoryBytes  uint64
	PIDs         uint64
	SampledCPUNs uint64 // nanocores over the last sample, 0 when unknown
}

// A Runtime runs containers. All methods may be called at the same time, except
// that calls which change one container are made one after the other, and so are
// EnsureSandbox, Start and RemoveSandbox of one pod. So the containers of a pod
// may be stopped all at once, also while another one is being started.
type Runtime interface {
	Info(ctx context.Context) (Info, error)
	// Healthy returns nil while containers can be run.
	Healthy(ctx context.Context) error

	// EnsureSandbox makes the sandbox, or finds it: calling it again does no harm.
	EnsureSandbox(ctx context.Context, s Sandbox) (SandboxStatus, error)
	// RemoveSandbox forgets a sandbox whose containers have been removed. One
	// already gone is success.
	RemoveSandbox(ctx context.Context, id PodID) error
	// Sandboxes lists the pods the runtime holds anything of.
	Sandboxes(ctx context.Context) ([]PodID, error)

	// Start runs c and returns its id once the process runs. When it cannot be
	// run the error says why, and nothing of it is left; a command that cannot be
	// executed is a *StartError. An attempt that exists already is an error.
	Start(ctx context.Context, c Container) (id string, err error)
	// Stop asks the container's process group to end (SIGTERM) and kills it when
	// grace is over; grace 0 kills at once. It returns when the container has
	// ended. One that has ended already is success. When ctx is done first, Stop
	// returns ctx's error and may be called again with another grace, which then
	// counts alone.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove forgets a container that has ended. One already gone is success.
	Remove(ctx context.Context, id string) error
	// Containers lists all that have not been removed, also those started by an
	// earlier process of the agent.
	Containers(ctx context.Context) ([]ContainerStatus, error)
	// Watch sends all pods that have containers, and then each whose containers
	// changed state, until ctx is done: what happened before it began is not
	// missed. It never closes ch. It may send more often than needed, never less.
	Watch(ctx context.Context, ch chan<- PodID) error

	// Exec runs argv in the container and returns its exit code. err is non-nil
	// only when it could not be run (a *StartError, ErrNotFound, ErrNotRunning) or
	// was cut short: when ctx ends, or the streams break, the command is killed.
	Exec(ctx context.Context, id string, argv []string, s Stdio) (exit int, err error)
	// Attach joins the streams of the running container until it ends or ctx is
	// done.
	Attach(ctx context.Context, id string, s Stdio) error
	// Resize sets the size of the container's terminal.
	Resize(ctx context.Context, id string, size Size) error
	// DialPod connects to a TCP port that a container of the pod listens on, at
	// its loopback address. Where pods share the addresses of the machine, a port
	// that something else listens on is refused; declared says that the pod's spec
	// names the port, which counts where it cannot be told who listens.
	DialPod(ctx context.Context, id PodID, port uint16, declared bool) (net.Conn, error)
	// Images lists the images there are. A runtime that fetches none lists those that
	// its containers name.
	Images(ctx context.Context) ([]Image, error)
	// Usage of a running container.
	Usage(ctx context.Context, id string) (Usage, error)
}
