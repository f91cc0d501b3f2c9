// Older agents: those of the protocol hawser/1, which get a refusal that names the version to
// install.

package server

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

// olderProtocols are the ALPN names that older agents offer over TCP. It is never changed.
var olderProtocols = [...]string{"hawser/1+link", "hawser/1+h2+link", "hawser/1", "hawser/1+h2"}

const (
	// olderTimeout bounds the exchange with an older agent.
	olderTimeout = 5 * time.Second
	// olderHeader and olderMost are the sizes of a message's header and of the first
	// message that an older agent may send: version u8, kind u8, length u16, body.
	olderHeader, olderMost = 4, 1 << 10
	olderVersion           = 1
	olderRefused           = 5   // a kind of message: code u8, text
	olderText              = 256 // at most, of a refusal
)

// NewOlder makes a listener without sessions: it refuses each agent of an older protocol, by
// that protocol's refusal with the version to install, and logs that once a minute for each
// address. It owns ln.
func NewOlder(ln net.Listener, version string, o tunnel.Options) (tunnel.Listener, error) {
	var logged strangers.LogLimiter
	return carrier.Listen(ln, "hawser/1", olderProtocols[:], carrier.Bare, o, func(ctx context.Context, c *tls.Conn) (tunnel.Session, error) {
		defer context.AfterFunc(ctx, func() { _ = c.NetConn().Close() })()
		defer func() { _ = c.Close() }() // it has the refusal, or has left
		who, _ := carrier.Identity(carrier.PeerOf(c, "hawser/1"))
		if more, ok := logged.Allow(c.RemoteAddr()); ok {
			o.Logger().Warn("agent is too old: install the version of this server on its node",
				"addr", c.RemoteAddr().String(), "identity", who, "protocol", c.ConnectionState().NegotiatedProtocol, "version", version, "others", more)
		}
		refuseOlder(c, version)
		return nil, nil
	})
}

// refuseOlder answers the first message of an older agent.
func refuseOlder(c *tls.Conn, version string) {
	_ = c.SetDeadline(time.Now().Add(olderTimeout)) // what fails now fails below
	head := make([]byte, olderHeader)
	if _, err := io.ReadFull(c, head); err != nil {
		return
	}
	if _, err := io.CopyN(io.Discard, c, int64(min(binary.BigEndian.Uint16(head[2:]), olderMost))); err != nil {
		return
	}
	text := fmt.Sprintf("this agent is too old for the server: install the hawser-agent that belongs to it, %s", version)
	text = text[:min(len(text), olderText)]
	m := binary.BigEndian.AppendUint16([]byte{olderVersion, olderRefused}, uint16(1+len(text)))
	// There is no remedy for an error.
	_, _ = c.Write(append(append(m, byte(tunnel.Denied)), text...))
}
