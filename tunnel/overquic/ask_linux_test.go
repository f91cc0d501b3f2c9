// Tests of what becomes of a session whose peer says nothing any more.

package overquic

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A socket drops what it is given, and what comes, once it is deaf. The one below stays
// open when it is closed.
type socket struct {
	net.PacketConn
	deaf chan struct{} // closed when it is
}

func (s *socket) Close() error { return nil }

func (s *socket) isDeaf() bool {
	select {
	case <-s.deaf:
		return true
	default:
		return false
	}
}

func (s *socket) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		n, from, err := s.PacketConn.ReadFrom(p)
		if err != nil || !s.isDeaf() {
			return n, from, err
		}
	}
}

func (s *socket) WriteTo(p []byte, to net.Addr) (int, error) {
	if s.isDeaf() {
		return len(p), nil
	}
	return s.PacketConn.WriteTo(p, to)
}

// SetReadBuffer and SetWriteBuffer are there because the library complains without them.
func (s *socket) SetReadBuffer(int) error  { return nil }
func (s *socket) SetWriteBuffer(int) error { return nil }

// A session whose peer's port is nobody's any more was lost, and one whose peer only says
// nothing is dead, whatever address the server listens on.
func TestKilledPeer(t *testing.T) {
	for _, at := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "127.0.0.1"}, {"[::1]:0", "::1"}, {"[::]:0", "127.0.0.2"}, {"[::]:0", "::1"}, {"0.0.0.0:0", "127.0.0.2"},
	} {
		for name, want := range map[string]tunnel.Code{"killed": tunnel.Lost, "silent": tunnel.Dead} {
			t.Run(name+" "+at.listen+" "+at.dial, func(t *testing.T) {
				t.Parallel()
				pc, err := net.ListenPacket("udp", at.listen)
				if err != nil {
					t.Fatal(err)
				}
				o := tunnel.Options{TLS: tunneltest.TLS(t), Link: tunnel.LinkOptions{Keepalive: time.Millisecond}}
				l, err := ListenPacket(pc, o)
				if err != nil {
					t.Fatal(err)
				}
				accepted := tunneltest.Serve(t, l)
				peer := &socket{deaf: make(chan struct{})}
				to := &net.UDPAddr{IP: net.ParseIP(at.dial), Port: pc.LocalAddr().(*net.UDPAddr).Port}
				p, err := openSockets(t.Context(), to, new(net.ListenConfig).ListenPacket)
				if err != nil {
					t.Fatal(err)
				}
				peer.PacketConn, p.pair[0].Conn = p.pair[0].Conn, peer
				a, err := dial(t.Context(), "server:1", to, o, p)
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close()
				b := <-accepted
				_, far := open(t, a, b)
				close(peer.deaf)
				if name == "killed" {
					_ = peer.PacketConn.Close()
				}
				defer peer.PacketConn.Close()
				_, rerr := far.Read(make([]byte, 1))
				<-b.Context().Done()
				for what, err := range map[string]error{"read": rerr, "cause": context.Cause(b.Context())} {
					if tunnel.CodeOf(err) != want {
						t.Errorf("%s: %v", what, err)
					}
				}
			})
		}
	}
}

// near is a socket that listens, and far another one where a peer is.
func nearAndFar(t *testing.T) (l *listener, far *net.UDPConn) {
	t.Helper()
	ln, _ := listen(t, tunnel.Options{})
	far, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return ln.(*listener), far
}

// Whoever says something has not left, not even when it leaves then.
func TestAnswerIsLife(t *testing.T) {
	l, far := nearAndFar(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 100)
		_ = far.SetReadDeadline(time.Now().Add(patience))
		n, from, err := far.ReadFrom(buf)
		if err != nil || n != probeSize || buf[0]&0xc0 != 0 {
			t.Errorf("probe of %d bytes: %v", n, err)
		}
		_, _ = far.WriteTo([]byte("here"), from)
		_ = far.Close()
	})
	if l.vacant(l.Addr(), far.LocalAddr()) {
		t.Error("nobody has the port of a peer that has answered")
	}
	wg.Wait()
}

// A peer that comes back from the same port while it is asked after gets through.
func TestPeerComesBack(t *testing.T) {
	l, far := nearAndFar(t)
	tr := &quic.Transport{Conn: far}
	defer tr.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	early, stop := context.WithCancel(ctx)
	stop()
	_, _, _ = tr.ReadNonQUICPacket(early, nil) // from now on it keeps those
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if l.vacant(l.Addr(), far.LocalAddr()) {
			t.Error("nobody has the port of a peer that is there")
		}
	})
	if n, _, err := tr.ReadNonQUICPacket(ctx, make([]byte, 100)); err != nil || n != probeSize {
		t.Fatalf("probe of %d bytes: %v", n, err)
	}
	c, err := tr.Dial(ctx, l.Addr(), bareTLS(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWithError(0, "")
}

// When many sessions end at once no more than so many peers are asked after.
func TestAskingIsBounded(t *testing.T) {
	l, far := nearAndFar(t)
	_ = far.Close()
	for range maxAsked {
		l.asking <- struct{}{}
	}
	if l.vacant(l.Addr(), far.LocalAddr()) {
		t.Error("one more was asked after")
	}
	<-l.asking
	for range 3 { // each gives its place back
		if !l.vacant(l.Addr(), far.LocalAddr()) {
			t.Error("nobody was asked")
		}
	}
}

// Sockets that cannot be shared are served, and nobody is asked.
func TestNoSocket(t *testing.T) {
	_, far := nearAndFar(t)
	o := tunnel.Options{TLS: tunneltest.TLS(t)}
	l, err := ListenPacket(&socket{PacketConn: far}, o)
	if err != nil {
		t.Fatal(err)
	}
	if l.(*listener).vacant(l.Addr(), l.Addr()) {
		t.Error("somebody was asked")
	}
}

// The port is refused to whoever does not share it, as ever.
func TestPortIsTaken(t *testing.T) {
	l, _ := nearAndFar(t)
	pc, err := net.ListenPacket("udp4", l.Addr().String())
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("%v, %v", pc, err)
	}
}

// told6 and told4 are what the system says of an ICMP message of [::1] or 127.0.0.1.
func told4(origin, kind, code byte) []byte {
	return control(unix.IPPROTO_IP, unix.IP_RECVERR, origin, kind, code, append(make([]byte, 4), 127, 0, 0, 1))
}

func told6(origin, kind, code byte) []byte {
	return control(unix.IPPROTO_IPV6, unix.IPV6_RECVERR, origin, kind, code, append(make([]byte, 8), net.IPv6loopback...))
}

func control(level, option int32, origin, kind, code byte, sender []byte) []byte {
	data := append([]byte{111, 0, 0, 0, origin, kind, code, 0, 0, 0, 0, 0, 0, 0, 0, 0}, sender...)
	b := make([]byte, unix.CmsgSpace(len(data)))
	m := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	m.Level, m.Type = level, option
	m.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

// What proves that nobody has the port, and what does not: above all what anybody might
// have sent who has not seen the probe.
func TestProves(t *testing.T) {
	probe := bytes.Repeat([]byte("0123456789abcdef"), 2)
	other := bytes.Repeat([]byte{7}, probeSize)
	four, six := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	elsewhere := netip.MustParseAddr("127.0.0.2")
	for name, tt := range map[string]struct {
		quote, control []byte
		peer           netip.Addr
		want           bool
	}{
		"IPv4":                      {probe, told4(2, 3, 3), four, true},
		"IPv4, cut":                 {probe[:minQuote], told4(2, 3, 3), four, true},
		"IPv6":                      {probe, told6(3, 1, 4), six, true},
		"IPv6 with a zone":          {probe, told6(3, 1, 4), six.WithZone("lo"), true},
		"quotes something else":     {other, told4(2, 3, 3), four, false},
		"quotes something else, 6":  {other, told6(3, 1, 4), six, false},
		"quotes the end":            {append(probe[:31:31], 'X'), told4(2, 3, 3), four, false},
		"quotes nothing":            {nil, told4(2, 3, 3), four, false},
		"quotes too little":         {probe[:minQuote-1], told4(2, 3, 3), four, false},
		"host unreachable":          {probe, told4(2, 3, 1), four, false},
		"prohibited":                {probe, told4(2, 3, 13), four, false},
		"time exceeded":             {probe, told4(2, 11, 3), four, false},
		"address unreachable":       {probe, told6(3, 1, 3), six, false},
		"of this system":            {probe, told4(1, 3, 3), four, false},
		"of this system, 6":         {probe, told6(1, 1, 4), six, false},
		"IPv6's codes over IPv4":    {probe, told4(2, 1, 4), four, false},
		"of somebody on the way":    {probe, told4(2, 3, 3), elsewhere, false},
		"of somebody on the way, 6": {probe, told6(3, 1, 4), netip.MustParseAddr("::2"), false},
		"another message":           {probe, control(unix.IPPROTO_IP, unix.IP_TTL, 2, 3, 3, append(make([]byte, 4), 127, 0, 0, 1)), four, false},
		"no sender":                 {probe, control(unix.IPPROTO_IP, unix.IP_RECVERR, 2, 3, 3, nil), four, false},
		"no message":                {probe, nil, four, false},
		"half a message":            {probe, told4(2, 3, 3)[:20], four, false},
	} {
		if got := proves(tt.quote, tt.control, probe, tt.peer); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
