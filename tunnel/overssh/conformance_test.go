// Sessions as package tunneltest wants them: the accepted streams are the connections of a
// target behind sshd.

package overssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// conformance makes a session, through a relay that can cut it, and its target.
func (l *lab) conformance(t testing.TB, o tunnel.Options) (dialer, accepter tunnel.Session) {
	t.Helper()
	relay := tunneltest.NewRelay(t, l.addr)
	cfg := l.config(t)
	cfg.addr, cfg.MaxStreams = relay.Addr(), o.MaxStreams
	d, _ := run(t, cfg)
	target := &node{Session: carrier.NewSession(tunnel.Peer{}, 0), ln: listen(t), relay: relay, accepted: make(chan tunnel.Stream)}
	target.Go(target.serve)
	context.AfterFunc(d.Context(), func() { target.end(fmt.Errorf("%w: the dialing end has ended", tunnel.Lost)) })
	return opener{d, target.ln.Addr().String()}, target
}

// An opener dials one target.
type opener struct {
	*Session
	target string
}

func (o opener) Open(ctx context.Context) (tunnel.Stream, error) {
	return o.Dial(ctx, "tcp", o.target)
}

// Accept waits in vain: the node cannot open streams.
func (o opener) Accept(ctx context.Context) (tunnel.Stream, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-o.Context().Done():
		return nil, context.Cause(o.Context())
	}
}

// A node is the far end: a target, and the relay in front of its sshd.
type node struct {
	*carrier.Session
	ln       net.Listener
	relay    *tunneltest.Relay
	accepted chan tunnel.Stream
}

func (n *node) serve() {
	var all []net.Conn // a connection that nobody refers to is closed by the garbage collector
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	for {
		c, err := n.ln.Accept()
		if err != nil {
			return
		}
		all = append(all, c)
		select {
		case n.accepted <- c.(*net.TCPConn):
		case <-n.Alive().Done():
		}
	}
}

// end cuts the session before the target's connections are closed, which would look like ends.
func (n *node) end(why error) {
	n.relay.Cut()
	n.End(why)
	_ = n.ln.Close() // ends serve
}

func (n *node) Close() error {
	n.end(tunnel.ErrSessionClosed)
	return n.Session.Close()
}

func (n *node) Open(context.Context) (tunnel.Stream, error) {
	return nil, errors.New("a node cannot open streams")
}

func (n *node) Accept(ctx context.Context) (tunnel.Stream, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	select {
	case c := <-n.accepted:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-n.Alive().Done():
		return nil, context.Cause(n.Alive())
	}
}
