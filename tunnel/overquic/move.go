// Move: the sockets of a dialing end, and how its connection goes from one to another.

package overquic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/quic-go/quic-go"
)

var errAccepted = errors.New("only the end that dialed can move a session")

// noIDs has the peer address its packets to the socket and nothing more: it belongs to
// one connection. So the peer needs no new identifier for each new address of ours, and
// a stateless reset is known on either socket.
type noIDs struct{}

func (noIDs) GenerateConnectionID() (quic.ConnectionID, error) { return quic.ConnectionID{}, nil }
func (noIDs) ConnectionIDLen() int                             { return 0 }

// sockets are those of one connection, the library's transport on each. The second one
// is opened when it is first wanted.
type sockets struct {
	to     *net.UDPAddr
	open   func(ctx context.Context, to *net.UDPAddr) (net.PacketConn, error)
	moving chan struct{} // holds a token while somebody moves
	path   *quic.Path    // the one in use; nil for that of the handshake; of who moves

	mu     sync.Mutex // guards the following
	pair   [2]*quic.Transport
	active int // the one in use
	closed bool
}

func newSockets(to *net.UDPAddr, open func(context.Context, *net.UDPAddr) (net.PacketConn, error)) *sockets {
	return &sockets{to: to, open: open, moving: make(chan struct{}, 1)}
}

// openUDP opens a socket that follows the routes of this machine.
func openUDP(ctx context.Context, to *net.UDPAddr) (net.PacketConn, error) {
	network := "udp6"
	if to.IP.To4() != nil {
		network = "udp4"
	}
	return new(net.ListenConfig).ListenPacket(ctx, network, ":0")
}

// transport is one of the pair.
func (p *sockets) transport(ctx context.Context, which int) (*quic.Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, net.ErrClosed
	}
	if p.pair[which] == nil {
		pc, err := p.open(ctx, p.to)
		if err != nil {
			return nil, err
		}
		p.pair[which] = &quic.Transport{Conn: pc, ConnectionIDGenerator: noIDs{}}
	}
	return p.pair[which], nil
}

// local is the address of the socket in use.
func (p *sockets) local() net.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pair[p.active].Conn.LocalAddr()
}

// close closes both. The connection must have ended.
func (p *sockets) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, t := range p.pair {
		if t != nil {
			_ = t.Close() // nothing could be done about either
			_ = t.Conn.Close()
		}
	}
}

// move has c use the other socket, once that is known to work. Whatever c sends next
// goes there. That is an acknowledgement at least, of what has proven the path, and the
// peer follows it.
func (p *sockets) move(ctx context.Context, c *quic.Conn) error {
	select {
	case p.moving <- struct{}{}:
		defer func() { <-p.moving }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	other := 1 - p.active // only move changes it
	t, err := p.transport(ctx, other)
	if err != nil {
		return err
	}
	path, err := c.AddPath(t)
	if err != nil {
		return err
	}
	if err = path.Probe(ctx); err == nil {
		err = path.Switch()
	}
	if err != nil {
		_ = path.Close() // the other error is the news
		return fmt.Errorf("prove another path: %w", err)
	}
	p.mu.Lock()
	p.active = other
	p.mu.Unlock()
	if p.path != nil {
		_ = p.path.Close() // fails only if it is in use, which it is not
	}
	p.path = path
	return nil
}

// Move takes the session to another socket; see tunnel.Resumer.
func (s *session) Move(ctx context.Context) error {
	if s.sockets == nil {
		return errAccepted
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.conn.Context(), func() { cancel(s.why()) }) // which ends no Probe by itself
	defer stop()
	if err := s.sockets.move(ctx, s.conn); err != nil {
		if s.conn.Context().Err() != nil {
			err = s.why()
		}
		return fmt.Errorf("move to another path: %w", err)
	}
	return nil
}
