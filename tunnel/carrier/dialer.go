// Dialer: TLS connections to one server, one after the other or at a time.

package carrier

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// tickets is how many of the server's tickets a Dialer keeps. One is enough to resume
// with; a server hands out one a connection.
const tickets = 2

// smallSegment is the TCP segment for which there is room on every path that IPv6
// may take: 1280 bytes (RFC 8200, 5) without the headers of IP and of TCP.
const smallSegment = 1280 - 40 - 20

// A Dialer makes TLS connections to one server. It remembers what it has found out
// about the path: handshakes after the first are resumptions (RFC 8446, 2.2), and
// packets stay small where large ones vanish. All methods may be called at the same
// time.
type Dialer struct {
	addr    string
	tls     *tls.Config
	below   func(net.Conn) net.Conn
	options tunnel.Options
	packets packets
}

// Dial makes a first connection to the server at addr, HOST:PORT, and a Dialer for others.
// They offer a protocol (RFC 7301). below, which may be nil, makes what goes between TLS and
// each connection. The caller owns the connection.
func Dial(ctx context.Context, addr, alpn string, below func(net.Conn) net.Conn, o tunnel.Options) (*Dialer, *tls.Conn, error) {
	conf, err := ClientTLS(o.TLS, addr, alpn)
	if err == nil {
		err = checkCongestion(o.Link.Congestion)
	}
	if err != nil {
		return nil, nil, err
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
	if below == nil {
		below = func(c net.Conn) net.Conn { return c }
	}
	d := &Dialer{addr: addr, tls: conf, below: below, options: o}
	c, err := d.first(ctx)
	return d, c, err
}

// NetDialer makes TCP connections that are not kept alive: who is dead is found out
// above, and at a lower price. With small packets neither end sends one above 1280 bytes,
// on systems that can limit them.
func NetDialer(small bool) *net.Dialer {
	d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
	if small {
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { limitSegments(int(fd), smallSegment) })
		}
	}
	return d
}

// connect makes a connection and shakes hands on it.
func (d *Dialer) connect(ctx context.Context, small bool) (*tls.Conn, error) {
	dial := d.options.Dial
	if small {
		dial = d.options.DialSmall
	}
	raw, err := dial(ctx, "tcp", d.addr)
	if err != nil {
		return nil, err
	}
	d.packets.reach(time.Now())
	tune(raw, d.options)
	m := &made{Conn: raw}
	c := tls.Client(d.below(m), d.tls)
	if err = c.HandshakeContext(ctx); err == nil {
		err = checkALPN(c.ConnectionState(), d.tls.NextProtos)
	}
	if err != nil {
		_ = raw.Close() // the handshake's error is the news
		return nil, err
	}
	d.packets.worked(small)
	m.packets, m.since = &d.packets, time.Now()
	return c, nil
}

// Again makes a further connection. The caller owns it.
func (d *Dialer) Again(ctx context.Context) (*tls.Conn, error) {
	return d.connect(ctx, d.packets.next(time.Now()))
}
