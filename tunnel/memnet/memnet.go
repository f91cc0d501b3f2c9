// Package memnet is a network in memory, for tests, for listeners whose connections come
// from the same process, and for the bounds and deadlines of the streams of overssh and
// overh2.
//
// Its connections behave as TCP connections do: they buffer a bounded number of
// bytes, half-close, reset, and keep deadlines. They are built on condition
// variables and timers only, so that inside a testing/synctest bubble a blocked
// Read is durably blocked. On top of that a connection can be stalled, as a
// dead NAT entry would stall it: bytes are taken and arrive nowhere.
//
// It is not a simulator: there is no delay, no loss and no packet network.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
)

// backlog is how many connections wait at a listener before Dial blocks.
const backlog = 128

// An Addr is an address on a Network; any string will do.
type Addr string

// Network is "mem".
func (Addr) Network() string { return "mem" }

func (a Addr) String() string { return string(a) }

// A Network is a set of listeners. Its zero value is an empty one.
type Network struct {
	mu        sync.Mutex // guards the following
	listeners map[string]*listener
	dialed    int
}

// Listen makes addr reachable on n until the listener is closed. The network's
// name is ignored.
func (n *Network) Listen(_ context.Context, _, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.listeners[addr]; ok {
		return nil, &net.OpError{Op: "listen", Net: "mem", Addr: Addr(addr), Err: syscall.EADDRINUSE}
	}
	if n.listeners == nil {
		n.listeners = make(map[string]*listener)
	}
	l := &listener{Handoff: NewHandoff(Addr(addr), backlog), network: n}
	n.listeners[addr] = l
	return l, nil
}

// Dial connects to the listener at addr; without one the connection is refused.
func (n *Network) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.dialed++
	local := Addr(fmt.Sprintf("dialer-%d", n.dialed))
	n.mu.Unlock()
	err := net.ErrClosed
	near, far := Pipe(local, Addr(addr))
	if l != nil {
		err = l.Inject(ctx, far)
	}
	if errors.Is(err, net.ErrClosed) {
		err = syscall.ECONNREFUSED
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "mem", Addr: Addr(addr), Err: err}
	}
	return near, nil
}

// A listener is a Handoff that a Network knows.
type listener struct {
	*Handoff
	network *Network
}

// Close has the network forget the listener as well.
func (l *listener) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if addr := l.addr.String(); l.network.listeners[addr] == l {
		delete(l.network.listeners, addr)
	}
	return l.Handoff.Close()
}
