// Move: connection migration (RFC 9000, 9) between two sockets of the dialing end.

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

// noIDs makes connection IDs of no bytes, since a socket belongs to one connection. So the
// peer needs no new ID for each new address of this end, and a stateless reset is recognized
// on either socket.
type noIDs struct{}

func (noIDs) GenerateConnectionID() (quic.ConnectionID, error) { return quic.ConnectionID{}, nil }
func (noIDs) ConnectionIDLen() int                             { return 0 }

// sockets are the two sockets of a connection, with the library's transport on each. A move
// goes from one to the other. The library closes a connection with the first socket that it
// closes, so both stay open until the session ends.
type sockets struct {
	pair   [2]*quic.Transport
	active atomic.Int32 // the one in use

	moving sync.Mutex // held during a move; guards the following
	path   *quic.Path // the one in use; nil for that of the handshake
}

// A listenFunc opens a socket, as net.ListenConfig.ListenPacket does.
type listenFunc func(ctx context.Context, network, address string) (net.PacketConn, error)

// openSockets opens two sockets of the peer's address family.
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
		if t != nil { // it was opened
			_ = t.Close() // they are closed either way
			_ = t.Conn.Close()
		}
	}
}

// move makes c use the other socket after the path from there was validated. What c sends
// next, at least an acknowledgement, goes there, and the peer follows it.
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
		_ = path.Close() // err is what is reported
		return fmt.Errorf("prove another path: %w", err)
	}
	p.active.Store(other)
	if p.path != nil {
		_ = p.path.Close() // fails only for a path in use
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
	defer context.AfterFunc(s.conn.Context(), cancel)() // the end of the connection does not end Probe
	if err := s.sockets.move(ctx, s.conn); err != nil {
		if s.conn.Context().Err() != nil {
			err = s.cause()
		}
		return fmt.Errorf("move to another path: %w", err)
	}
	return nil
}
