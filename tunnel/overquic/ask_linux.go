// Asking: how the accepting end learns that nobody has a silent peer's port any more,
// although its machine is there. A system closes the TCP connections of a process that
// was killed. Of a UDP port it tells only whoever sends something there.

package overquic

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// probes is how many datagrams ask: one may be lost, and systems limit how many
	// ICMP messages they send.
	probes = 3
	// probeSize is that of each, and minQuote how much of it a message has to quote, in
	// bytes. What quotes less proves nothing.
	probeSize = 32
	minQuote  = 16
	// maxErrors bounds what is read of the socket's errors at once.
	maxErrors = 64
)

// share lets others of this user have the port of pc as well, which vacant needs. A port
// that was taken when pc was opened was refused as ever. It is false if pc is no socket.
func share(pc net.PacketConn) bool {
	c, ok := pc.(*net.UDPConn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	return err == nil && set(raw, unix.SOL_SOCKET, unix.SO_REUSEPORT) == nil
}

// set turns an option of a socket on.
func set(c syscall.RawConn, level, option int) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
}

// vacant asks the system at remote whether somebody has the port there, for askFor at
// most, and says whether it has said that nobody has. local is where the port's owner
// expects packets from. Its socket takes what remote sends to local, and ends with the
// first of it. What others send while the socket has an address and no peer is lost, and
// QUIC sends it again.
func vacant(local, remote net.Addr) bool {
	from, ok := local.(*net.UDPAddr)
	to, ok2 := remote.(*net.UDPAddr)
	if !ok || !ok2 {
		return false
	}
	peer := netip.AddrPortFrom(to.AddrPort().Addr().Unmap(), to.AddrPort().Port())
	network, level, option := "udp6", unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	if peer.Addr().Is4() {
		network, level, option = "udp4", unix.IPPROTO_IP, unix.IP_RECVERR
	}
	here := &net.UDPAddr{IP: from.IP, Port: from.Port, Zone: to.Zone}
	if here.IP.IsUnspecified() {
		here.IP = nil // which has the system choose one, of the right version
	}
	d := net.Dialer{LocalAddr: here, Control: func(_, _ string, c syscall.RawConn) error {
		return errors.Join(set(c, unix.SOL_SOCKET, unix.SO_REUSEPORT), set(c, level, option))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), askFor)
	defer cancel()
	c, err := d.DialContext(ctx, network, peer.String())
	if err != nil {
		return false
	}
	defer c.Close()
	udp, ok := c.(*net.UDPConn)
	return ok && ask(udp, peer)
}

// ask is vacant on a socket that is connected to peer. The probe is no QUIC packet: an
// endpoint that has the port drops it (RFC 9000, 17.2: the fixed bit is zero). Whoever has
// not seen its random bits cannot quote them.
func ask(c *net.UDPConn, peer netip.AddrPort) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	probe, buf := make([]byte, probeSize), make([]byte, 1)
	_, _ = rand.Read(probe) // never fails
	probe[0] &= 0x3f
	for range probes {
		_, _ = c.Write(probe) // it fails with the error that is read next, and there are more
		_ = c.SetReadDeadline(time.Now().Add(askFor / probes))
		for err = nil; !errors.Is(err, os.ErrDeadlineExceeded); {
			if told(raw, probe, peer.Addr()) {
				return true
			}
			var from netip.AddrPort
			if _, from, err = c.ReadFromUDPAddrPort(buf); err == nil && from == peer {
				return false // it lives
			}
		}
	}
	return false
}

// told reads the errors of the socket and says whether one proves that nobody has the
// port of peer.
func told(raw syscall.RawConn, probe []byte, peer netip.Addr) (yes bool) {
	quote, control := make([]byte, probeSize), make([]byte, 256)
	_ = raw.Control(func(fd uintptr) { // fails only when it is closed
		for range maxErrors {
			n, cn, _, _, err := unix.Recvmsg(int(fd), quote, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			if yes = proves(quote[:n], control[:cn], probe, peer); yes {
				return
			}
		}
	})
	return yes
}

// proves says whether an error of the socket, which quotes what was sent, is an ICMP
// message of peer's that nobody has the port (RFC 792; RFC 4443, 3.1), and quotes probe.
func proves(quote, control, probe []byte, peer netip.Addr) bool {
	if len(quote) < minQuote || !bytes.HasPrefix(probe, quote) {
		return false
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return false
	}
	for _, m := range messages {
		// A struct sock_extended_err, and a sockaddr_in or sockaddr_in6 of who sent it.
		const origin, kind, code, sender4, sender6 = 4, 5, 6, 16 + 4, 16 + 8
		var want [3]byte
		var at, size int
		switch [2]int32{m.Header.Level, m.Header.Type} {
		case [2]int32{unix.IPPROTO_IP, unix.IP_RECVERR}:
			want, at, size = [3]byte{unix.SO_EE_ORIGIN_ICMP, 3, 3}, sender4, net.IPv4len
		case [2]int32{unix.IPPROTO_IPV6, unix.IPV6_RECVERR}:
			want, at, size = [3]byte{unix.SO_EE_ORIGIN_ICMP6, 1, 4}, sender6, net.IPv6len
		default:
			continue
		}
		if len(m.Data) < at+size || want != [3]byte{m.Data[origin], m.Data[kind], m.Data[code]} {
			continue
		}
		if sender, _ := netip.AddrFromSlice(m.Data[at : at+size]); sender == peer.WithZone("") {
			return true
		}
	}
	return false
}
