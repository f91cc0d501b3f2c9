// Dialer: TLS connections to one server, one after the other or at a time.

package carrier

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// tickets is how many of the server's tickets a Dialer keeps. One is enough to resume
// with; a server hands out one a connection.
const tickets = 2

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

// NewDialer makes a Dialer to addr, HOST:PORT, that offers these protocols (RFC
// 7301). below, which may be nil, makes what goes between TLS and each connection.
func NewDialer(addr string, alpn []string, below func(net.Conn) net.Conn, o tunnel.Options) (*Dialer, error) {
	conf, err := ClientTLS(o.TLS, addr, alpn...)
	if err != nil {
		return nil, err
	}
	if err := checkCongestion(o.Link.Congestion); err != nil {
		return nil, err
	}
	if conf.ClientSessionCache == nil {
		conf.ClientSessionCache = tls.NewLRUClientSessionCache(tickets)
	}
	if o.Dial == nil {
		// Who is dead is found out above, and at a lower price.
		o.Dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1, ControlContext: DialControl}).DialContext
	}
	if below == nil {
		below = func(c net.Conn) net.Conn { return c }
	}
	return &Dialer{addr: addr, tls: conf, below: below, options: o}, nil
}

// connect makes a connection and shakes hands on it.
func (d *Dialer) connect(ctx context.Context, small bool) (*tls.Conn, error) {
	if small {
		ctx = SmallPackets(ctx)
	}
	raw, err := d.options.Dial(ctx, "tcp", d.addr)
	if err != nil {
		return nil, err
	}
	d.packets.reach(time.Now())
	tune(raw, d.options)
	c := tls.Client(d.below(raw), d.tls)
	if err = c.HandshakeContext(ctx); err == nil {
		err = checkALPN(c.ConnectionState(), d.tls.NextProtos)
	}
	if err != nil {
		_ = raw.Close() // the handshake's error is the news
		return nil, err
	}
	return c, nil
}

// Again makes a further connection. The caller owns it.
func (d *Dialer) Again(ctx context.Context) (*tls.Conn, error) {
	small := d.packets.next(time.Now())
	c, err := d.connect(ctx, small)
	if err != nil {
		return nil, err
	}
	d.packets.worked(time.Now(), small, true)
	return c, nil
}
