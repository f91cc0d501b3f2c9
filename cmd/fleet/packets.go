// Packets: QUIC's sockets, which a partition blocks.

package fleet

import (
	"context"
	"net"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overquic"
)

// wrapTransport is t with QUIC's sockets subject to the partition. TCP connections are
// subject to it through Options.Dial.
func (g *partition) wrapTransport(t tunnel.Transport) tunnel.Transport {
	if t.Name == overquic.Name {
		return overquic.TransportOn(g.listenPacket)
	}
	return t
}

// listenPacket opens a socket that the partition blocks.
func (g *partition) listenPacket(ctx context.Context, network, address string) (net.PacketConn, error) {
	if err := g.pass(ctx); err != nil {
		return nil, err
	}
	pc, err := new(net.ListenConfig).ListenPacket(ctx, network, address)
	if err != nil {
		return nil, err
	}
	p := &packets{PacketConn: pc, partition: g}
	if !g.add(p) {
		_ = pc.Close() // it came too late
		return nil, &net.OpError{Op: "listen", Net: network, Err: errDown}
	}
	return p, nil
}

// packets is a socket that a partition blocks: meanwhile, what is sent and what comes
// is dropped.
type packets struct {
	net.PacketConn
	partition *partition
}

// ReadFrom reads the next packet that comes while the network is not partitioned.
func (p *packets) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := p.PacketConn.ReadFrom(b)
		if err != nil || !p.partition.isBlocked() {
			return n, from, err
		}
	}
}

// WriteTo sends a packet, which is lost during a partition.
func (p *packets) WriteTo(b []byte, to net.Addr) (int, error) {
	if p.partition.isBlocked() {
		return len(b), nil
	}
	return p.PacketConn.WriteTo(b, to)
}

// Close closes the socket.
func (p *packets) Close() error {
	p.partition.remove(p)
	return p.PacketConn.Close()
}

// reset takes the socket away from its connection, whose next packet fails.
func (p *packets) reset() error { return p.Close() }

// SetReadBuffer has the system keep that many bytes for the socket.
func (p *packets) SetReadBuffer(n int) error { return p.PacketConn.(*net.UDPConn).SetReadBuffer(n) }

// SetWriteBuffer likewise, for what is sent.
func (p *packets) SetWriteBuffer(n int) error { return p.PacketConn.(*net.UDPConn).SetWriteBuffer(n) }
