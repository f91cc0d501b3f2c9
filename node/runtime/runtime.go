// Package runtime is the interface between a node and its container runtime.
//
// A Runtime has sandboxes (what the containers of one pod share) and containers (one
// attempt at running one container). It makes no decisions: restarts, their order and
// back-off, and a pod's status are decided in package pods. It does not read the API
// either: it gets everything by arguments.
//
// Implementations live in the packages below this one: process runs containers
// as process groups of this machine.
package runtime

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrNotFound is wrapped by errors about a sandbox or container that does not exist.
var ErrNotFound = errors.New("not found")

// ErrNotRunning is wrapped by errors about a container that exists and has no
// live process, such as an exec into a dead container.
var ErrNotRunning = errors.New("container is not running")

// ErrForeignPort is wrapped by errors about a port of a pod at which another process listens.
var ErrForeignPort = errors.New("what listens there is not a process of the pod, and pods of this node share its addresses")

// A StartError means that a command could not be started. Errors of Start and Exec wrap
// it.
type StartError struct {
	// ExitCode is that of a shell: 127 if the command does not exist, 126 if it may not be
	// run, 128 for other reasons.
	ExitCode int
	// Reason is that of the container's status: StartError if the command could not be
	// run, ContainerCannotRun if the container could not be set up.
	Reason  string
	Message string // for people, such as: exec: "foo": executable file not found in $PATH
}

func (e *StartError) Error() string { return e.Message }

// A PodID identifies a pod by name and UID. A pod that was deleted and made again with the
// same name is another pod.
type PodID struct {
	types.NamespacedName
	UID types.UID
}

// Info identifies a runtime.
type Info struct {
	// Name and Version make up nodeInfo.containerRuntimeVersion, NAME://VERSION.
	Name, Version string
	// Dir is where it keeps images and containers. Empty means unknown.
	Dir string
	// RecursiveReadOnly is whether a read-only mount makes the mounts below it read-only, too.
	RecursiveReadOnly bool
}

// A Sandbox is what the containers of a pod share.
type Sandbox struct {
	Pod PodID
	// Hostname is the host name in the containers, if the runtime can set it.
	Hostname string
	// LogDir is the directory of the containers' log files. The caller makes it.
	LogDir string
	// Limits of the pod as a whole; zero fields mean none.
	Limits Resources
}

// SandboxStatus is the state of a Sandbox.
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
	// SubPath is the path below HostPath that is mounted; empty means HostPath. The
	// runtime does not follow a symbolic link out of HostPath, also not one that is made
	// during the mount.
	SubPath string
	// Resolved is the path without symbolic links to which HostPath and SubPath lead. Start
	// fails if they lead elsewhere by then. If it is empty they may lead anywhere.
	Resolved      string `json:",omitempty"`
	ContainerPath string // absolute
	ReadOnly      bool   // see Info.RecursiveReadOnly for the mounts below
	// Optional mounts are left out if they cannot be made. Start fails if another mount
	// cannot be made.
	Optional bool
}

// Security is what the processes of a container may do. The zero value is that of an
// empty securityContext in Kubernetes: the default capabilities of container runtimes,
// and no filter of system calls.
type Security struct {
	// Privileged processes are not confined: as root they are root on the machine. The
	// other fields still apply if possible.
	Privileged bool
	// AddCapabilities and DropCapabilities change the default set. They are names of
	// capabilities(7), with or without CAP_, or ALL; a name in both is dropped.
	AddCapabilities  []string
	DropCapabilities []string
	// ReadOnlyRoot lets the container write to its volumes and to /dev only.
	ReadOnlyRoot bool
	// NoNewPrivileges disables set-user-id programs and file capabilities.
	NoNewPrivileges bool
	// DefaultSeccomp filters system calls by the runtime's default profile.
	DefaultSeccomp bool
	// HostIPC shares System V IPC and message queues with the machine.
	HostIPC bool
	// HostPID shares process ids with the machine: all its processes are seen.
	HostPID bool
}

// A Container is the configuration of one attempt of one container.
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
	// OOMScoreAdj is oom_score_adj of the container's processes, -1000 to 1000; see
	// proc_pid_oom_score_adj(5).
	OOMScoreAdj int

	// StopSignal is the number of the signal that Stop sends; 0 means SIGTERM.
	StopSignal int `json:",omitempty"`

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

// ContainerStatus is the state of a container. It is kept until Remove, also after the
// container has ended and across restarts of the agent.
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
	// Rebooted is whether the machine has been rebooted since the container started.
	Rebooted bool
	// Reason is empty if the process ran, and else why it did not, such as
	// ContainerCannotRun or StartError.
	Reason  string
	Message string // for people
	LogPath string
	// Dir is the host's directory of what the container writes outside of its volumes;
	// empty if there is none. The runtime may have small files of its own there.
	Dir string
}

// An Image is an image that need not be fetched.
type Image struct {
	Names     []string // at least one
	SizeBytes int64    // bytes on disk
}

// Stdio is a command's terminal or pipes. Nil fields are absent.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
	TTY      bool
	Resize   <-chan Size // nil without a terminal
	// Drain lets Exec without a terminal return only when no process has Out and Err open any
	// more. Processes that the command has left behind may keep them open without end.
	Drain bool
	// Probe is whether Exec is for a probe or a hook, which commands of clients do not keep out.
	Probe bool
}

// A Size of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// Usage is a container's use of resources.
type Usage struct {
	Time         time.Time
	CPUNanos     uint64 // consumed since the container started
	MemoryBytes  uint64 // the working set: without InactiveFile
	InactiveFile uint64 // bytes of the page cache that the kernel frees first
	PIDs         uint64
	SampledCPUNs uint64 // nanocores over the last sample, 0 when unknown
}

// A Runtime runs containers. All methods may be called at the same time, with two
// exceptions: calls that change one container are made one after the other, and so are
// EnsureSandbox, Start and RemoveSandbox of one pod. Containers of one pod may be
// stopped at the same time, also while another one is being started.
type Runtime interface {
	Info(ctx context.Context) (Info, error)
	// Healthy returns nil while containers can be run.
	Healthy(ctx context.Context) error

	// EnsureSandbox makes the sandbox if it does not exist.
	EnsureSandbox(ctx context.Context, s Sandbox) (SandboxStatus, error)
	// RemoveSandbox removes a sandbox whose containers have been removed. It is no error
	// if the sandbox does not exist.
	RemoveSandbox(ctx context.Context, id PodID) error
	// Sandboxes lists the pods that have a sandbox or a container.
	Sandboxes(ctx context.Context) ([]PodID, error)

	// Start runs c and returns its id once the process runs. After an error nothing of it
	// is left. If the command cannot be executed the error is a *StartError. It is an error
	// if the attempt exists already.
	Start(ctx context.Context, c Container) (id string, err error)
	// Stop sends the container's StopSignal to its process group and kills it after grace;
	// grace 0 kills at once. It returns when the container has ended, and nil if it had ended
	// before. If ctx is done first, Stop returns ctx's error. It may then be called again
	// with another grace, which replaces the first.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// Remove removes a container that has ended. It is no error if it does not exist.
	Remove(ctx context.Context, id string) error
	// Containers lists all containers that have not been removed, also those of an earlier
	// process of the agent.
	Containers(ctx context.Context) ([]ContainerStatus, error)
	// Watch sends all pods that have containers, and then each pod whose containers change
	// state, until ctx is done. So changes before the call are not missed. It never closes
	// ch. It may send a pod more often than needed.
	Watch(ctx context.Context, ch chan<- PodID) error

	// Exec runs argv in the container and returns its exit code. err is not nil only if it
	// could not be run (a *StartError, ErrNotFound, ErrNotRunning) or was interrupted: if
	// ctx is done or a stream fails, the command is killed. If it has a terminal, SIGHUP
	// comes first.
	Exec(ctx context.Context, id string, argv []string, s Stdio) (exit int, err error)
	// Attach connects to the streams of the running container until it ends or ctx is
	// done. The end of s.In ends the attachment, too: once the container has written nothing for
	// a second, after 30 seconds at most. If the container has StdinOnce and no terminal it closes
	// the container's input instead.
	Attach(ctx context.Context, id string, s Stdio) error
	// Resize sets the size of the container's terminal.
	Resize(ctx context.Context, id string, size Size) error
	// DialPod connects to a TCP port on which a container of the pod listens, at its
	// loopback address, for a client who forwards ports.
	// If pods share the addresses of the machine, a port of another process is refused.
	// declared is whether the pod's spec declares the port; it decides if the owner of the
	// port cannot be found.
	DialPod(ctx context.Context, id PodID, port uint16, declared bool) (net.Conn, error)
	// DialProbe is DialPod of a declared port for a probe or a hook, which clients do not delay,
	// also at further addresses of the machine.
	DialProbe(ctx context.Context, id PodID, port uint16, also ...netip.Addr) (net.Conn, error)
	// DialPodAt connects to a TCP port that the pod's spec declares, at that address, which is
	// one of the machine. If pods share the addresses of the machine, it fails with
	// ErrForeignPort if another process listens there.
	DialPodAt(ctx context.Context, id PodID, at netip.AddrPort) (net.Conn, error)
	// Images lists the images on the node. A runtime that fetches none lists the names in
	// its containers.
	Images(ctx context.Context) ([]Image, error)
	// Usage of a running container.
	Usage(ctx context.Context, id string) (Usage, error)
}
