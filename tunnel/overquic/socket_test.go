package overquic

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestLost(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{syscall.ENETUNREACH, true},
		{syscall.EHOSTUNREACH, true},
		{syscall.EPERM, true},
		{syscall.ECONNREFUSED, true},
		{syscall.ENETDOWN, true},
		{syscall.EINVAL, true},
		{syscall.EMSGSIZE, false},
		{syscall.EIO, false},
		{net.ErrClosed, false},
	} {
		var err error
		if tc.err != nil {
			err = &net.OpError{Op: "write", Err: os.NewSyscallError("sendmsg", tc.err)}
		}
		if got := lost(err); got != tc.want {
			t.Errorf("%v: %t", tc.err, got)
		}
	}
}

// A door remembers the smallest packet from when it is told to, also of those that
// are written at once.
func TestDoorRecalls(t *testing.T) {
	far, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	to := far.LocalAddr().(*net.UDPAddr)
	s, err := (&quay{addr: to.String()}).socket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var d door
	d.lead(s)
	defer d.Close()
	write := func(b, oob []byte) {
		t.Helper()
		if _, _, err := d.WriteMsgUDP(b, oob, to); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if got := d.least(); string(got) != want {
			t.Errorf("remembers %q, want %q", got, want)
		}
	}
	write([]byte("early"), nil)
	expect("")
	d.recall(true)
	if segments(t) {
		write([]byte("packet another"), cutBy(6))
		expect("packet")
	}
	write([]byte("short"), nil)
	write([]byte("not short"), nil)
	expect("short")
	d.recall(true)
	write([]byte("longer"), nil)
	expect("longer")
	d.recall(false)
	write([]byte("late"), nil)
	expect("")
}

// A socket on which nothing can be sent, or that complains of what was sent
// before, ends no session; when it is exchanged, all goes on.
func TestDoor(t *testing.T) {
	ctx := t.Context()
	far, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	var dials int
	var nobody net.Conn
	q := quay{addr: far.LocalAddr().String(), dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials++; dials == 1 {
			return nobody, nil
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	// A port on which nobody listens any more.
	gone, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	if nobody, err = net.Dial("udp4", gone.LocalAddr().String()); err != nil {
		t.Fatal(err)
	}
	var d door
	if _, err := d.ReadMsgUDPAll(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a door that leads nowhere: %v", err)
	}
	s, err := q.socket(ctx)
	if err != nil {
		t.Fatal(err)
	}
	q.to = far.LocalAddr()
	d.lead(s)
	read := make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		b, err := d.ReadMsgUDPAll()
		if err != nil {
			t.Errorf("read: %v", err)
		}
		read <- string(b)
	})
	for range 3 { // the answers of the system come with the later ones
		if n, _, err := d.WriteMsgUDP([]byte("void"), nil, far.LocalAddr().(*net.UDPAddr)); n != 4 || err != nil {
			t.Errorf("write to nobody: %d, %v", n, err)
		}
	}
	if s, err = q.socket(ctx); err != nil {
		t.Fatal(err)
	}
	d.lead(s)
	if _, _, err := d.WriteMsgUDP([]byte("hello"), nil, far.LocalAddr().(*net.UDPAddr)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, from, err := far.ReadFromUDP(buf)
	if err != nil || string(buf[:n]) != "hello" {
		t.Fatalf("far end read %q, %v", buf[:n], err)
	}
	if _, err := far.WriteToUDP([]byte("yes"), from); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if got := <-read; got != "yes" {
		t.Errorf("read %q", got)
	}
	_ = d.Close()
	if _, _, err := d.WriteMsgUDP([]byte("x"), nil, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write to a closed door: %v", err)
	}
	if _, err := d.ReadMsgUDPAll(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read from a closed door: %v", err)
	}
}

// ReadMsgUDPAll reads one packet.
func (d *door) ReadMsgUDPAll() ([]byte, error) {
	b := make([]byte, 2048)
	n, _, _, _, err := d.ReadMsgUDP(b, nil)
	return b[:n], err
}

// A packet is handed to the system many at a time, on both ends.
func TestSegmentation(t *testing.T) {
	if !segments(t) {
		t.Skip("the kernel has no UDP segmentation offload")
	}
	a, b := pair(t, tunnel.Options{})
	for _, s := range []*session{a, b} {
		if !s.conn.ConnectionState().GSO {
			t.Error("packets are sent one by one")
		}
	}
}

// segments says whether the kernel cuts up packets.
func segments(t *testing.T) bool {
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	return canSegment(pc)
}

// A listener whose socket cannot have the buffer it wants says so once, where it
// was told to.
func TestBufferWarning(t *testing.T) {
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	var out bytes.Buffer
	s := serving(pc, slog.New(slog.NewTextHandler(&out, nil))).(*served)
	if _, err := s.SyscallConn(); err == nil {
		t.Error("there is a raw connection before the buffers have their size")
	}
	const far = 1 << 40 // more than any system gives
	if err := errors.Join(s.SetReadBuffer(far>>10), s.SetWriteBuffer(1)); err != nil {
		t.Error(err)
	}
	if got := setReceiveBuffer(pc, far>>10); got < far>>10 && !strings.Contains(out.String(), "rmem_max") {
		t.Errorf("a buffer of %d bytes, and the log says %q", got, out.String())
	}
	if _, err := s.SyscallConn(); err != nil {
		t.Error(err)
	}
}

// The second handshake of a client resumes the first (RFC 8446, 2.2), and is no
// less mutual. Nothing is said before it is over.
func TestTickets(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenPacket(pc, tunnel.Options{TLS: tunneltest.TLS(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	peers := make(chan tunnel.Peer, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = l.Serve(ctx, func(ctx context.Context, s tunnel.Session) { // its socket is closed in time
			peers <- s.Peer()
			<-s.Context().Done()
		})
	})
	conf := tunneltest.TLS(t)
	conf.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for i := range 2 {
		s, err := Dial(ctx, l.Addr().String(), tunnel.Options{TLS: conf})
		if err != nil {
			t.Fatal(err)
		}
		peer := <-peers
		if got := peer.TLS.DidResume; got != (i == 1) {
			t.Errorf("session %d: resumed: %t", i, got)
		}
		if len(peer.TLS.PeerCertificates) == 0 || len(peer.TLS.VerifiedChains) == 0 {
			t.Errorf("session %d: nobody knows who it is", i)
		}
		if s.(*session).conn.ConnectionState().Used0RTT {
			t.Errorf("session %d: early data", i)
		}
		await(t, "ticket", func() bool { _, ok := conf.ClientSessionCache.Get("127.0.0.1"); return ok })
		_ = s.Close()
	}
	cancel()
	wg.Wait()
}

// An idle session costs at most 60 KiB an hour, and at most 40 KiB a day if it is
// metered; that of the handshake and of what follows it is apart.
func TestIdleCost(t *testing.T) {
	t.Parallel()
	a, _, r := relayed(t, tunnel.Options{Link: tunnel.LinkOptions{Keepalive: time.Second}})
	prepared(t, a)
	total := func() int64 { return r.bytes[up].Load() + r.bytes[down].Load() }
	asked := func() int64 { return r.packets[up].Load() }
	// The first exchanges are larger: new paths are measured, identifiers are
	// exchanged.
	await(t, "silence", func() bool { return a.resting.Load() })
	var bytes, packets int64
	for quiet := 0; quiet < 2; { // both in one go
		bytes, packets = total(), asked()
		await(t, "a question", func() bool { return asked() > packets && a.resting.Load() })
		if total()-bytes < 400 {
			quiet++
		}
	}
	bytes, packets = total(), asked()
	await(t, "questions", func() bool { return asked() >= packets+5 && a.resting.Load() })
	each := (total() - bytes) / (asked() - packets)
	hour := each * int64(time.Hour/tunnel.DefaultKeepalive)
	day := each * 160 // see TestAskerMetered
	t.Logf("%d bytes a question, %.1f KiB an hour, %.1f KiB a metered day", each, float64(hour)/1024, float64(day)/1024)
	if hour > 60<<10 || day > 40<<10 {
		t.Error("that is too much")
	}
}

// A server that was killed and is back tells an idle client as well, once that
// asks.
func TestKilledServerIdle(t *testing.T) {
	t.Parallel()
	o := tunnel.Options{TLS: tunneltest.TLS(t), Link: tunnel.LinkOptions{Keepalive: time.Second}}
	serve := func(addr string) (net.PacketConn, func()) {
		pc, err := net.ListenPacket("udp4", addr)
		if err != nil {
			t.Fatal(err)
		}
		l, err := ListenPacket(pc, o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = l.Serve(ctx, func(_ context.Context, s tunnel.Session) { <-s.Context().Done() }) // its socket is closed under it
		})
		return pc, func() { cancel(); wg.Wait() }
	}
	pc, stop := serve("127.0.0.1:0")
	s, err := Dial(t.Context(), pc.LocalAddr().String(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prepared(t, s.(*session)) // so the handshake is confirmed
	await(t, "silence", func() bool { return s.(*session).resting.Load() })
	_ = pc.Close()
	stop()
	_, stop = serve(pc.LocalAddr().String())
	defer stop()
	select {
	case <-s.Context().Done():
	case <-time.After(patience):
		t.Fatal("the session lives on")
	}
	if err := context.Cause(s.Context()); !errors.Is(err, tunnel.Lost) || !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		t.Errorf("cause: %v", err)
	}
}
