package process

// Which sockets listen at an address: the kernel is asked by sock_diag(7), which takes a
// fraction of the time of reading /proc/net/tcp. Where it does not answer, that is read.

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// listening returns the inodes of the sockets to which the kernel may give a connection
// to at: those bound to that address, or else those bound to all addresses.
func listening(find listenersOf, at netip.AddrPort) ([]string, error) {
	var classes [4][]string // exact, then all addresses, IPv4 before IPv6
	for i, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		if i == 0 && !at.Addr().Is4() {
			continue
		}
		list, err := find(family, at.Port())
		if err != nil {
			return nil, fmt.Errorf("look for listening sockets: %w", err)
		}
		for _, l := range list {
			switch {
			case l.addr.Unmap() == at.Addr():
				classes[i] = append(classes[i], l.inode)
			case l.addr.IsUnspecified():
				classes[2+i] = append(classes[2+i], l.inode)
			}
		}
	}
	for _, class := range classes {
		if len(class) > 0 {
			return class, nil
		}
	}
	return nil, nil
}

// A listener is a socket that listens.
type listener struct {
	addr  netip.Addr
	inode string
}

// listenersOf finds the sockets of a family that listen on a port.
type listenersOf func(family uint8, port uint16) ([]listener, error)

// machineListeners are those of this process's network namespace.
func machineListeners(family uint8, port uint16) ([]listener, error) {
	list, err := askListeners(family, port)
	if err != nil {
		return readListeners("/proc")(family, port)
	}
	return list, nil
}

// Of linux/inet_diag.h: struct inet_diag_req_v2 and struct inet_diag_msg, behind a netlink header.
// Ports and addresses are in the network's byte order, the rest is in the machine's.
const (
	diagRequestSize = unix.SizeofNlMsghdr + 56
	diagMessageSize = 72
	diagInode       = 68 // where a message has it

	stateListen = 10 // TCP_LISTEN

	// diagWait bounds the wait for the kernel, in seconds. It answers at once.
	diagWait = 1
)

// askListeners asks the kernel.
func askListeners(family uint8, port uint16) ([]listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: diagWait}); err != nil {
		return nil, err
	}
	var q [diagRequestSize]byte
	binary.NativeEndian.PutUint32(q[0:], diagRequestSize)
	binary.NativeEndian.PutUint16(q[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(q[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	q[16], q[17] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(q[20:], 1<<stateListen)
	binary.BigEndian.PutUint16(q[24:], port)
	if err = unix.Sendto(fd, q[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var found []listener
	answer := make([]byte, 32<<10) // the most that the kernel sends at once
	for {
		n, _, err := unix.Recvfrom(fd, answer, 0)
		if err != nil {
			return nil, err
		}
		list, end, err := decodeListeners(answer[:n], port)
		if err != nil {
			return nil, err
		}
		if found = append(found, list...); end {
			return found, nil
		}
	}
}

// decodeListeners decodes a part of the kernel's answer. end means that no other follows.
func decodeListeners(b []byte, port uint16) (found []listener, end bool, err error) {
	bad := errors.New("malformed answer about sockets")
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return nil, false, bad
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.NLMSG_DONE: // with the number of an error, such as ENOENT where nobody knows of TCP
			if len(m.Data) >= 4 {
				if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno > 0 { //nolint:gosec // it is signed
					return nil, true, syscall.Errno(errno)
				}
			}
			return found, true, nil
		case unix.SOCK_DIAG_BY_FAMILY:
		default: // NLMSG_ERROR
			return nil, false, fmt.Errorf("%w: type %d", bad, m.Header.Type)
		}
		d := m.Data
		if len(d) < diagMessageSize {
			return nil, false, bad
		}
		size := 4
		if d[0] == unix.AF_INET6 {
			size = 16
		}
		if addr, ok := netip.AddrFromSlice(d[8 : 8+size]); ok && d[1] == stateListen && binary.BigEndian.Uint16(d[4:]) == port {
			found = append(found, listener{addr, strconv.FormatUint(uint64(binary.NativeEndian.Uint32(d[diagInode:])), 10)})
		}
	}
	return found, false, nil
}

// readListeners reads the file system proc.
func readListeners(proc string) listenersOf {
	return func(family uint8, port uint16) ([]listener, error) {
		name := "tcp"
		if family == unix.AF_INET6 {
			name = "tcp6"
		}
		f, err := os.Open(filepath.Join(proc, "net", name))
		if errors.Is(err, fs.ErrNotExist) && family == unix.AF_INET6 {
			return nil, nil // no IPv6
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return parseListeners(f, port)
	}
}

// procListen is TCP_LISTEN as /proc/net/tcp writes it.
const procListen = "0A"

// parseListeners reads /proc/net/tcp or tcp6 for what listens on a port. Listening
// sockets come first there (Documentation/networking/proc_net_tcp.rst). The rest is one
// line for each connection of the machine and is not read; procfs.FS.NetTCP would parse
// it all.
func parseListeners(r io.Reader, port uint16) ([]listener, error) {
	lines := bufio.NewScanner(r)
	lines.Scan() // the heading
	var found []listener
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 {
			return nil, errors.New("malformed list of sockets")
		}
		if f[3] != procListen {
			break
		}
		addr, p, err := parseSocketAddress(f[1])
		if err != nil {
			return nil, err
		}
		if p == port {
			found = append(found, listener{addr, f[9]})
		}
	}
	return found, lines.Err()
}

// parseSocketAddress decodes an address, which is in words of the machine's byte
// order, and a port.
func parseSocketAddress(s string) (netip.Addr, uint16, error) {
	bad := errors.New("malformed address in list of sockets")
	host, p, ok := strings.Cut(s, ":")
	port, err := strconv.ParseUint(p, 16, 16)
	if !ok || err != nil || len(host) != 8 && len(host) != 32 {
		return netip.Addr{}, 0, bad
	}
	var b []byte
	for ; host != ""; host = host[8:] {
		word, err := strconv.ParseUint(host[:8], 16, 32)
		if err != nil {
			return netip.Addr{}, 0, bad
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr, uint16(port), nil
}
