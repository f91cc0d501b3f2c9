// Move: the sockets of a dialing end, and how its connection goes from one to another.

package overquic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/quic-go/quic-go"
)

// noIDs has the peer address its packets to the socket and nothing more: it belongs to
// one connection. So the peer needs no new identifier for each new address of ours, and
// a stateless reset is known on either socket.
type noIDs struct{}

func (noIDs) GenerateConnectionID() (quic.ConnectionID, error) { return quic.ConnectionID{}, nil }
func (noIDs) ConnectionIDLen() int                             { return 0 }

// sockets are those of one connection, the library's transport on each. Move goes from
// the one to the other.
type sockets struct {
	pair   [2]*quic.Transport
	active atomic.Int32 // the one in use

	moving sync.Mutex // held by who moves; guards the following
	path   *quic.Path // the one in use; nil for that of the handshake
}

// A listenFunc opens a socket, as ListenPacket of a net.ListenConfig does.
type listenFunc func(ctx context.Context, network, address string) (net.PacketConn, error)

// openSockets opens two sockets for a way to the peer. They follow the routes of this
// machine.
func openSockets(ctx context.Context, to *net.UDPAddr, listen listenFunc) (*sockets, error) {
	network := "udp6"
	if to.IP.To4() != nil {
		network = "udp4"
	}
	p := new(sockets)
	for i := range p.pair {
		c, err := listen(ctx, network, ":0")
		if err != nil {
			p.close()
			return nil, err
		}
		p.pair[i] = &quic.Transport{Conn: c, ConnectionIDGenerator: noIDs{}}
	}
	return p, nil
}

// local is the address of the socket in use.
func (p *sockets) local() net.Addr { return p.pair[p.active.Load()].Conn.LocalAddr() }

// close closes both. The connection must have ended.
func (p *sockets) close() {
	for _, t := range p.pair {
		if t != nil { // it has been opened
			_ = t.Close() // nothing could be done about either
			_ = t.Conn.Close()
		}
	}
}

// move has c use the other socket, once that is known to work. Whatever c sends next
// goes there. That is an acknowledgement at least, of what has proven the path, and the
// peer follows it.
func (p *sockets) move(ctx context.Context, c *quic.Conn) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	other := 1 - p.active.Load()
	path, err := c.AddPath(p.pair[other])
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
	p.active.Store(other)
	if p.path != nil {
		_ = p.path.Close() // fails only if it is in use, which it is not
	}
	p.path = path
	return nil
}

// Move takes the session to another socket; see tunnel.Session.
func (s *session) Move(ctx context.Context) error {
	if s.sockets == nil {
		return errors.New("only the end that dialed can move a session")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.conn.Context(), cancel)() // which ends no Probe by itself
	if err := s.sockets.move(ctx, s.conn); err != nil {
		if s.conn.Context().Err() != nil {
			err = s.why()
		}
		return fmt.Errorf("move to another path: %w", err)
	}
	return nil
}
