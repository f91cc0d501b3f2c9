// A relay of packets that can be told to misbehave.

package overquic

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The directions of a relay, from the dialing end's view.
const (
	up   = 0
	down = 1
)

// A relay is a NAT between clients and a server: each client address has a port
// of its own towards the server.
type relay struct {
	t      testing.TB
	pc     *net.UDPConn
	server *net.UDPAddr
	wg     sync.WaitGroup

	drop    [2]atomic.Pointer[func(b []byte) bool]
	lag     atomic.Int64 // of what goes down, in nanoseconds
	packets [2]atomic.Int64
	bytes   [2]atomic.Int64 // with headers of UDP and IPv4

	mu     sync.Mutex // guards the following
	ports  map[netip.AddrPort]*net.UDPConn
	closed bool
}

func newRelay(t testing.TB, server net.Addr) *relay {
	t.Helper()
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	setReceiveBuffer(pc, bufferSize)
	r := &relay{
		t: t, pc: pc, server: server.(*net.UDPAddr),
		ports: map[netip.AddrPort]*net.UDPConn{},
	}
	r.wg.Go(r.upstream)
	t.Cleanup(func() {
		r.mu.Lock()
		r.closed = true
		_ = r.pc.Close()
		r.mu.Unlock()
		r.rebind()
		r.wg.Wait()
	})
	return r
}

func (r *relay) addr() string { return r.pc.LocalAddr().String() }

// pass says whether a packet goes on, and counts it.
func (r *relay) pass(way int, b []byte) bool {
	if drop := r.drop[way].Load(); drop != nil && (*drop)(b) {
		return false
	}
	r.packets[way].Add(1)
	r.bytes[way].Add(int64(len(b)) + 28)
	return true
}

func (r *relay) upstream() {
	buf := make([]byte, 2048)
	for {
		n, from, err := r.pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if port := r.port(from); port != nil && r.pass(up, buf[:n]) {
			_, _ = port.Write(buf[:n]) // a relay loses packets
		}
	}
}

// port is the one that belongs to a client.
func (r *relay) port(client netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.ports[client]; p != nil || r.closed {
		return p
	}
	p, err := net.DialUDP("udp4", nil, r.server)
	if err != nil {
		r.t.Errorf("relay: %v", err)
		return nil
	}
	setReceiveBuffer(p, bufferSize)
	r.ports[client] = p
	r.wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, err := p.Read(buf)
			if err != nil {
				return
			}
			if !r.pass(down, buf[:n]) {
				continue
			}
			if lag := time.Duration(r.lag.Load()); lag > 0 {
				late := bytes.Clone(buf[:n])
				time.AfterFunc(lag, func() { _, _ = r.pc.WriteToUDPAddrPort(late, client) })
				continue
			}
			_, _ = r.pc.WriteToUDPAddrPort(buf[:n], client) // as above
		}
	})
	return p
}

// rebind forgets which port belongs to whom.
func (r *relay) rebind() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c, p := range r.ports {
		_ = p.Close()
		delete(r.ports, c)
	}
}

// die gives back the ports of all clients, and gives out none any more.
func (r *relay) die() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.rebind()
}

// lose has a direction drop the packets that f says; nil means none.
func (r *relay) lose(way int, f func(b []byte) bool) {
	if f == nil {
		r.drop[way].Store(nil)
		return
	}
	r.drop[way].Store(&f)
}

// hole drops everything in both directions, or nothing.
func (r *relay) hole(on bool) {
	f := func([]byte) bool { return true }
	if !on {
		f = nil
	}
	r.lose(up, f)
	r.lose(down, f)
}

// Cut and Stall make a relay what tunneltest asks for.
func (r *relay) Cut()          { r.rebind() }
func (r *relay) Stall(on bool) { r.hole(on) }
