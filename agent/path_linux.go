// Path on Linux: uses routing netlink (RFC 3549) to look up routes and for notifications.

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// systemRouting is the kernel's.
func systemRouting() routing { return routing{path: pathTo, watch: watchPaths} }

// pathTo is the route that the kernel would take: device, gateway and source
// address.
func pathTo(to netip.Addr) string {
	p, err := lookUpRoute(to.Unmap())
	if err != nil {
		return sourceOf(to)
	}
	return p
}

const (
	rtmsgLen   = syscall.SizeofRtMsg
	headerLen  = syscall.SizeofNlMsghdr
	attrLen    = syscall.SizeofRtAttr
	answerSize = 4096
	// netlinkTimeout bounds the wait for the kernel's answer.
	netlinkTimeout = 1 // seconds
)

// lookUpRoute does what "ip route get" does.
func lookUpRoute(to netip.Addr) (string, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("open netlink: %w", err)
	}
	defer func() { _ = syscall.Close(fd) }()
	if err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: netlinkTimeout}); err != nil {
		return "", fmt.Errorf("open netlink: %w", err)
	}
	if err = syscall.Sendto(fd, routeRequest(to), 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return "", fmt.Errorf("look up the route: %w", err)
	}
	b := make([]byte, answerSize)
	n, _, err := syscall.Recvfrom(fd, b, 0)
	if err != nil {
		return "", fmt.Errorf("look up the route: %w", err)
	}
	return parseRoute(b[:n])
}

// routeRequest is an RTM_GETROUTE for one destination.
func routeRequest(to netip.Addr) []byte {
	dst, family := to.AsSlice(), byte(syscall.AF_INET)
	if to.Is6() {
		family = syscall.AF_INET6
	}
	size := headerLen + rtmsgLen + attrLen + len(dst)
	b := make([]byte, size)
	e := binary.NativeEndian
	e.PutUint32(b[0:], uint32(size))
	e.PutUint16(b[4:], syscall.RTM_GETROUTE)
	e.PutUint16(b[6:], syscall.NLM_F_REQUEST)
	e.PutUint32(b[8:], 1)
	b[headerLen] = family
	b[headerLen+1] = byte(to.BitLen())
	a := b[headerLen+rtmsgLen:]
	e.PutUint16(a[0:], uint16(attrLen+len(dst)))
	e.PutUint16(a[2:], syscall.RTA_DST)
	copy(a[attrLen:], dst)
	return b
}

// parseRoute reads the answer. No route is no error: the path is empty.
func parseRoute(b []byte) (string, error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return "", fmt.Errorf("parse route: %w", err)
	}
	for _, m := range messages {
		switch m.Header.Type {
		case syscall.NLMSG_ERROR:
			return "", nil
		case syscall.RTM_NEWROUTE:
		default:
			continue
		}
		if len(m.Data) < rtmsgLen {
			return "", errors.New("parse route: message is too short")
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return "", fmt.Errorf("parse route: %w", err)
		}
		return describeRoute(attrs), nil
	}
	return "", errors.New("parse route: no route in the answer")
}

func describeRoute(attrs []syscall.NetlinkRouteAttr) string {
	var device uint32
	var gateway, source netip.Addr
	for _, a := range attrs {
		switch a.Attr.Type {
		case syscall.RTA_OIF:
			if len(a.Value) == 4 {
				device = binary.NativeEndian.Uint32(a.Value)
			}
		case syscall.RTA_GATEWAY:
			gateway, _ = netip.AddrFromSlice(a.Value)
		case syscall.RTA_PREFSRC:
			source, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return fmt.Sprintf("device %d, gateway %v, source %v", device, gateway, source)
}

// collectTime is how long changes are collected before they are reported: a change of routes is
// several messages.
const collectTime = 100 * time.Millisecond

// watchPaths listens for changes of addresses and routes, or polls if it lacks the
// permission.
func watchPaths(ctx context.Context, changed func()) {
	f, err := subscribe()
	if err != nil {
		poll(ctx, pathPoll, changed)
		return
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	var b [1]byte // the kernel drops the rest of a message, which is not used
	for ctx.Err() == nil {
		// ENOBUFS is reported once when the queue was full: changes were lost.
		if _, err := f.Read(b[:]); err != nil && !errors.Is(err, syscall.ENOBUFS) {
			if ctx.Err() == nil {
				poll(ctx, pathPoll, changed)
			}
			return
		}
		pause(ctx, collectTime)
		changed()
	}
}

// The multicast groups of routing netlink, as bits (rtnetlink(7)).
const (
	groupLink       = 0x1
	groupIPv4Addr   = 0x10
	groupIPv4Route  = 0x40
	groupIPv6Addr   = 0x100
	groupIPv6Route  = 0x400
	watchedNetGroup = groupLink | groupIPv4Addr | groupIPv4Route | groupIPv6Addr | groupIPv6Route
)

// subscribe opens a socket for the kernel's notifications.
func subscribe() (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, syscall.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK, Groups: watchedNetGroup}); err != nil {
		_ = syscall.Close(fd) // the failure is the news
		return nil, fmt.Errorf("bind netlink: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}
