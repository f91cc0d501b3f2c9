// Muting: having a peer look for another path by sending it nothing on this one.

package overquic

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// longestMute bounds for how long an address is muted, slowest aside, however
	// seldom the peer asks.
	longestMute = time.Minute
	// maxMuted is how many addresses may be muted at a time. Others are not.
	maxMuted = 4096
)

// mutes are the addresses to which a listener's socket sends nothing for now.
type mutes struct {
	any atomic.Bool // whether there are some; so that all others cost nothing

	mu    sync.Mutex // guards the following
	until map[netip.AddrPort]time.Time
}

// mute mutes an address until a time.
func (m *mutes) mute(addr net.Addr, until time.Time) {
	u, ok := addr.(*net.UDPAddr)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key(u)
	if _, again := m.until[k]; !again && len(m.until) >= maxMuted {
		return
	}
	if m.until == nil {
		m.until = map[netip.AddrPort]time.Time{}
	}
	m.until[k] = until
	m.any.Store(true)
}

// unmute ends that, if it has not ended.
func (m *mutes) unmute(addr net.Addr) {
	if u, ok := addr.(*net.UDPAddr); ok && m.any.Load() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.dropLocked(key(u))
	}
}

// has says whether an address is muted.
func (m *mutes) has(addr *net.UDPAddr) bool {
	if !m.any.Load() || addr == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key(addr)
	until, ok := m.until[k]
	if ok && !time.Now().Before(until) {
		m.dropLocked(k)
		ok = false
	}
	return ok
}

func (m *mutes) dropLocked(k netip.AddrPort) {
	delete(m.until, k)
	m.any.Store(len(m.until) > 0)
}

// key is an address as a map's key, the same whichever kind of socket tells it.
func key(a *net.UDPAddr) netip.AddrPort {
	p := a.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
