// Network: listeners and dials in memory.

package tunneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/hawser-project/hawser/tunnel/memnet"
)

// networkBacklog is how many connections wait at a listener before Dial blocks.
const networkBacklog = 128

// A Network is a set of listeners. Its zero value is an empty one.
type Network struct {
	mu        sync.Mutex // guards the following
	listeners map[string]*networkListener
	dialed    int
}

// Listen makes addr reachable on n until the listener is closed. The network's
// name is ignored.
func (n *Network) Listen(_ context.Context, _, addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.listeners[addr]; ok {
		return nil, &net.OpError{Op: "listen", Net: "mem", Addr: memnet.Addr(addr), Err: syscall.EADDRINUSE}
	}
	if n.listeners == nil {
		n.listeners = make(map[string]*networkListener)
	}
	l := &networkListener{Handoff: memnet.NewHandoff(memnet.Addr(addr), networkBacklog), network: n}
	n.listeners[addr] = l
	return l, nil
}

// Dial connects to the listener at addr; without one the connection is refused.
func (n *Network) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.dialed++
	local := memnet.Addr(fmt.Sprintf("dialer-%d", n.dialed))
	n.mu.Unlock()
	err := net.ErrClosed
	near, far := memnet.Pipe(local, memnet.Addr(addr))
	if l != nil {
		err = l.Inject(ctx, far)
	}
	if errors.Is(err, net.ErrClosed) {
		err = syscall.ECONNREFUSED
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "mem", Addr: memnet.Addr(addr), Err: err}
	}
	return near, nil
}

// A networkListener is a Handoff that a Network knows.
type networkListener struct {
	*memnet.Handoff
	network *Network
}

// Close has the network forget the listener as well.
func (l *networkListener) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if addr := l.Addr().String(); l.network.listeners[addr] == l {
		delete(l.network.listeners, addr)
	}
	return l.Handoff.Close()
}
