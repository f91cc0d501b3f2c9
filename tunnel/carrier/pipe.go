// Pipe: what a session runs on.

package carrier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/link"
)

// A Pipe is the net.Conn below a session. It has what a tunnel.Resumer has to
// say about it, so that a session need only embed it.
type Pipe struct {
	conn net.Conn
	link *link.Link // conn, if it outlives its connections; else nil
	peer tunnel.Peer
}

// NewPipe makes a Pipe of c and owns it. It resumes if c is a *link.Link. Peer is
// what is known of the far end.
func NewPipe(c net.Conn, peer tunnel.Peer) *Pipe {
	l, _ := c.(*link.Link)
	return &Pipe{conn: c, link: l, peer: peer}
}

// Conn is the connection.
func (p *Pipe) Conn() net.Conn { return p.conn }

// Peer is what the first handshake proved about the far side.
func (p *Pipe) Peer() tunnel.Peer { return p.peer }

// Link is how the connection below the pipe fares.
func (p *Pipe) Link() tunnel.LinkState {
	if p.link == nil {
		return tunnel.LinkState{Addr: p.conn.RemoteAddr()}
	}
	return state(p.link.Stats())
}

// Tell tells f when the pipe is parked and when it goes on; see tunnel.Teller. A
// pipe that ends with its connection has nothing to tell.
func (p *Pipe) Tell(f func(tunnel.LinkState)) {
	if p.link != nil {
		p.link.Tell(func(s link.Stats) { f(state(s)) })
	}
}

func state(s link.Stats) tunnel.LinkState {
	return tunnel.LinkState{
		Parked: s.Parked, Cause: s.Cause, Heard: s.Heard, Window: s.Window, Addr: s.Addr, RTT: s.RTT,
		Parks: s.Parks, Resumes: s.Resumes,
		Replayed: s.Replayed, Sent: s.Sent, Received: s.Received, Queued: s.Queued,
	}
}

// Move puts the pipe on a new connection; see tunnel.Resumer.
func (p *Pipe) Move(ctx context.Context) error {
	if p.link == nil {
		return errors.New("move session: it ends with its connection")
	}
	return p.link.Move(ctx)
}

// Abort closes the connection without last words, for which TLS would wait, if
// they could get stuck. A link bounds its own.
func (p *Pipe) Abort() {
	if c, ok := p.conn.(interface{ NetConn() net.Conn }); ok {
		_ = c.NetConn().Close() // nothing could be done about it
	}
	_ = p.conn.Close() // likewise
}

// Lost is why a session is over whose pipe failed with err: an error that wraps
// tunnel.Lost, or a *link.Error with its own code if no connection came back in
// time. A nil err is for a session whose multiplexer gave up by itself.
func Lost(err error) error {
	var over *link.Error
	switch {
	case err == nil:
		return fmt.Errorf("%w: the multiplexer gave up", tunnel.Lost)
	case errors.As(err, &over):
		return over
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: peer closed the connection", tunnel.Lost)
	default:
		return fmt.Errorf("%w: %w", tunnel.Lost, err)
	}
}
