// Who is at the other end of a loopback connection, by sock_diag(7).

package main

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/tunnel/strangers"
)

// Offsets and sizes of struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h).
const (
	diagRequest   = syscall.SizeofNlMsghdr + 56
	diagAnswer    = 72
	diagStates    = 4  // of the request
	diagPorts     = 8  // of the request: source, destination
	diagAddrs     = 12 // of the request: source, destination, of 16 bytes each
	diagCookie    = 48 // of the request
	diagUID       = 64 // of the answer
	diagInode     = 68 // of the answer
	noDiagCookie  = ^uint64(0)
	diagTimeoutUS = 100_000
)

// localSource is the user whose process on this machine made the TCP connection c, if the
// system says who that is. Otherwise it is SourceOf the remote address.
func localSource(c net.Conn) strangers.Source {
	if uid, known := userOf(c); known {
		return strangers.UserSource(uid)
	}
	return strangers.SourceOf(c.RemoteAddr())
}

// userOf is the owner of the socket from which a client on this machine, in this network
// namespace, made the connection.
func userOf(c net.Conn) (uid uint32, known bool) {
	client, ok := c.RemoteAddr().(*net.TCPAddr)
	server, ok2 := c.LocalAddr().(*net.TCPAddr)
	if !ok || !ok2 {
		return 0, false
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(fd) }()
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: diagTimeoutUS}); err != nil {
		return 0, false
	}
	if err = unix.Sendto(fd, diagOf(client.AddrPort(), server.AddrPort()), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, false
	}
	b := make([]byte, 1024)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return 0, false
	}
	messages, err := syscall.ParseNetlinkMessage(b[:n])
	if err != nil || len(messages) == 0 || messages[0].Header.Type != unix.SOCK_DIAG_BY_FAMILY || len(messages[0].Data) < diagAnswer {
		return 0, false
	}
	d := messages[0].Data
	// The kernel says 0, which is root, of a socket without an owner: one that was closed.
	return binary.NativeEndian.Uint32(d[diagUID:]), binary.NativeEndian.Uint32(d[diagInode:]) != 0
}

// diagOf asks for the socket at from of the TCP connection to to.
func diagOf(from, to netip.AddrPort) []byte {
	b := make([]byte, diagRequest)
	binary.NativeEndian.PutUint32(b[0:], diagRequest)
	binary.NativeEndian.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[syscall.SizeofNlMsghdr:]
	src, dst := from.Addr().Unmap().AsSlice(), to.Addr().Unmap().AsSlice()
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_TCP
	if len(src) == net.IPv6len {
		r[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(r[diagStates:], ^uint32(0))
	binary.BigEndian.PutUint16(r[diagPorts:], from.Port())
	binary.BigEndian.PutUint16(r[diagPorts+2:], to.Port())
	copy(r[diagAddrs:], src)
	copy(r[diagAddrs+net.IPv6len:], dst)
	binary.NativeEndian.PutUint64(r[diagCookie:], noDiagCookie)
	return b
}
