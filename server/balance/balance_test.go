package balance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is a Balancer, and targets that send their name and then echo.
type rig struct {
	testing.TB
	*Balancer
	stop func()

	mu    sync.Mutex // guards the following
	dials []string
	down  map[string]bool
}

func newRig(tb testing.TB, c Config) *rig {
	tb.Helper()
	r := &rig{TB: tb, down: make(map[string]bool)}
	c.Dial, c.Metrics = r.dial, prometheus.NewRegistry()
	b, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	r.Balancer = b
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = b.Run(ctx) })
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	tb.Cleanup(r.stop)
	return r
}

// dial reaches a target of the test's own.
func (r *rig) dial(_ context.Context, _, addr string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dials = append(r.dials, addr)
	if r.down[addr] {
		return nil, tunnel.Refused
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		c, err := l.Accept()
		_ = l.Close()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = fmt.Fprintln(c, addr)
		_, _ = io.Copy(c, c) // the test notices a cut
	}()
	return net.Dial("tcp", l.Addr().String())
}

func (r *rig) dialed() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.dials)
}

func to(targets ...string) func() []string { return func() []string { return targets } }

func (r *rig) set(owner string, fronts ...Front) {
	r.Helper()
	if err := r.Set(r.Context(), owner, fronts); err != nil {
		r.Fatal(err)
	}
}

// open connects to a front, and returns the connection and the target's name.
func (r *rig) open(at netip.AddrPort) (*net.TCPConn, string, error) {
	r.Helper()
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		return nil, "", err
	}
	r.Cleanup(func() { _ = c.Close() })
	var name []byte
	for b := make([]byte, 1); err == nil; { // and not a byte of what follows
		if _, err = c.Read(b); err != nil || b[0] == '\n' {
			break
		}
		name = append(name, b[0])
	}
	return c.(*net.TCPConn), string(name), err
}

func TestSpread(t *testing.T) {
	r, at := newRig(t, Config{}), tunneltest.FreeAddr(t)
	r.set("ns/web", Front{Addr: at, Targets: to("a", "b", "c")})
	got := map[string]int{}
	for range 60 {
		c, target, err := r.open(at)
		if err != nil {
			t.Fatal(err)
		}
		got[target]++
		_ = c.Close()
	}
	if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, []string{"a", "b", "c"}) {
		t.Errorf("%v", got)
	}
	if n := testutil.ToFloat64(r.metrics.joined); n != 60 {
		t.Errorf("%v connections are counted", n)
	}
}

// TestBothWays: both directions are complete, and the end of one does not end the other.
func TestBothWays(t *testing.T) {
	r, at := newRig(t, Config{}), tunneltest.FreeAddr(t)
	r.set("ns/web", Front{Addr: at, Targets: to("a")})
	c, _, err := r.open(at)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("all of it ", 50_000)
	go func() {
		_, _ = io.WriteString(c, want)
		_ = c.CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || string(got) != want {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(want), err)
	}
}

// TestNextTarget: after a failed dial the next target is tried. If all dials fail the client
// gets a reset.
func TestNextTarget(t *testing.T) {
	r, at := newRig(t, Config{}), tunneltest.FreeAddr(t)
	r.down = map[string]bool{"a": true, "b": true, "x": true}
	r.set("ns/web", Front{Addr: at, Targets: to("a", "b", "c")})
	for range 10 {
		if _, target, err := r.open(at); err != nil || target != "c" {
			t.Fatalf("%q, %v", target, err)
		}
	}
	before := len(r.dialed())
	r.set("ns/web", Front{Addr: at, Targets: to("a", "b", "x", "a", "b", "x")})
	if _, _, err := r.open(at); err == nil {
		t.Error("nothing answers, and the client hears an orderly end")
	}
	if n := len(r.dialed()) - before; n != maxTries {
		t.Errorf("%d targets were tried", n)
	}
	r.set("ns/web", Front{Addr: at, Targets: to()})
	if _, _, err := r.open(at); err == nil {
		t.Error("there are no targets, and the client hears an orderly end")
	}
}

func TestSticky(t *testing.T) {
	client := netip.MustParseAddr("192.0.2.1")
	all := []string{"a", "b", "c", "d"}
	first := firstOf(order(all, client, true))
	moved := 0
	for i := range 256 {
		from := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		was := firstOf(order(all, from, true))
		is := firstOf(order(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == "d" }), from, true))
		if was != is && was != "d" {
			t.Errorf("client %s moved from %s to %s, as d went", from, was, is)
		}
		if was == "d" {
			moved++
		}
	}
	if moved < 32 || moved > 96 {
		t.Errorf("%d of 256 clients were d's", moved)
	}
	for range 20 {
		if got := firstOf(order([]string{"d", "c", "b", "a"}, client, true)); got != first {
			t.Errorf("%s, and %s before", got, first)
		}
	}
}

// TestOrder: each target is yielded once, and each is equally often the first. With many
// targets a connection still allocates little.
func TestOrder(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 4, 6, 97, 360} {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprint(i)
		}
		for range 20 {
			got := slices.Sorted(order(all, netip.Addr{}, false))
			if !slices.Equal(got, slices.Sorted(slices.Values(all))) {
				t.Errorf("of %d targets come %v", n, got)
			}
		}
	}
	firsts := map[string]int{}
	for range 6000 {
		firsts[firstOf(order([]string{"a", "b", "c", "d", "e", "f"}, netip.Addr{}, false))]++
	}
	for target, n := range firsts {
		if n < 700 || n > 1300 { // 1,000 with a deviation of 29
			t.Errorf("%s is first %d times of 6,000", target, n)
		}
	}
	many := slices.Repeat([]string{"10.0.0.1%node-1:80"}, 10_000)
	if n := testing.AllocsPerRun(10, func() { firstOf(order(many, netip.Addr{}, false)) }); n > 20 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOrder(b *testing.B) {
	all := make([]string, 10_000)
	for i := range all {
		all[i] = fmt.Sprintf("10.0.%d.%d%%node-%d:80", i/250, i%250, i)
	}
	client := netip.MustParseAddr("192.0.2.1")
	for _, sticky := range []bool{false, true} {
		b.Run(fmt.Sprintf("sticky=%v", sticky), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				firstOf(order(all, client, sticky))
			}
		})
	}
}

func TestSources(t *testing.T) {
	r, at := newRig(t, Config{}), tunneltest.FreeAddr(t)
	for _, tc := range []struct {
		from []netip.Prefix
		ok   bool
	}{
		{nil, true},
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("127.0.0.0/8")}, true},
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, false},
		{[]netip.Prefix{{}}, false}, // one that could not be read
	} {
		r.set("ns/web", Front{Addr: at, Sources: tc.from, Targets: to("a")})
		if _, _, err := r.open(at); (err == nil) != tc.ok {
			t.Errorf("%v: %v", tc.from, err)
		}
	}
	if n := testutil.ToFloat64(r.metrics.refused); n != 2 {
		t.Errorf("%v refusals are counted", n)
	}
}

func TestProxyProtocol(t *testing.T) {
	r, at := newRig(t, Config{}), tunneltest.FreeAddr(t)
	r.set("ns/web", Front{Addr: at, ProxyProtocol: true, Targets: to("a")})
	c, _, err := r.open(at)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.CloseWrite()
	h, err := proxyproto.Read(bufio.NewReader(c)) // the target echoes it
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != 2 || h.SourceAddr.String() != c.LocalAddr().String() || h.DestinationAddr.String() != at.String() {
		t.Errorf("%+v", h)
	}
}

// TestOwners: an address has one owner until that removes it. A removed front takes no new
// connections, and the existing ones go on for the drain.
func TestOwners(t *testing.T) {
	r, at := newRig(t, Config{Drain: time.Hour}), tunneltest.FreeAddr(t)
	r.set("ns/web", Front{Addr: at, Targets: to("a")})
	c, _, err := r.open(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Set(t.Context(), "ns/other", []Front{{Addr: at, Targets: to("b")}}); err == nil || err.Error() != at.String()+" is ns/web's" {
		t.Errorf("%v", err)
	}
	r.set("ns/web")
	r.set("ns/other", Front{Addr: at, Targets: to("b")})
	if _, target, err := r.open(at); err != nil || target != "b" {
		t.Errorf("%q, %v", target, err)
	}
	if _, err := io.WriteString(c, "still"); err != nil {
		t.Error(err)
	}
	_ = c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "still" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestTooManyFronts: those that there are stay, and the one too many is named.
func TestTooManyFronts(t *testing.T) {
	r, at := newRig(t, Config{}), tunneltest.FreeAddr(t)
	var fronts []Front
	for i := range maxFronts + 1 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, byte(i >> 8), byte(i)}), at.Port())
		fronts = append(fronts, Front{Addr: addr, Targets: to("a")})
	}
	r.set("ns/many", fronts[:maxFronts]...)
	err := r.Set(t.Context(), "ns/other", fronts[maxFronts:])
	if want := fmt.Sprintf("%s: the server listens at 1024 addresses already", fronts[maxFronts].Addr); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, target, err := r.open(fronts[maxFronts-1].Addr); err != nil || target != "a" {
		t.Errorf("%q, %v", target, err)
	}
	r.set("ns/many")
	r.set("ns/other", fronts[maxFronts:]...)
}

// TestDrain: connections end with Run, after the drain at the latest.
func TestDrain(t *testing.T) {
	r, at := newRig(t, Config{Drain: time.Millisecond}), tunneltest.FreeAddr(t)
	r.set("ns/web", Front{Addr: at, Targets: to("a")})
	c, _, err := r.open(at)
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want a reset", err)
	}
	if _, err := net.Dial("tcp", at.String()); err == nil {
		t.Error("somebody still listens")
	}
	if err := r.Set(t.Context(), "ns/web", []Front{{Addr: at, Targets: to("a")}}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestLimit: at the limit a new connection replaces the oldest one.
func TestLimit(t *testing.T) {
	r, at := newRig(t, Config{Limit: 2}), tunneltest.FreeAddr(t)
	r.set("ns/web", Front{Addr: at, Targets: to("a")})
	var all []*net.TCPConn
	for range 3 {
		c, _, err := r.open(at)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if err := all[0].SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := all[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest: %v", err)
	}
	_, _ = io.WriteString(all[2], "x")
	if _, err := io.ReadFull(all[2], make([]byte, 1)); err != nil {
		t.Errorf("the newest: %v", err)
	}
}

// TestStrangersCostNobodyAPlace: clients that may not connect do not count in the limit.
func TestStrangersCostNobodyAPlace(t *testing.T) {
	r, at, closed := newRig(t, Config{Limit: 1}), tunneltest.FreeAddr(t), tunneltest.FreeAddr(t)
	r.set("ns/web", Front{Addr: at, Targets: to("a")}, Front{Addr: closed, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Targets: to("b")})
	c, _, err := r.open(at)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, _, err := r.open(closed); err == nil {
			t.Error("it was let in")
		}
	}
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("who was there: %v", err)
	}
}

// TestDialsAreBounded: connections whose targets do not answer are reset above twice the
// limit, although the dials of replaced ones have not ended.
func TestDialsAreBounded(t *testing.T) {
	r, at := newRig(t, Config{Limit: 1}), tunneltest.FreeAddr(t)
	hold := make(chan struct{})
	r.cfg.Dial = func(context.Context, string, string) (net.Conn, error) { <-hold; return nil, tunnel.Refused }
	defer close(hold)
	r.set("ns/web", Front{Addr: at, Targets: to("a")})
	for range 3 {
		c, err := net.Dial("tcp", at.String())
		if err == nil { // the third may be reset by now
			defer c.Close()
		}
	}
	for testutil.ToFloat64(r.metrics.refused) == 0 { // until the third is; go test ends what hangs
		runtime.Gosched()
	}
	if n := r.serving.Load(); n != 2 {
		t.Errorf("%d are served", n)
	}
}

func TestTakenPort(t *testing.T) {
	r := newRig(t, Config{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	free := tunneltest.FreeAddr(t)
	err = r.Set(t.Context(), "ns/web", []Front{
		{Addr: l.Addr().(*net.TCPAddr).AddrPort(), Targets: to("a")}, {Addr: free, Targets: to("a")},
	})
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()+": bind: address already in use") {
		t.Errorf("%v", err)
	}
	if _, target, err := r.open(free); err != nil || target != "a" {
		t.Errorf("the other port: %q, %v", target, err)
	}
}

// A failing listener is a listener whose first accepts fail.
type failing struct {
	net.Listener
	errs []error
}

func (l *failing) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, err
	}
	return l.Listener.Accept()
}

// TestAcceptFails: a front goes on when the system has no memory for a connection, or a
// firewall forbids one, and says so once.
func TestAcceptFails(t *testing.T) {
	var log strings.Builder
	r := newRig(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Front{Addr: ln.Addr().(*net.TCPAddr).AddrPort(), Targets: to("a")}
	l := &listening{owner: "ns/web", listener: &failing{Listener: ln}}
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EPERM, syscall.EMFILE} {
		l.listener.(*failing).errs = append(l.listener.(*failing).errs, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", errno)})
	}
	l.listener = strangers.Steady(l.listener, r.cfg.Log)
	l.cut, l.end = context.WithCancel(context.WithoutCancel(t.Context()))
	l.front.Store(f)
	r.Balancer.mu.Lock()
	r.fronts[f.Addr] = l
	r.Balancer.mu.Unlock()
	r.wg.Go(func() {
		r.accept(l)
		_ = ln.Close() // so that a client sees the end
	})
	c, target, err := r.open(f.Addr)
	if err != nil || target != "a" {
		t.Fatalf("%q, %v", target, err)
	}
	_ = c.Close()
	r.stop()
	if n := strings.Count(log.String(), "cannot accept"); n != 1 || !strings.Contains(log.String(), "cannot allocate memory") {
		t.Errorf("%d lines in the log:\n%s", n, &log)
	}
}
