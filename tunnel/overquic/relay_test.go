// A relay of packets that can be told to misbehave.

package overquic

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A relay is a NAT between clients and a server: each client address has a port of its
// own towards the server.
type relay struct {
	t      testing.TB
	pc     *net.UDPConn
	server *net.UDPAddr
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the following
	ports  map[netip.AddrPort]*net.UDPConn
	mute   bool // passes on nothing
	shut   bool // passes on nothing of clients that it does not know
	closed bool
}

// relayed makes a session through a relay.
func relayed(t testing.TB, o tunnel.Options) (dialer, accepter *session, r *relay) {
	t.Helper()
	l, accepted := listen(t, o)
	r = newRelay(t, l.Addr())
	o.TLS = tunneltest.TLS(t)
	s, err := Transport().Dial(t.Context(), r.pc.LocalAddr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	dialer, accepter = s.(*session), (<-accepted).(*session)
	t.Cleanup(func() { _, _ = dialer.Close(), accepter.Close() })
	return dialer, accepter, r
}

func newRelay(t testing.TB, server net.Addr) *relay {
	t.Helper()
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, pc: pc, server: server.(*net.UDPAddr), ports: map[netip.AddrPort]*net.UDPConn{}}
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

func (r *relay) upstream() {
	buf := make([]byte, 2048)
	for {
		n, from, err := r.pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if port := r.port(from); port != nil {
			_, _ = port.Write(buf[:n]) // a relay loses packets
		}
	}
}

// port is the one that belongs to a client; nil if its packets are lost.
func (r *relay) port(client netip.AddrPort) *net.UDPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mute {
		return nil
	}
	if p := r.ports[client]; p != nil || r.closed || r.shut {
		return p
	}
	p, err := net.DialUDP("udp4", nil, r.server)
	if err != nil {
		r.t.Errorf("relay: %v", err)
		return nil
	}
	r.ports[client] = p
	r.wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, err := p.Read(buf)
			if err != nil {
				return
			}
			if !r.muted() {
				_, _ = r.pc.WriteToUDPAddrPort(buf[:n], client) // as above
			}
		}
	})
	return p
}

func (r *relay) muted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mute
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

// set has the relay pass on nothing, or nothing of clients that it does not know.
func (r *relay) set(mute, shut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mute, r.shut = mute, shut
}
