// Packets: sockets of QUIC that pass a gate.

package fleet

import (
	"context"
	"net"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overquic"
)

// behind is t as whoever is behind the gate uses it. What it dials with Options.Dial
// passes the gate by itself; QUIC has sockets of its own.
func (g *gate) behind(t tunnel.Transport) tunnel.Transport {
	if t.Name == overquic.Name {
		return overquic.TransportOn(g.listenPacket)
	}
	return t
}

// listenPacket opens a socket whose packets pass the gate.
func (g *gate) listenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	if err := g.pass(ctx); err != nil {
		return nil, err
	}
	pc, err := new(net.ListenConfig).ListenPacket(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p := &packets{PacketConn: pc, gate: g}
	if !g.add(p) {
		_ = pc.Close() // it came too late
		return nil, &net.OpError{Op: "listen", Net: network, Err: errDown}
	}
	return p, nil
}

// packets is a socket that passes a gate: while it is shut, what is sent and what comes
// is dropped.
type packets struct {
	net.PacketConn
	gate *gate
}

// ReadFrom reads the next packet that comes while the gate is open.
func (p *packets) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := p.PacketConn.ReadFrom(b)
		if err != nil || !p.gate.isShut() {
			return n, from, err
		}
	}
}

// WriteTo sends a packet, which is lost while the gate is shut.
func (p *packets) WriteTo(b []byte, to net.Addr) (int, error) {
	if p.gate.isShut() {
		return len(b), nil
	}
	return p.PacketConn.WriteTo(b, to)
}

// Close closes the socket.
func (p *packets) Close() error {
	p.gate.remove(p)
	return p.PacketConn.Close()
}

// Abort takes the socket away from its connection, whose next packet fails.
func (p *packets) Abort() error { return p.Close() }

// SetReadBuffer has the system keep that many bytes for the socket.
func (p *packets) SetReadBuffer(n int) error { return p.PacketConn.(*net.UDPConn).SetReadBuffer(n) }

// SetWriteBuffer likewise, for what is sent.
func (p *packets) SetWriteBuffer(n int) error { return p.PacketConn.(*net.UDPConn).SetWriteBuffer(n) }
