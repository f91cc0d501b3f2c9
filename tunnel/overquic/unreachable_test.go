// Tests of ports that nobody has any more.

package overquic

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/hawser-project/hawser/tunnel"
)

// causes follows why a session's path counts as dead. The func waits for a reason.
func causes(t *testing.T, s *session) func(what string, is func(error) bool) {
	t.Helper()
	told := make(chan error, 64)
	s.Tell(func(l tunnel.LinkState) {
		if !l.Parked.IsZero() {
			told <- l.Cause
		}
	})
	return func(what string, is func(error) bool) {
		t.Helper()
		var last error
		await(t, what, func() bool {
			select {
			case last = <-told:
				return is(last)
			default:
				return false
			}
		})
	}
}

// A machine whose agent was killed says so; a path that carries nothing says nothing,
// and neither does a machine that is not there.
func TestPortUnreachable(t *testing.T) {
	c, err := net.ListenIP("ip4:icmp", nil)
	if err != nil {
		t.Skip("reading ICMP needs CAP_NET_RAW: ", err)
	}
	_ = c.Close()
	_, b, r := relayed(t, tunnel.Options{Link: quick})
	cause := causes(t, b)

	r.hole(true)
	cause("silence", func(err error) bool { return errors.Is(err, tunnel.Dead) })
	asked := func() int {
		q := b.below.inquiry
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.asked)
	}
	await(t, "a probe", func() bool { return asked() == 1 })
	var forged probe
	_, _ = rand.Read(forged[:])
	q := b.below.inquiry
	q.mu.Lock()
	genuine, elsewhere := b.probe, netip.AddrPortFrom(b.probed.Addr(), b.probed.Port()+1)
	to := b.probed
	q.mu.Unlock()
	q.answered(forged, to)
	q.answered(genuine, elsewhere)
	if err := b.Link().Cause; !errors.Is(err, tunnel.Dead) {
		t.Errorf("of silence somebody made %v", err)
	}
	r.hole(false)
	await(t, "the path's return", func() bool { return !parked(b) })
	await(t, "that nothing is asked any more", func() bool { return asked() == 0 })

	r.die()
	cause("that nobody has the port", func(err error) bool {
		return errors.Is(err, syscall.ECONNREFUSED) && errors.Is(err, tunnel.Lost) && !errors.Is(err, tunnel.Dead)
	})
	if !parked(b) {
		t.Errorf("it is not parked any more: %+v, %v", b.Link(), context.Cause(b.Context()))
	}
}

// quoting is an ICMP message that quotes a packet with a probe.
func quoting(t testing.TB, six bool, code int, p probe) []byte {
	t.Helper()
	udp := append([]byte{1, 2, 0, 53, 0, 24, 0, 0}, p[:]...)
	m := &icmp.Message{Type: ipv4.ICMPTypeDestinationUnreachable, Code: code}
	if six {
		m.Type = ipv6.ICMPTypeDestinationUnreachable
		header := make([]byte, ipv6.HeaderLen)
		header[0], header[6] = 6<<4, syscall.IPPROTO_UDP
		copy(header[24:], net.IPv6loopback)
		m.Body = &icmp.DstUnreach{Data: append(header, udp...)}
	} else {
		h := &ipv4.Header{Version: 4, Len: ipv4.HeaderLen, TotalLen: ipv4.HeaderLen + len(udp), Protocol: syscall.IPPROTO_UDP, Src: net.IPv4(127, 0, 0, 1), Dst: net.IPv4(127, 0, 0, 1)}
		header, err := h.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		m.Body = &icmp.DstUnreach{Data: append(header, udp...)}
	}
	b, err := m.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestQuoted(t *testing.T) {
	p := probe{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	for name, tt := range map[string]struct {
		six  bool
		code int
		cut  int // bytes off the end
		ok   bool
	}{
		"IPv4":              {false, 3, 0, true},
		"IPv4, host":        {false, 1, 0, false},
		"IPv4, cut":         {false, 3, 1, false},
		"IPv4, header only": {false, 3, len(p), false},
		"IPv6":              {true, 4, 0, true},
		"IPv6, address":     {true, 3, 0, false},
		"IPv6, cut":         {true, 4, 1, false},
	} {
		msg := quoting(t, tt.six, tt.code, p)
		want := netip.MustParseAddrPort("127.0.0.1:53")
		if tt.six {
			want = netip.MustParseAddrPort("[::1]:53")
		}
		got, to, ok := quoted(msg[:len(msg)-tt.cut])
		if ok != tt.ok || ok && (got != p || to != want) {
			t.Errorf("%s: %v, %v, %t", name, got, to, ok)
		}
	}
}

func FuzzQuoted(f *testing.F) {
	for _, six := range []bool{false, true} {
		f.Add(quoting(f, six, 3, probe{}))
		f.Add(quoting(f, six, 4, probe{1}))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		before := slices.Clone(msg)
		p, _, ok := quoted(msg)
		if !slices.Equal(msg, before) {
			t.Error("the message was changed")
		}
		if ok && !slices.Contains(msg, p[0]) {
			t.Errorf("%v is not in the message", p)
		}
	})
}
