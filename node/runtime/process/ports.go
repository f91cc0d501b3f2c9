package process

// The TCP ports of a pod. Pods share the addresses of the machine with all other
// processes, so that a port number does not identify its owner.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// DialPod connects to a port that the pod listens on; see runtime.Runtime.
func (r *Runtime) DialPod(ctx context.Context, id runtime.PodID, port uint16, declared bool) (net.Conn, error) {
	return r.dialPod(ctx, r.clientTurns, id, port, declared)
}

// DialProbe is DialPod for probes and hooks; see runtime.Runtime.
func (r *Runtime) DialProbe(ctx context.Context, id runtime.PodID, port uint16, also ...netip.Addr) (net.Conn, error) {
	return r.dialPod(ctx, r.turns, id, port, true, also...)
}

func (r *Runtime) dialPod(ctx context.Context, t turns, id runtime.PodID, port uint16, declared bool, also ...netip.Addr) (net.Conn, error) {
	shims, err := r.shimsOf(ctx, id)
	if err != nil {
		return nil, err
	}
	owner := &portOwner{turns: t, shims: shims, declared: declared, known: &r.sockets}
	var failed error // the first error, or else the first about an owner
	for _, host := range append([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, also...) {
		conn, err := owner.dial(ctx, netip.AddrPortFrom(host, port))
		if err == nil {
			return conn, nil
		}
		if failed == nil || !isForeign(failed) && isForeign(err) {
			failed = err
		}
	}
	return nil, fmt.Errorf("connect to port %d of pod %s: %w", port, id.NamespacedName, failed)
}

// DialPodAt connects to a declared port at an address; see runtime.Runtime. An address of the
// node that this machine does not have, such as a translator's, is dialed as it is, unless
// another process has the port at an address to which that may lead back.
func (r *Runtime) DialPodAt(ctx context.Context, id runtime.PodID, at netip.AddrPort) (net.Conn, error) {
	shims, err := r.shimsOf(ctx, id)
	if err != nil {
		return nil, err
	}
	owner := &portOwner{turns: r.clientTurns, shims: shims, declared: true, known: &r.sockets}
	conn, err := owner.dial(ctx, at)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		if err = owner.checkMachine(ctx, at.Port()); err == nil {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", at.String())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s of pod %s: %w", at, id.NamespacedName, err)
	}
	return conn, nil
}

// shimsOf lists the shims of the pod's containers that are not over.
func (r *Runtime) shimsOf(ctx context.Context, id runtime.PodID) ([]int, error) {
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	var shims []int
	known := false
	r.mu.Lock()
	for _, c := range r.containers {
		if c.spec.Container.Pod == id && !c.isOver() {
			known = true
			c.mu.Lock()
			if pid := c.record.ShimPID; pid > 1 { // not known of one that a later version has made
				shims = append(shims, pid)
			}
			c.mu.Unlock()
		}
	}
	r.mu.Unlock()
	if !known {
		return nil, fmt.Errorf("pod %s: %w", id.NamespacedName, runtime.ErrNotRunning)
	}
	return shims, nil
}

// The reasons for not connecting to a port.
var (
	errForeign      = runtime.ErrForeignPort
	errOwnerUnknown = errors.New("it cannot be told whether it is the pod's: name it among the containerPorts")
)

func isForeign(err error) bool { return errors.Is(err, errForeign) || errors.Is(err, errOwnerUnknown) }

// turns bound how many look through processes at the same time. A pod decides how many processes
// and descriptors it has. So a turn is short, and one pod does not delay the probes of others.
// Connections of clients, proxies and load balancers, of which there may be many, have turns of their own.
type turns chan struct{}

const (
	maxTurns = 2
	// turnNames is how many descriptors are read in a turn.
	turnNames = 256
)

// take waits for a turn.
func (t turns) take(ctx context.Context) error {
	if ctx.Err() == nil {
		select {
		case t <- struct{}{}:
			return nil
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

func (t turns) give() { <-t }

// A portOwner checks whether a pod listens on a port.
type portOwner struct {
	turns    turns
	shims    []int // of the pod's containers
	declared bool  // the pod's spec declares the port
	known    *places
}

// places remember where sockets were found open: in which process, and by which name of its
// directory in /proc.
type places struct {
	mu sync.Mutex
	of map[string]place // by inode
}

type place struct {
	pid  int
	link string
}

// maxPlaces bounds the places that are remembered, and maxKnown the sockets of one port that are
// looked for there.
const (
	maxPlaces = 4096
	maxKnown  = 64
)

func (p *places) set(inode string, at place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil || len(p.of) >= maxPlaces {
		p.of = map[string]place{}
	}
	p.of[inode] = at
}

// lead reports whether all these sockets are open where they were found, and the processes are
// below one of shims.
func (p *places) lead(inodes []string, shims []int) bool {
	if len(inodes) > maxKnown {
		return false
	}
	for _, inode := range inodes {
		p.mu.Lock()
		at, ok := p.of[inode]
		p.mu.Unlock()
		if !ok {
			return false
		}
		link, err := os.Readlink(at.link)
		if err != nil || link != socketPrefix+inode+"]" || !isBelow(at.pid, shims) {
			return false
		}
	}
	return true
}

// isBelow reports whether a process descends from one of others.
func isBelow(pid int, others []int) bool {
	for range maxGenerations {
		st, err := statOf(pid)
		if err != nil || st.State == zombie || st.PPID <= 1 {
			return false
		}
		if pid = st.PPID; slices.Contains(others, pid) {
			return true
		}
	}
	return false
}

// maxGenerations bounds the way from a process to its container's shim.
const maxGenerations = 16

// dial connects to an address of the machine if the pod listens there.
func (o *portOwner) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	before, err := o.check(ctx, to)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: replyTimeout}
	if !to.Addr().IsLoopback() {
		// An address that is not the machine's cannot be the source of a connection either.
		// So no connection is made to another machine.
		d.LocalAddr = &net.TCPAddr{IP: to.Addr().AsSlice(), Zone: to.Addr().Zone()}
	}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	// Another process may listen on the port by now. A listener for one connection only
	// may have been closed.
	after, err := o.check(ctx, to)
	if err == nil && !before && !after {
		err = errForeign
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// check reports whether a process listens at an address, and returns an error if it is
// not one of the pod.
func (o *portOwner) check(ctx context.Context, at netip.AddrPort) (listens bool, err error) {
	inodes, err := listening(machineListeners, at)
	if err != nil {
		return true, o.ownerUnknown(err)
	}
	if len(inodes) == 0 {
		return false, nil
	}
	if o.known.lead(inodes, o.shims) {
		return true, nil
	}
	var denied error
	// Reading the children of each process is quick, but may miss a process whose parent
	// is just ending. Reading all processes of the machine does not.
	for _, find := range []func(context.Context, turns, int) []int{family, allBelow} {
		left := slices.Clone(inodes)
		for _, shim := range o.shims {
			for _, pid := range find(ctx, o.turns, shim) {
				left, err = o.known.search(ctx, o.turns, "/proc", pid, left)
				if errors.Is(err, fs.ErrPermission) {
					denied = err
				}
				if len(left) == 0 {
					return true, nil
				}
				if ctx.Err() != nil {
					break
				}
			}
			if ctx.Err() != nil {
				return true, context.Cause(ctx)
			}
		}
	}
	if denied != nil {
		return true, o.ownerUnknown(denied)
	}
	return true, errForeign
}

// checkMachine is check at all addresses by which others reach this machine.
func (o *portOwner) checkMachine(ctx context.Context, port uint16) error {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return o.ownerUnknown(err)
	}
	for _, a := range all {
		n, err := netip.ParsePrefix(a.String())
		if err != nil || n.Addr().IsLoopback() {
			continue
		}
		if _, err = o.check(ctx, netip.AddrPortFrom(n.Addr(), port)); err != nil {
			return err
		}
	}
	return nil
}

// ownerUnknown is used if err prevents finding the owner of a port: then the port is allowed
// if the pod's spec declares it.
func (o *portOwner) ownerUnknown(err error) error {
	if o.declared {
		return nil
	}
	return fmt.Errorf("%w (%w)", errOwnerUnknown, err)
}

// search returns those of a list of sockets that a process does not have open, and remembers where
// the others are. It reads until ctx is done.
func (p *places) search(ctx context.Context, t turns, proc string, pid int, inodes []string) ([]string, error) {
	dir := filepath.Join(proc, strconv.Itoa(pid), "fd")
	d, err := os.Open(dir)
	if err != nil {
		return inodes, err
	}
	defer d.Close()
	for len(inodes) > 0 {
		if err = t.take(ctx); err != nil {
			return inodes, err
		}
		names, end := d.Readdirnames(turnNames)
		inodes, err = p.strike(inodes, pid, dir, names)
		t.give()
		if err != nil {
			return inodes, err
		}
		if end != nil {
			break // io.EOF, or the process has ended
		}
	}
	return inodes, nil
}

// socketPrefix begins the link of a descriptor that is a socket. Its inode and "]" follow.
const socketPrefix = "socket:["

// strike removes from a list of sockets those that are open by some names in the directory of a
// process's descriptors, and remembers where they are.
func (p *places) strike(inodes []string, pid int, dir string, names []string) ([]string, error) {
	for _, name := range names {
		at := filepath.Join(dir, name)
		link, err := os.Readlink(at)
		if errors.Is(err, fs.ErrPermission) {
			return inodes, err
		}
		inode, ok := strings.CutPrefix(strings.TrimSuffix(link, "]"), socketPrefix)
		if i := slices.Index(inodes, inode); ok && i >= 0 {
			inodes = slices.Delete(inodes, i, i+1)
			p.set(inode, place{pid, at})
		}
	}
	return inodes, nil
}

// family lists the descendants of pid by the children files in /proc. It looks until ctx is done.
func family(ctx context.Context, t turns, pid int) []int {
	found, known := []int{pid}, map[int]bool{pid: true}
	for i := 0; i < len(found) && t.take(ctx) == nil; i++ {
		for _, child := range childrenOf(found[i]) {
			if !known[child] {
				known[child] = true
				found = append(found, child)
			}
		}
		t.give()
	}
	return found[1:]
}

func childrenOf(pid int) []int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var found []int
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue
		}
		for _, s := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(s); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}

// allBelow lists the descendants of pid by reading all processes of the machine.
func allBelow(ctx context.Context, t turns, pid int) []int {
	if t.take(ctx) != nil {
		return nil
	}
	defer t.give()
	var found []int
	for _, p := range descendants(pid, processes()) {
		found = append(found, p.PID)
	}
	return found
}
