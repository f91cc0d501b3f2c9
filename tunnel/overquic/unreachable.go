// Port unreachable: how the accepting end learns that nobody has the peer's port any
// more, although the peer's machine is there. A TCP connection whose process is killed
// is closed by its system; a QUIC connection is not.

package overquic

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/hawser-project/hawser/tunnel"
)

const (
	// maxProbes is how many probes go to a peer that has fallen silent: one may be
	// lost, and systems limit how many ICMP messages they send.
	maxProbes = 3
	// maxICMP is how much of an ICMP message is read, in bytes, with a header of IPv4. Systems quote up to
	// 576 bytes of a packet (RFC 1812, 4.3.2.3), or 1,232 (RFC 4443, 3.1).
	maxICMP = 1500
	// maxFailures is how often reading may fail in a row before it is given up.
	maxFailures = 100
)

// A probe is a datagram that is no QUIC packet, so that an endpoint which has the port
// drops it (RFC 9000, 17.2: the fixed bit is zero). Whoever has not seen the 120 random
// bits of it cannot quote it: a forged ICMP message proves nothing.
type probe [16]byte

// An inquiry asks whether the ports of silent peers are in use. It reads ICMP on
// sockets of its own, because an error on the one that all sessions share would be
// everybody's. They need CAP_NET_RAW: without it nothing is asked.
type inquiry struct {
	conn  *net.UDPConn
	icmp  []*net.IPConn
	mu    sync.Mutex // guards the following and the probe of each session
	asked map[probe]*session
}

// inquire opens the sockets for the peers of conn, which stays the caller's. It
// returns nil if the system does not let us.
func inquire(conn *net.UDPConn, log *slog.Logger) *inquiry {
	q := &inquiry{conn: conn, asked: map[probe]*session{}}
	var wrong error
	for _, network := range []string{"ip4:icmp", "ip6:ipv6-icmp"} {
		c, err := net.ListenIP(network, nil)
		if err != nil {
			wrong = errors.Join(wrong, err)
			continue
		}
		filter(c, network)
		q.icmp = append(q.icmp, c)
	}
	if wrong != nil {
		log.Debug("ICMP is not read: a killed agent with a QUIC session looks like a silent one", "err", wrong)
	}
	if len(q.icmp) == 0 {
		return nil
	}
	return q
}

// filter has c read nothing but what may matter. A system that cannot do that leaves
// it to the parser.
func filter(c *net.IPConn, network string) {
	if network == "ip4:icmp" {
		var f ipv4.ICMPFilter
		f.SetAll(true)
		f.Accept(ipv4.ICMPTypeDestinationUnreachable)
		_ = ipv4.NewPacketConn(c).SetICMPFilter(&f)
		return
	}
	var f ipv6.ICMPFilter
	f.SetAll(true)
	f.Accept(ipv6.ICMPTypeDestinationUnreachable)
	_ = ipv6.NewPacketConn(c).SetICMPFilter(&f)
}

// run reads ICMP until close.
func (q *inquiry) run() {
	var wg sync.WaitGroup
	for _, c := range q.icmp {
		wg.Go(func() { q.read(c) })
	}
	wg.Wait()
}

// read reads from c until it is closed, or has failed maxFailures times in a row: an
// error of the network is told once, and the next read may do better.
func (q *inquiry) read(c *net.IPConn) {
	buf := make([]byte, maxICMP)
	for failed := 0; failed < maxFailures; {
		n, _, err := c.ReadFromIP(buf) // without the header of IPv4
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			failed++
			continue
		}
		failed = 0
		if p, to, ok := quoted(buf[:n]); ok {
			q.answered(p, to)
		}
	}
}

func (q *inquiry) close() {
	for _, c := range q.icmp {
		_ = c.Close() // nothing could be done about it
	}
}

// ask sends a probe to where a session's peer was. The one before is forgotten.
func (q *inquiry) ask(s *session) {
	addr, ok := s.addr().(*net.UDPAddr)
	if !ok {
		return
	}
	var p probe
	_, _ = rand.Read(p[:]) // never fails
	p[0] = 0
	q.mu.Lock()
	delete(q.asked, s.probe)
	s.probe, s.probed, q.asked[p] = p, key(addr), s
	q.mu.Unlock()
	_, _ = q.conn.WriteToUDP(p[:], addr) // it is asked again
}

// forget ends asking for a session. There is one probe a session at most.
func (q *inquiry) forget(s *session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.asked, s.probe)
}

// answered tells the session whose probe to an address was quoted. Of another address
// it says nothing: that is of whoever has passed the probe on, on this machine.
func (q *inquiry) answered(p probe, to netip.AddrPort) {
	q.mu.Lock()
	s := q.asked[p]
	if s != nil && s.probed != to {
		s = nil
	}
	q.mu.Unlock()
	if s != nil {
		s.vacant()
	}
}

// quoted returns the probe that an ICMP message quotes, and the address to which that
// was sent, if the message says that nobody has the port there (RFC 792; RFC 4443,
// 3.1). msg is of either version of IP.
func quoted(msg []byte) (p probe, to netip.AddrPort, ok bool) {
	const udpHeader = 8
	packet, addr := unreachable(msg)
	if len(packet) < udpHeader+len(p) {
		return p, to, false
	}
	copy(p[:], packet[udpHeader:])
	return p, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(packet[2:])), true
}

// unreachable returns the UDP packet, with its header, that an ICMP message says has
// found no port, and where it was sent to.
func unreachable(msg []byte) ([]byte, netip.Addr) {
	if len(msg) == 0 {
		return nil, netip.Addr{}
	}
	four := ipv4.ICMPType(msg[0]) == ipv4.ICMPTypeDestinationUnreachable
	protocol, code := ipv6.ICMPTypeDestinationUnreachable.Protocol(), 4
	if four {
		protocol, code = ipv4.ICMPTypeDestinationUnreachable.Protocol(), 3
	}
	m, err := icmp.ParseMessage(protocol, msg)
	if err != nil || m.Code != code {
		return nil, netip.Addr{}
	}
	body, ok := m.Body.(*icmp.DstUnreach)
	if !ok {
		return nil, netip.Addr{}
	}
	if four {
		h, herr := icmp.ParseIPv4Header(body.Data)
		if herr != nil || h.Protocol != syscall.IPPROTO_UDP || h.Len > len(body.Data) {
			return nil, netip.Addr{}
		}
		addr, _ := netip.AddrFromSlice(h.Dst)
		return body.Data[h.Len:], addr.Unmap()
	}
	h, err := ipv6.ParseHeader(body.Data)
	if err != nil || h.NextHeader != syscall.IPPROTO_UDP {
		return nil, netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(h.Dst)
	return body.Data[ipv6.HeaderLen:], addr
}

// asks says whether there is a way to ask.
func (s *session) asks() bool { return s.below != nil && s.below.inquiry != nil }

// inquire asks, while nothing is heard, whether the peer's port is in use. Only watch
// calls it.
func (s *session) inquire(now step) {
	switch {
	case now.back:
		s.below.inquiry.forget(s)
		return
	case now.lost:
		s.probes = 0
	case s.hearer.parked.IsZero():
		return
	}
	if s.probes < maxProbes {
		s.probes++
		s.below.inquiry.ask(s)
	}
}

// vacant notes that nobody has the peer's port while the path counts as dead.
func (s *session) vacant() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link.Parked.IsZero() {
		return
	}
	s.link.Cause = fmt.Errorf("%w: %w: nobody has the port, its system says; nothing heard for %v", tunnel.Lost, syscall.ECONNREFUSED, time.Since(s.link.Heard).Round(time.Second))
	if s.tell != nil {
		s.tell(s.link)
	}
}
