// Entering a namespace from within the process: sockets, devices and netlink of a
// node without a command.

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Do calls f with the network of the node: a socket that f makes stays the node's
// for as long as it is open. Only what f makes on its own goroutine counts, so f must
// not look up names or dial more than one address at a time.
func (n *Node) Do(f func() error) error { return inNamespace(n.ns, f) }

// Dial connects from the node to an address, which must be an IP and a port.
func (n *Node) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := n.Do(func() error {
		var d net.Dialer
		var err error
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// inNamespace calls f on a thread of a named network namespace.
func inNamespace(name string, f func() error) error {
	result := make(chan error, 1)
	go func() { result <- onThread(name, f) }()
	return <-result
}

// onThread moves its goroutine's thread into a namespace for the time of f. Where
// the way back fails, the thread stays locked to the goroutine and dies with it.
func onThread(name string, f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		return fmt.Errorf("enter namespace %s: %w", name, err)
	}
	defer home.Close()
	away, err := os.Open("/run/netns/" + name)
	if err != nil {
		return fmt.Errorf("enter namespace %s: %w", name, err)
	}
	defer away.Close()
	if err := unix.Setns(int(away.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", name, err)
	}
	failure := f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return errors.Join(failure, fmt.Errorf("leave namespace %s: %w", name, err))
	}
	runtime.UnlockOSThread()
	return failure
}

// lock has a directory for this process alone, among those that ask, until unlock.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // and with it the lock
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another lab to be made: %w", context.Cause(ctx)), f.Close())
		}
	}
}

// openTUN makes a TUN device in the present namespace: a Read is one IP packet that
// the kernel sends out by it, a Write one that comes in. The device is gone once the
// file is closed.
func openTUN(name string) (*os.File, error) {
	const path = "/dev/net/tun"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s (is the kernel's tun driver there?): %w", path, err)
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("device %s: %w", name, err), unix.Close(fd))
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, errors.Join(fmt.Errorf("make device %s: %w", name, err), unix.Close(fd))
	}
	// Only now: before, the poller would learn that the file is in error.
	return os.NewFile(uintptr(fd), path), nil
}

// withoutIPv6 keeps a device of the present namespace from sending what IPv6 sends of
// its own accord.
func withoutIPv6(device string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+device+"/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // no such file: no IPv6
		return fmt.Errorf("disable IPv6: %w", err)
	}
	return nil
}

// flushConntrack makes the present namespace forget every connection, as a NAT that
// has been restarted. One netlink request: nfnetlink's "delete" of the connection
// tracking table with no tuple deletes all (RFC 3549 has the framing).
func flushConntrack() error {
	const (
		subsystem  = 1 // NFNL_SUBSYS_CTNETLINK
		deleteVerb = 2 // IPCTNL_MSG_CT_DELETE
		headers    = unix.NLMSG_HDRLEN + 4
	)
	// The last four bytes are the family (0: all), the version and the resource.
	msg := make([]byte, headers)
	binary.NativeEndian.PutUint32(msg, headers)
	binary.NativeEndian.PutUint16(msg[4:], subsystem<<8|deleteVerb)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	answer, err := askNetfilter(msg)
	if err == nil {
		err = netlinkError(answer)
	}
	if err != nil {
		return fmt.Errorf("flush connections: %w", err)
	}
	return nil
}

// askNetfilter sends a request to the present namespace's packet filter and returns
// the first answer.
func askNetfilter(msg []byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	wait := unix.Timeval{Sec: int64(commandTimeout / time.Second)}
	if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return nil, err
	}
	if err = unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	answer := make([]byte, 4096)
	size, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return nil, err
	}
	return answer[:size], nil
}

// netlinkError reads the acknowledgement of a netlink request.
func netlinkError(msg []byte) error {
	if len(msg) < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(msg[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is no acknowledgement")
	}
	if code := int32(binary.NativeEndian.Uint32(msg[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
