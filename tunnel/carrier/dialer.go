// Dialer: TLS connections to one server.

package carrier

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/tunnel"
)

// tickets is how many TLS session tickets a Dialer keeps. A server sends one on each
// connection, and the latest is used.
const tickets = 2

// smallSegment is the TCP segment size that every IPv6 path carries: 1280 bytes (RFC 8200,
// 5) without the headers of IP and TCP.
const smallSegment = 1280 - 40 - 20

// A Dialer makes TLS connections to one server. Handshakes after the first are resumptions
// (RFC 8446, 2.2). Packets stay small once large ones were lost on the path. All methods may
// be called concurrently.
type Dialer struct {
	addr       string
	tls        *tls.Config
	below      func(net.Conn) net.Conn
	options    tunnel.Options
	packetSize packetSize
}

// Bare is what wraps a connection below TLS in nothing.
func Bare(c net.Conn) net.Conn { return c }

// Dial makes a first connection to the server at addr, HOST:PORT, and a Dialer for more.
// They offer the protocol alpn (RFC 7301). below, such as Bare, wraps each connection below
// TLS. begin makes a session of the connection, which it owns.
func Dial(ctx context.Context, addr, alpn string, below func(net.Conn) net.Conn, o tunnel.Options,
	begin func(context.Context, *Dialer, *tls.Conn) (tunnel.Session, error),
) (tunnel.Session, error) {
	d, err := newDialer(addr, alpn, below, o)
	if err == nil {
		var c *tls.Conn
		if c, err = d.first(ctx); err == nil {
			var s tunnel.Session
			if s, err = begin(ctx, d, c); err == nil {
				return s, nil
			}
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", addr, err)
}

func newDialer(addr, alpn string, below func(net.Conn) net.Conn, o tunnel.Options) (*Dialer, error) {
	conf, err := ClientTLS(o.TLS, addr, alpn)
	if err == nil {
		err = checkCongestion(o.Link.Congestion)
	}
	if err != nil {
		return nil, err
	}
	if conf.ClientSessionCache == nil {
		conf.ClientSessionCache = tls.NewLRUClientSessionCache(tickets)
	}
	if o.Dial == nil {
		o.Dial, o.DialSmall = NetDialer(false).DialContext, NetDialer(true).DialContext
	}
	if o.DialSmall == nil {
		o.DialSmall = o.Dial
	}
	return &Dialer{addr: addr, tls: conf, below: below, options: o}, nil
}

// NetDialer makes TCP connections without TCP keepalive: transports have their own. If small
// is set neither end sends packets above 1280 bytes.
func NetDialer(small bool) *net.Dialer {
	d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
	if small {
		d.Control = func(_, _ string, c syscall.RawConn) error {
			// Set before the connection is made, it holds for both ends (RFC 9293, 3.7.1).
			return c.Control(func(fd uintptr) { setTCP(int(fd), unix.TCP_MAXSEG, smallSegment) })
		}
	}
	return d
}

// A settler is a connection of tunnel.Options.Dial that is told whether its peer has answered:
// yes after a handshake, no if the handshake was canceled. If the handshake failed it is closed
// only.
type settler interface{ Settled(answered bool) }

// notAnswered is the error of a handshake on c that did not end in time. The connection may know
// more of its peer; its Unanswered returns nil if the peer has answered.
func notAnswered(c net.Conn, err error) error {
	if u, ok := c.(interface{ Unanswered() error }); ok {
		if why := u.Unanswered(); why != nil {
			return why
		}
	}
	return fmt.Errorf("TLS handshake with %v: %w", c.RemoteAddr(), err)
}

// connect makes a connection and does its TLS handshake.
func (d *Dialer) connect(ctx context.Context, small bool) (*tls.Conn, error) {
	dial := d.options.Dial
	if small {
		dial = d.options.DialSmall
	}
	raw, err := dial(ctx, "tcp", d.addr)
	if err != nil {
		return nil, err
	}
	connected := time.Now()
	d.packetSize.connected(connected)
	tune(raw, d.options)
	m := &dialedConn{Conn: raw}
	conf := d.tls
	if roots := d.options.Roots; roots != nil {
		conf = conf.Clone()
		conf.RootCAs = roots()
	}
	c := tls.Client(d.below(m), conf)
	if err = c.HandshakeContext(ctx); err == nil {
		err = checkALPN(c.ConnectionState(), conf.NextProtos)
	}
	if s, ok := raw.(settler); ok && (err == nil || errors.Is(ctx.Err(), context.Canceled)) {
		s.Settled(err == nil)
	}
	if err != nil {
		if ctx.Err() == nil {
			d.packetSize.handshakeFailed(time.Since(connected))
		} else if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = notAnswered(raw, err)
		}
		_ = raw.Close() // err is what is reported
		return nil, err
	}
	d.packetSize.handshakeDone(small)
	m.packetSize, m.established = &d.packetSize, time.Now()
	return c, nil
}

// Moved says that the way to the server is another one now: how long the connections lived that are
// replaced for that tells nothing about the size of packets.
func (d *Dialer) Moved() { d.packetSize.moved(time.Now()) }

// Again makes another connection. The caller owns it.
func (d *Dialer) Again(ctx context.Context) (*tls.Conn, error) {
	return d.connect(ctx, d.packetSize.next(time.Now()))
}
