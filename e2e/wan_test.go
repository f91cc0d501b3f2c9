// Across a wide-area link: what of a link of 100 ms, 100 Mbit/s and some loss
// each transport keeps, beside plain TCP. The figures are metrics of the
// benchmark: go test -run '^$' -bench WAN -benchtime 1x ./e2e.

package e2e

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

const (
	wanTarget = 18790 // port of the target on the node's loopback
	wanWarm   = 3 * time.Second
	wanSpan   = 8 * time.Second
	wanKeys   = 100 // keystrokes
)

// wanShapes are the links of the comparison, each way.
var wanShapes = []struct {
	name  string
	shape emulator.Shape
}{
	{"clean", emulator.Shape{Delay: 50 * time.Millisecond, Rate: 100e6 / 8}},
	{"lossy", emulator.Shape{Delay: 50 * time.Millisecond, Rate: 100e6 / 8, Loss: 0.01}},
}

// BenchmarkWAN measures each way to the node by itself, one after the other, on
// each link, with each congestion control that the kernel lets be chosen.
func BenchmarkWAN(b *testing.B) {
	needWAN(b)
	for _, w := range wanShapes {
		for _, congestion := range []string{"cubic", "bbr"} {
			b.Run(w.name+"/"+congestion+"/tcp", func(b *testing.B) {
				benchPlain(b, w.shape, congestion)
			})
			for _, transport := range everyTransport {
				b.Run(w.name+"/"+congestion+"/"+transport, func(b *testing.B) {
					benchTunnel(b, w.shape, congestion, transport)
				})
			}
		}
	}
}

func needWAN(b *testing.B) {
	b.Helper()
	if raceFlag != "" {
		b.Skip("SKIPPED: the race detector multiplies time and memory")
	}
	if err := lab.Check(); err != nil {
		b.Skipf("SKIPPED: a wide-area link takes network namespaces: %v", err)
	}
}

// A wanPath opens connections to the target on the node.
type wanPath func() (net.Conn, error)

func benchPlain(b *testing.B, shape emulator.Shape, congestion string) {
	for b.Loop() {
		n, open := plainPath(b, congestion, 64)
		if err := n.Shape(b.Context(), shape, shape); err != nil {
			b.Fatal(err)
		}
		measureWAN(b, open)
	}
}

func benchTunnel(b *testing.B, shape emulator.Shape, congestion, transport string) {
	for b.Loop() {
		n, open := tunnelPath(b, congestion, transport)
		if err := n.Shape(b.Context(), shape, shape); err != nil {
			b.Fatal(err)
		}
		measureWAN(b, open)
	}
}

// plainPath has a node dial out, as it is behind a NAT, and serve what it dialed: so
// many connections, as a pool of them would be before they are needed.
func plainPath(b *testing.B, congestion string, conns int) (*lab.Node, wanPath) {
	b.Helper()
	l, err := lab.New(b.Context(), shortTempDir(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(context.WithoutCancel(b.Context())) })
	n, err := l.AddNode(b.Context(), "node-1")
	if err != nil {
		b.Fatal(err)
	}
	control := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, 13 /* TCP_CONGESTION */, congestion)
		})
		return errors.Join(cerr, err)
	}}
	ln, err := control.Listen(b.Context(), "tcp", net.JoinHostPort(l.HostIP(), "0"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	b.Cleanup(startRole(b, n, fmt.Sprintf("wan-dialer %s %d", ln.Addr(), conns)))
	pool := make(chan net.Conn, conns)
	for range conns {
		c, err := ln.Accept()
		if err != nil {
			b.Fatal(err)
		}
		pool <- c
	}
	return n, func() (net.Conn, error) {
		select {
		case c := <-pool:
			return c, nil
		default:
			return nil, errors.New("the pool of connections is empty")
		}
	}
}

// tunnelPath has a node of a cluster reached through CONNECT.
func tunnelPath(b *testing.B, congestion, transport string) (*lab.Node, wanPath) {
	b.Helper()
	socket := filepath.Join(shortTempDir(b), "connect")
	c := startUp(b, "--nodes", "1", "--netns", "--server-arg=--connect-uds="+socket, "--server-arg=--tcp-congestion="+congestion,
		"--agent-arg=--transport="+transport, "--agent-arg=--tcp-congestion="+congestion, "--agent-arg=--allow-target=127.0.0.1:*")
	l, err := lab.Open(b.Context(), c.dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(context.WithoutCancel(b.Context())) })
	n, err := l.Node("node-1")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(startRole(b, n, fmt.Sprintf("wan-target 127.0.0.1:%d", wanTarget)))
	return n, func() (net.Conn, error) { return connectUnix(socket, fmt.Sprintf("node-1:%d", wanTarget)) }
}

// startRole runs a role of this test binary on a node and waits for its word.
func startRole(b testing.TB, n *lab.Node, role string) (stop func()) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := n.Command(context.Background(), self)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatalf("%s: %v", role, err)
	}
	return func() {
		_ = cmd.Process.Kill()
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			b.Error(err)
		}
	}
}

// connectUnix is a CONNECT to addr.
func connectUnix(socket, addr string) (net.Conn, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", addr, addr); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	// Nothing follows the answer before we have spoken.
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 4096), &http.Request{Method: http.MethodConnect})
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func measureWAN(b *testing.B, open wanPath) {
	echo := wanOpen(b, open, 'E')
	quiet := wanPing(b, echo)
	start := time.Now()
	again := wanOpen(b, open, 'E')
	wanPing(b, again)
	dial := time.Since(start)
	report := func(d time.Duration, unit string) { b.ReportMetric(float64(d.Microseconds())/1e3, unit) }
	report(dial, "ms-dial+byte")
	report(quiet, "ms-ping")
	b.ReportMetric(wanBulk(b, open, 1, nil), "Mbit/s-1")
	b.ReportMetric(wanBulk(b, open, 16, nil), "Mbit/s-16")
	for _, n := range []int{1, 8} {
		var keys []time.Duration
		wanBulk(b, open, n, func() {
			for range wanKeys {
				keys = append(keys, wanPing(b, echo))
			}
		})
		slices.Sort(keys)
		report(keys[len(keys)/2], fmt.Sprintf("ms-key-p50-beside-%d", n))
		report(keys[len(keys)*99/100], fmt.Sprintf("ms-key-p99-beside-%d", n))
	}
	report(wanRedial(b, open), "ms-redial")
}

// wanOpen opens a connection and says what it is for.
func wanOpen(b *testing.B, open wanPath, what byte) net.Conn {
	b.Helper()
	c, err := open()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write([]byte{what}); err != nil {
		b.Fatal(err)
	}
	return c
}

func wanPing(b *testing.B, c net.Conn) time.Duration {
	b.Helper()
	start := time.Now()
	if _, err := c.Write([]byte{1}); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

// wanBulk sends n streams to the node and returns what arrives, in Mbit/s, over
// wanSpan or while during runs.
func wanBulk(b *testing.B, open wanPath, n int, during func()) float64 {
	b.Helper()
	conns := make([]net.Conn, n)
	counts := make([]wanCount, n)
	var wg sync.WaitGroup
	for i := range conns {
		conns[i] = wanOpen(b, open, 'U')
		wg.Go(func() { _, _ = io.Copy(conns[i], pattern{}) }) // until it is closed
		wg.Go(func() { counts[i].follow(conns[i]) })
	}
	total := func() (sum uint64) {
		for i := range counts {
			sum += counts[i].get()
		}
		return sum
	}
	<-time.After(wanWarm)
	from, start := total(), time.Now()
	if during != nil {
		during()
	} else {
		<-time.After(wanSpan)
	}
	rate := float64(total()-from) * 8 / 1e6 / time.Since(start).Seconds()
	for _, c := range conns {
		_ = c.Close()
	}
	wg.Wait()
	return rate
}

// wanCount is what the far side says has arrived.
type wanCount struct {
	mu sync.Mutex
	n  uint64
}

func (w *wanCount) follow(r io.Reader) {
	var buf [8]byte
	for {
		if _, err := io.ReadFull(r, buf[:]); err != nil {
			return
		}
		w.mu.Lock()
		w.n = binary.BigEndian.Uint64(buf[:])
		w.mu.Unlock()
	}
}

func (w *wanCount) get() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// wanRedial breaks off 16 downloads and dials.
func wanRedial(b *testing.B, open wanPath) time.Duration {
	b.Helper()
	var wg sync.WaitGroup
	conns := make([]net.Conn, 16)
	for i := range conns {
		conns[i] = wanOpen(b, open, 'D')
		wg.Go(func() { _, _ = io.Copy(io.Discard, conns[i]) }) // until it is closed
	}
	<-time.After(wanWarm)
	for _, c := range conns {
		_ = c.Close()
	}
	start := time.Now()
	wanPing(b, wanOpen(b, open, 'E'))
	d := time.Since(start)
	wg.Wait()
	return d
}

// answerWAN is the target's side of a connection.
func answerWAN(c *net.TCPConn) error {
	defer c.Close()
	what := make([]byte, 1)
	if _, err := io.ReadFull(c, what); err != nil {
		return err
	}
	switch what[0] {
	case 'E':
		return echo(c)
	case 'D':
		_, err := io.Copy(c, pattern{})
		return err
	}
	var total uint64
	buf, last := make([]byte, 64<<10), time.Now()
	for {
		n, err := c.Read(buf)
		total += uint64(n)
		if err != nil {
			return err
		}
		if now := time.Now(); now.Sub(last) > 20*time.Millisecond {
			last = now
			if _, err := c.Write(binary.BigEndian.AppendUint64(nil, total)); err != nil {
				return err
			}
		}
	}
}

// dialWAN is a target that dials out: ADDR and how often.
func dialWAN(arg string) error {
	var addr string
	var n int
	if _, err := fmt.Sscan(arg, &addr, &n); err != nil {
		return err
	}
	fmt.Println("dialing", addr)
	var wg sync.WaitGroup
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		wg.Go(func() { _ = answerWAN(c.(*net.TCPConn)) }) // ends with the connection
	}
	wg.Wait()
	return nil
}
