// Sockets: what is below QUIC, where nothing that may pass is an error.

package overquic

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
)

// errUnsized is what SyscallConn says before the buffers have their size.
var errUnsized = errors.New("buffers have no size yet")

// lost says whether err, of sending a packet, is the packet's loss: a route that
// is gone may come back, and a firewall can change its mind. What is left are a
// packet that is too long and an interface that cannot cut packets up, which the
// library deals with itself.
func lost(err error) bool {
	return err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.EMSGSIZE) && !errors.Is(err, syscall.EIO)
}

// A served is the socket of a listener. The library uses all that a *net.UDPConn
// offers, of which it is one.
type served struct {
	*net.UDPConn
	log   *slog.Logger
	sized atomic.Int32 // how many of the two buffers have their size
	muted mutes
	// inquiry is nil where ICMP cannot be read.
	inquiry *inquiry
}

// WriteMsgUDP sends a packet, or loses it.
func (s *served) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	if s.muted.has(addr) {
		return len(b), len(oob), nil
	}
	n, oobn, err = s.UDPConn.WriteMsgUDP(b, oob, addr)
	if lost(err) {
		return len(b), len(oob), nil
	}
	return n, oobn, err
}

// SetReadBuffer makes the receive buffer as large as the system allows. The
// library would say on the standard logger what it thinks of the result; here it
// is said once, on ours. So SyscallConn, through which the library would look,
// fails until both buffers are set.
func (s *served) SetReadBuffer(bytes int) error {
	s.sized.Add(1)
	if got := setReceiveBuffer(s.UDPConn, bytes); got < bytes {
		s.log.Warn("the UDP receive buffer is smaller than it should be: raise net.core.rmem_max",
			"addr", s.LocalAddr().String(), "bytes", got, "want", bytes)
	}
	return nil
}

// SetWriteBuffer is SetReadBuffer for the other direction. A small one delays
// packets but loses none.
func (s *served) SetWriteBuffer(bytes int) error {
	s.sized.Add(1)
	setSendBuffer(s.UDPConn, bytes)
	return nil
}

// SyscallConn is the socket's, once its buffers are set.
func (s *served) SyscallConn() (syscall.RawConn, error) {
	if s.sized.Load() < 2 {
		return nil, errUnsized
	}
	return s.UDPConn.SyscallConn()
}

// A plain is a packet connection that is no UDP socket. It has no buffers to
// speak of.
type plain struct{ net.PacketConn }

func (plain) SetReadBuffer(int) error  { return nil }
func (plain) SetWriteBuffer(int) error { return nil }

// WriteTo sends a packet, or loses it.
func (p plain) WriteTo(b []byte, addr net.Addr) (int, error) {
	n, err := p.PacketConn.WriteTo(b, addr)
	if lost(err) {
		return len(b), nil
	}
	return n, err
}

// serving is pc as a listener's transport is to have it.
func serving(pc net.PacketConn, log *slog.Logger) net.PacketConn {
	if u, ok := pc.(*net.UDPConn); ok {
		return &served{UDPConn: u, log: log}
	}
	return plain{pc}
}

// A socket is what a door leads through.
type socket struct {
	*net.UDPConn
	batch     *ipv4.PacketConn // the same, for reading many packets at a time; it serves IPv6 too
	connected bool
}

// A door is a socket that can be exchanged under a quic.Transport, which cannot
// do without one, and takes its connections down when it is closed. Reads go on
// with the new socket when the old one is closed.
type door struct {
	mu      sync.Mutex // guards the following
	through *socket
	closed  bool
	sized   int
	heard   chan struct{} // closed when something has come since keep; nil before
	kept    []byte        // the latest packet that was written since keep
	recalls bool          // whether to remember the smallest packet
	small   []byte        // that packet, since recalls was set
}

// recall has d remember the smallest packet that it writes from now on, or not.
func (d *door) recall(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recalls, d.small = on, d.small[:0]
}

// least is the packet that d remembers; none if it has written none.
func (d *door) least() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.small)
}

// keep has d keep a copy of the latest packet from now on.
func (d *door) keep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.heard == nil {
		d.heard = make(chan struct{})
	}
}

// last is the latest packet that was written since keep, and a channel that is
// closed once something comes after it.
func (d *door) last() ([]byte, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = make(chan struct{})
	return slices.Clone(d.kept), d.heard
}

// hear notes that something has come.
func (d *door) hear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.heard == nil {
		return
	}
	select {
	case <-d.heard:
	default:
		close(d.heard)
	}
}

// writing is the socket for writing b, which may be several packets.
func (d *door) writing(b, oob []byte) (*socket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.heard != nil {
		d.kept = append(d.kept[:0], b...)
	}
	if d.recalls {
		if first := b[:min(len(b), segment(oob, len(b)))]; len(d.small) == 0 || len(first) < len(d.small) {
			d.small = append(d.small[:0], first...)
		}
	}
	if d.closed || d.through == nil {
		return nil, net.ErrClosed
	}
	return d.through, nil
}

func (d *door) now() (*socket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.through == nil {
		return nil, net.ErrClosed
	}
	return d.through, nil
}

// lead has d lead through s from now on, and closes what it led through before.
// It owns s.
func (d *door) lead(s *socket) {
	d.mu.Lock()
	old := d.through
	if d.closed {
		old = s
	} else {
		d.through = s
	}
	d.mu.Unlock()
	if old != nil {
		_ = old.Close() // nothing could be done about it
	}
}

// Close closes d for good.
func (d *door) Close() error {
	d.mu.Lock()
	d.closed = true
	old := d.through
	d.mu.Unlock()
	if old == nil {
		return nil
	}
	return old.Close()
}

// read calls f with the socket until f has read something or d is closed. An
// error of one socket is not the next one's.
func (d *door) read(f func(*socket) error) error {
	for {
		s, err := d.now()
		if err != nil {
			return err
		}
		if err = f(s); err == nil {
			d.hear()
			return nil
		}
		if next, nerr := d.now(); nerr != nil || next == s && !passing(err) {
			return errors.Join(nerr, err)
		}
	}
}

// passing says whether a socket that has given err may yet give packets. Each of
// these is told once for something that was sent before.
func passing(err error) bool {
	for _, e := range []error{
		syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN, syscall.EPERM, syscall.EMSGSIZE,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// ReadBatch reads some packets.
func (d *door) ReadBatch(ms []ipv4.Message, flags int) (n int, err error) {
	err = d.read(func(s *socket) error {
		n, err = s.batch.ReadBatch(ms, flags)
		return err
	})
	return n, err
}

// ReadMsgUDP reads one packet.
func (d *door) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	err = d.read(func(s *socket) error {
		n, oobn, flags, addr, err = s.ReadMsgUDP(b, oob)
		return err
	})
	return n, oobn, flags, addr, err
}

// ReadFrom reads one packet.
func (d *door) ReadFrom(b []byte) (n int, addr net.Addr, err error) {
	err = d.read(func(s *socket) error {
		n, addr, err = s.ReadFrom(b)
		return err
	})
	return n, addr, err
}

// WriteMsgUDP sends a packet, or loses it.
func (d *door) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	s, err := d.writing(b, oob)
	if err != nil {
		return 0, 0, err
	}
	if s.connected {
		addr = nil
	}
	n, oobn, err = s.WriteMsgUDP(b, oob, addr)
	if err == nil {
		return n, oobn, nil
	}
	if _, cerr := d.now(); lost(err) || errors.Is(err, net.ErrClosed) && cerr == nil {
		return len(b), len(oob), nil // it was closed because there is another
	}
	return 0, 0, err
}

// WriteTo sends a packet, or loses it.
func (d *door) WriteTo(b []byte, addr net.Addr) (int, error) {
	u, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, &net.AddrError{Err: "not a UDP address", Addr: addr.String()}
	}
	n, _, err := d.WriteMsgUDP(b, nil, u)
	return n, err
}

// LocalAddr is the socket's.
func (d *door) LocalAddr() net.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.through == nil {
		return new(net.UDPAddr)
	}
	return d.through.LocalAddr()
}

// SetReadBuffer and SetWriteBuffer have nothing to do: each socket has its
// buffers set when it is opened.
func (d *door) SetReadBuffer(int) error  { return d.size() }
func (d *door) SetWriteBuffer(int) error { return d.size() }

func (d *door) size() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sized++
	return nil
}

// SyscallConn is that of the socket there is now. As with served, there is none
// until both buffers count as set.
func (d *door) SyscallConn() (syscall.RawConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sized < 2 || d.through == nil {
		return nil, errUnsized
	}
	return d.through.SyscallConn()
}

// Deadlines are of no use here: reads end when the door is closed, and writes do
// not wait.
func (d *door) SetDeadline(time.Time) error      { return nil }
func (d *door) SetReadDeadline(time.Time) error  { return nil }
func (d *door) SetWriteDeadline(time.Time) error { return nil }

var (
	_ quic.OOBCapablePacketConn = (*served)(nil)
	_ quic.OOBCapablePacketConn = (*door)(nil)
)

// A quay makes the sockets of one dialing end, all of them to one address.
type quay struct {
	addr string // HOST:PORT
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	to   net.Addr // set by the first socket
}

// socket is another socket with the server: one of our own, or what the dial
// func makes.
func (q *quay) socket(ctx context.Context) (*socket, error) {
	if q.dial != nil {
		addr := q.addr
		if q.to != nil {
			addr = q.to.String() // the session is with that one
		}
		c, err := q.dial(ctx, "udp", addr)
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UDPConn)
		if !ok {
			_ = c.Close() // the other error is the news
			return nil, errors.New("QUIC needs a UDP socket")
		}
		if q.to == nil {
			q.to = u.RemoteAddr()
		}
		return newSocket(u, true), nil
	}
	if q.to == nil {
		// To connect a UDP socket sends nothing, resolves the name, and picks an
		// address to which there is a way.
		probe, err := new(net.Dialer).DialContext(ctx, "udp", q.addr)
		if err != nil {
			return nil, err
		}
		q.to = probe.RemoteAddr()
		if err = probe.Close(); err != nil {
			return nil, err
		}
	}
	// A socket that is not connected follows the routes of this machine.
	network := "udp6"
	if q.to.(*net.UDPAddr).IP.To4() != nil {
		network = "udp4"
	}
	pc, err := new(net.ListenConfig).ListenPacket(ctx, network, ":0")
	if err != nil {
		return nil, err
	}
	return newSocket(pc.(*net.UDPConn), false), nil
}

func newSocket(u *net.UDPConn, connected bool) *socket {
	setReceiveBuffer(u, bufferSize)
	setSendBuffer(u, bufferSize)
	setOptions(u)
	return &socket{UDPConn: u, batch: ipv4.NewPacketConn(u), connected: connected}
}
