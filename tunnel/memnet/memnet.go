// Package memnet is a network in memory, for tests, for a server and an agent that
// share a process, and for the bounds and deadlines of overssh's streams.
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
	l := &listener{network: n, addr: addr, conns: make(chan *Conn, backlog), done: make(chan struct{})}
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
	refused := &net.OpError{Op: "dial", Net: "mem", Addr: Addr(addr), Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	near, far := Pipe(local, Addr(addr))
	select {
	case l.conns <- far:
	case <-l.done:
		return nil, refused
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "mem", Addr: Addr(addr), Err: context.Cause(ctx)}
	}
	select { // closed meanwhile: nobody will accept what lies in the queue
	case <-l.done:
		l.drop()
	default:
	}
	return near, nil
}

type listener struct {
	network *Network
	addr    string
	conns   chan *Conn
	done    chan struct{}
	once    sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
	case c := <-l.conns:
		select {
		case <-l.done:
			_ = c.Abort() // never fails
		default:
			return c, nil
		}
	}
	return nil, &net.OpError{Op: "accept", Net: "mem", Addr: l.Addr(), Err: net.ErrClosed}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.network.mu.Lock()
		delete(l.network.listeners, l.addr)
		l.network.mu.Unlock()
		close(l.done)
	})
	l.drop()
	return nil
}

func (l *listener) Addr() net.Addr { return Addr(l.addr) }

func (l *listener) drop() {
	for {
		select {
		case c := <-l.conns:
			_ = c.Abort() // never fails
		default:
			return
		}
	}
}
