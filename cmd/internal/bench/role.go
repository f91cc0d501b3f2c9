// Roles: what a process of a run does, and how it is spoken to.

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// gcPercent is what both of the programs set.
const gcPercent = 50

// The roles.
const (
	relayControl = "relay-control" // plain TCP to TLS
	relayNode    = "relay-node"    // TLS to the target
	control      = "control"       // hub and CONNECT front end
	node         = "node"          // one agent, or many
	sshControl   = "ssh-control"   // ssh and CONNECT front end
	sshNode      = "ssh-node"      // sshd
)

// An order is the first thing that a process is told.
type order struct {
	Dir       string // of keys
	Transport string // control and node
	Socket    string // of the CONNECT front end; control and ssh-control
	To        string // where to connect to
	User      string // who logs in; ssh-control
	First     int    // number of the first node; node
	Count     int    // of sessions; node and ssh-control
}

// What a process may be asked.
const (
	doUsage  = "usage"  // what it has used
	doSettle = "settle" // the same, after returning memory that is free
	doWait   = "wait"   // to say when its sessions have come about
)

// A question is each further thing that a process is told.
type question struct {
	Do    string
	Count int // of sessions, for wait
}

// An answer answers the order and each question.
type answer struct {
	Addr  string // where it listens
	Kind  string // what it is, if that was left to it
	User  string // who may log in; ssh-node
	Usage usage
	Err   string // why it has failed; it ends then
}

// A part is what a role has made.
type part struct {
	answer answer // to the order
	run    []func(context.Context) error
	// wait waits until there are n sessions; nil if there never are.
	wait      func(ctx context.Context, n int) error
	processes func() []int // nil means this process
}

// Serve plays a role in a run of another process: it takes an order and questions
// from in, as lines of JSON, and answers them to out. It ends when in does, or ctx,
// and thus with the process that started it, however that ends.
func Serve(ctx context.Context, role string, in *os.File, out io.Writer) error {
	makers := map[string]func(context.Context, order) (*part, error){
		relayControl: newRelayControl, relayNode: newRelayNode,
		control: newControl, node: newNode,
		sshControl: newSSHControl, sshNode: newSSHNode,
	}
	newPart, ok := makers[role]
	if !ok {
		return fmt.Errorf("role %q is none of %v", role, slices.Sorted(maps.Keys(makers)))
	}
	if role != relayControl && role != relayNode { // the yardstick is as Go comes
		debug.SetGCPercent(gcPercent)
	}
	// What ssh-node starts is to end with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	questions, err := interruptible(in)
	if err != nil {
		return err
	}
	defer questions.Close()
	s := &player{questions: questions, in: json.NewDecoder(questions), out: json.NewEncoder(out)}
	err = s.serve(ctx, newPart)
	if err != nil && ctx.Err() == nil {
		// If nobody reads that, nobody is there.
		_ = s.out.Encode(answer{Err: err.Error()})
	}
	return err
}

// interruptible is f in a form whose reads end when it is closed, which those of a
// standard input do not.
func interruptible(f *os.File) (*os.File, error) {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, fmt.Errorf("duplicate standard input: %w", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare standard input: %w", err), syscall.Close(fd))
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// A player is a process of a run, seen from within.
type player struct {
	questions io.Closer // below in
	in        *json.Decoder
	out       *json.Encoder
}

func (s *player) serve(ctx context.Context, newPart func(context.Context, order) (*part, error)) error {
	group, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { _ = s.questions.Close() })
	defer stop()
	err := s.play(ctx, group, newPart)
	if err == nil {
		err = errOver
	}
	group.Go(func() error { return err }) // ends the others
	failed := group.Wait()                // what ended first
	if errors.Is(failed, errOver) {
		return nil
	}
	return failed
}

// play makes the part, runs it in group and answers questions until there are no
// more.
func (s *player) play(ctx context.Context, group *errgroup.Group, newPart func(context.Context, order) (*part, error)) error {
	var o order
	if err := s.in.Decode(&o); err != nil {
		return ended(ctx, err)
	}
	p, err := newPart(ctx, o)
	if err != nil {
		return err
	}
	for _, f := range p.run {
		group.Go(func() error { return f(ctx) })
	}
	if err := s.out.Encode(p.answer); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	for {
		var q question
		if err := s.in.Decode(&q); err != nil {
			return ended(ctx, err)
		}
		a, err := p.reply(ctx, q)
		if err != nil {
			return err
		}
		if err := s.out.Encode(a); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

// errOver is how a process ends that is no longer needed.
var errOver = errors.New("over")

func (p *part) reply(ctx context.Context, q question) (a answer, err error) {
	pids := []int{os.Getpid()}
	if p.processes != nil {
		pids = p.processes()
	}
	switch q.Do {
	case doSettle:
		runtime.GC() // what lies in pools is let go of by the second collection
		debug.FreeOSMemory()
		fallthrough
	case doUsage:
		a.Usage, err = used(pids)
	case doWait:
		if p.wait == nil {
			return a, errors.New("there is nothing to wait for")
		}
		bounded, cancel := context.WithTimeout(ctx, setupTime)
		defer cancel()
		err = p.wait(bounded, q.Count)
	default:
		err = fmt.Errorf("asked for %q", q.Do)
	}
	return a, err
}

// ended is nil if reading ended because it was to end.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("read question: %w", err)
}
