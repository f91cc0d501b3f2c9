// The dialing end: a connection, and another whenever one is lost.

package carrier

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/link"
)

// linked is what is behind the ALPN name of a protocol that runs on a link.
const linked = "+link"

// tickets is how many of the server's tickets a session keeps. One is enough to
// resume with; a server hands out one a connection.
const tickets = 2

// A Protocol is a multiplexer and what it is called. All fields are required.
type Protocol struct {
	// Name is the transport's; see tunnel.Transport.
	Name string
	// ALPN tells the protocol from others on the same port (RFC 7301).
	ALPN string
	// Start makes the session of p, which it owns; dialed says which end it is.
	// If it fails p is closed.
	Start func(p *Pipe, dialed bool, o tunnel.Options) (tunnel.Session, error)
}

// Transport is the protocol as a tunnel.Transport.
func (p Protocol) Transport() tunnel.Transport {
	return tunnel.Transport{Name: p.Name, Can: tunnel.Capabilities{Resume: true, Migrate: true, HalfClose: true, Reset: true}, Dial: p.Dial, Listen: p.Listen}
}

// alpn are the names of the protocol, the best first.
func (p Protocol) alpn(o tunnel.LinkOptions) []string {
	if o.Window() < 0 {
		return []string{p.ALPN}
	}
	return []string{p.ALPN + linked, p.ALPN}
}

// peer is what c's handshake has proved.
func (p Protocol) peer(c *tls.Conn) tunnel.Peer {
	state := c.ConnectionState()
	return tunnel.Peer{Addr: c.RemoteAddr(), TLS: &state, Transport: p.Name}
}

// Dial makes a session with the server at addr, HOST:PORT. ctx bounds the dialing
// only.
func (p Protocol) Dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	s, err := p.dial(ctx, addr, o)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return s, nil
}

func (p Protocol) dial(ctx context.Context, addr string, o tunnel.Options) (tunnel.Session, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d, err := NewDialer(addr, p.alpn(o.Link), batched, o)
	if err != nil {
		return nil, err
	}
	first, err := d.First(ctx)
	if err != nil {
		return nil, err
	}
	peer := p.peer(first)
	if !resumes(*peer.TLS) {
		if o.Link.Window() > 0 {
			o.Log.Warn("session will end with its connection: the server does not resume", "server", addr)
		}
		return p.Start(NewPipe(first, peer), true, o)
	}
	l, err := link.Dial(ctx, func(ctx context.Context) (net.Conn, error) {
		if c := first; c != nil {
			first = nil
			return c, nil
		}
		return resuming(d.Again(ctx))
	}, linkConfig(o))
	if err != nil {
		return nil, err
	}
	return p.Start(NewPipe(l, peer), true, o)
}

// resumes says whether a handshake agreed on a link.
func resumes(s tls.ConnectionState) bool { return strings.HasSuffix(s.NegotiatedProtocol, linked) }

// linkConfig is o as package link has it, but for the budget.
func linkConfig(o tunnel.Options) link.Config {
	return link.Config{
		Unsent: LimitUnsent,
		Buffer: o.Link.Buffer, Keepalive: o.Link.Interval(), Metered: o.Link.Metered, Window: o.Link.Window(), Log: o.Log,
	}
}

// batched goes between TLS and a connection that a link may run on.
func batched(c net.Conn) net.Conn { return link.NewBatch(c) }

// resuming is a further connection for a link, if the server still has links.
func resuming(c *tls.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	if !resumes(c.ConnectionState()) {
		_ = c.NetConn().Close() // of no use
		return nil, &link.Error{Code: tunnel.Lost, Text: "the server does not resume any more"}
	}
	return c, nil
}

// checkALPN says whether a handshake agreed on one of these protocols.
func checkALPN(c *tls.Conn, names []string) error {
	if !slices.Contains(names, c.ConnectionState().NegotiatedProtocol) {
		return fmt.Errorf("peer does not speak %s", names[len(names)-1])
	}
	return nil
}
