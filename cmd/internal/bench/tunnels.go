// Control and node: a hub with a CONNECT front end, and agents.

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/server/connect"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// leaveTime is how long an agent lets streams finish when a run is over: none are
// wanted any more.
const leaveTime = time.Millisecond

// nodeName is the n-th node's, from 1.
func nodeName(n int) string { return fmt.Sprintf("node-%d", n) }

// newControl makes a hub that listens for one transport, as hawser server does for
// all of them, and a CONNECT front end on a unix socket.
func newControl(ctx context.Context, o order) (*part, error) {
	conf, err := servingTLS(o.Dir)
	if err != nil {
		return nil, err
	}
	p := new(part)
	l, err := p.listen(ctx, o.Transport, tunnel.Options{TLS: conf})
	if err != nil {
		return nil, err
	}
	hub, err := server.New(server.Config{Listeners: []tunnel.Listener{l}, DrainTimeout: -1})
	if err != nil {
		return nil, err
	}
	p.answer.Addr = l.Addr().String()
	p.run = append(p.run, hub.Run)
	p.wait = hub.Wait
	return p, p.front(ctx, o.Socket, hub.DialContext)
}

// listen listens for agents, over TCP behind the port that tells transports apart.
func (p *part) listen(ctx context.Context, transport string, o tunnel.Options) (tunnel.Listener, error) {
	if transport == QUIC {
		pc, err := new(net.ListenConfig).ListenPacket(ctx, "udp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("listen for agents: %w", err)
		}
		return overquic.ListenPacket(pc, o)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for agents: %w", err)
	}
	port, err := server.NewPort(server.PortConfig{Listener: l, Protocols: []string{qmux.ALPN, overyamux.ALPN, overh2.ALPN}})
	if err != nil {
		return nil, err
	}
	p.run = append(p.run, port.Run)
	switch transport {
	case QMux:
		return qmux.Listen(port.Tunnel(qmux.ALPN), o)
	case Yamux:
		return overyamux.Listen(port.Tunnel(overyamux.ALPN), o)
	case H2:
		return overh2.Listen(port.Tunnel(overh2.ALPN), o)
	default:
		return nil, fmt.Errorf("no listener for transport %q", transport)
	}
}

// front adds a CONNECT front end on a unix socket.
func (p *part) front(ctx context.Context, socket string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) error {
	s, err := connect.New(connect.Config{Dial: dial})
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen for CONNECT: %w", err)
	}
	p.run = append(p.run, func(ctx context.Context) error { return s.Serve(ctx, l) })
	return nil
}

// newNode makes the agents that the order asks for, of a node each.
func newNode(_ context.Context, o order) (*part, error) {
	transports := map[string]tunnel.Transport{
		QMux: qmux.Transport(), Yamux: overyamux.Transport(), H2: overh2.Transport(), QUIC: overquic.Transport(),
	}
	allow, err := agent.ParseTargets([]string{"127.0.0.1:*"})
	if err != nil {
		return nil, err
	}
	i, err := openIssuer(o.Dir)
	if err != nil {
		return nil, err
	}
	p := new(part)
	var agents []*agent.Agent
	for n := range o.Count {
		name := nodeName(o.First + n)
		conf, err := i.node(name)
		if err != nil {
			return nil, err
		}
		a, err := agent.New(agent.Config{
			Servers: []string{o.To}, NodeName: name, Transport: transports[o.Transport], TLS: conf,
			Allow: allow, DrainTimeout: leaveTime,
		})
		if err != nil {
			return nil, err
		}
		agents = append(agents, a)
		p.run = append(p.run, a.Run)
	}
	p.wait = func(ctx context.Context, _ int) error {
		var errs []error
		for _, a := range agents {
			errs = append(errs, a.Wait(ctx))
		}
		return errors.Join(errs...)
	}
	return p, nil
}
