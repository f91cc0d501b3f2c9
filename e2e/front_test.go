// A CONNECT front end on a unix socket with a node behind it, targets on that node,
// and what the two programs hold while streams come and go.

package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// everyTransport are those that have sessions, or those that were asked for. resuming
// are those of them whose streams outlive a connection: faults are for these.
var (
	everyTransport = names(func(tunnel.Transport) bool { return true })
	resuming       = names(func(t tunnel.Transport) bool { return t.Can.Resume })
	halfClosing    = names(func(t tunnel.Transport) bool { return t.Can.HalfClose })
	resetting      = names(func(t tunnel.Transport) bool { return t.Can.Reset })
)

// names are those of the transports for which is is true.
func names(is func(tunnel.Transport) bool) []string {
	var out []string
	for _, t := range []tunnel.Transport{qmux.Transport(), overyamux.Transport(), overh2.Transport(), overquic.Transport()} {
		if is(t) {
			out = append(out, t.Name)
		}
	}
	return out
}

func init() {
	flag.Func("e2e.transports", "the transports to test, separated by commas (default all)", func(asked string) error {
		everyTransport = strings.Split(asked, ",")
		resuming = slices.DeleteFunc(resuming, func(name string) bool { return !slices.Contains(everyTransport, name) })
		return nil
	})
}

// A front is a cluster with a node, any port of whose loopback can be reached by
// CONNECT.
type front struct {
	*cluster
	socket string
}

func startFront(t *testing.T, transport string, args ...string) *front {
	t.Helper()
	socket := filepath.Join(shortTempDir(t), "connect")
	c := startUp(t, append(frontArgs(socket, args...), "--nodes=1", "--agent-arg=--transport="+transport)...)
	return c.front(t, "node-1", socket)
}

func frontArgs(socket string, more ...string) []string {
	return append([]string{"--server-arg=--connect-uds=" + socket, "--agent-arg=--allow-target=127.0.0.1:*"}, more...)
}

// overEachFront is overEach with a front.
func overEachFront(t *testing.T, transports []string, part func(t *testing.T, f *front, transport string), args ...string) {
	t.Helper()
	socket := filepath.Join(shortTempDir(t), "connect")
	overEach(t, transports, func(t *testing.T, c *cluster, transport string) { part(t, c.front(t, c.node, socket), transport) },
		frontArgs(socket, args...)...)
}

func (c *cluster) front(t *testing.T, node, socket string) *front {
	t.Helper()
	f := &front{c.on(node), socket}
	// The node may be ready before its kubelet API has a certificate.
	eventually(t, "the node's metrics are there", func() error {
		_, err := f.client.Discovery().RESTClient().Get().AbsPath(metricsOf(node)).DoRaw(t.Context())
		return err
	})
	return f
}

// metricsOf is where a program's metrics are.
func metricsOf(program string) string {
	if program == "server" {
		return "/metrics"
	}
	return "/api/v1/nodes/" + program + "/proxy/metrics"
}

// openTunnel connects to the front end and asks for a port of the node, all of the request
// or its first n bytes.
func (f *front) openTunnel(port, n int) (*net.UnixConn, error) {
	return f.openTunnelTo(fmt.Sprintf("%s:%d", f.node, port), n)
}

func (f *front) openTunnelTo(addr string, n int) (*net.UnixConn, error) {
	c, err := net.Dial("unix", f.socket)
	if err != nil {
		return nil, err
	}
	request := fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", addr)
	if _, err := io.WriteString(c, request[:min(n, len(request))]); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c.(*net.UnixConn), nil
}

// all is more than a request has bytes.
const all = 1 << 10

// connect is a stream to a port of the node.
func (f *front) connect(port int) (*net.UnixConn, error) {
	return f.connectTo(fmt.Sprintf("%s:%d", f.node, port))
}

func (f *front) connectTo(addr string) (*net.UnixConn, error) {
	c, err := f.openTunnelTo(addr, all)
	if err != nil {
		return nil, err
	}
	if err := answered(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// answered reads an answer and not a byte of what follows it. An answer other than
// 200 is a refusal.
func answered(c net.Conn) error {
	resp, err := http.ReadResponse(bufio.NewReader(iotest.OneByteReader(c)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		return errors.Join(&refusal{resp.StatusCode, strings.TrimSpace(string(text))}, err)
	}
	return nil
}

// A refusal is an answer of the front end.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("%d: %s", r.status, r.text) }

// A target takes connections until the test ends. Those that are open are counted.
type target struct {
	port   int
	opened atomic.Int64
	closed atomic.Int64
}

func (g *target) open() int64 { return g.opened.Load() - g.closed.Load() }

// deserted waits until nobody is connected to the target.
func (g *target) deserted(t *testing.T) {
	t.Helper()
	eventually(t, "every connection to the target is closed", func() error {
		if n := g.open(); n != 0 {
			return fmt.Errorf("%d of %d are open", n, g.opened.Load())
		}
		return nil
	})
}

// newTarget listens on the loopback, that of the node if there is one, and has
// serve take what comes. A connection is closed when serve returns.
func newTarget(t *testing.T, node *lab.Node, serve func(*net.TCPConn)) *target {
	t.Helper()
	listen := func() (l net.Listener, err error) { return net.Listen("tcp4", "127.0.0.1:0") }
	var l net.Listener
	var err error
	if node == nil {
		l, err = listen()
	} else {
		err = node.Do(func() (err error) {
			l, err = listen()
			return err
		})
	}
	must(t, err)
	return serveTarget(t, l, serve)
}

// serveTarget is newTarget on a listener.
func serveTarget(t *testing.T, l net.Listener, serve func(*net.TCPConn)) *target {
	t.Helper()
	g := &target{port: l.Addr().(*net.TCPAddr).Port}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.opened.Add(1)
			stop := context.AfterFunc(t.Context(), func() { _ = c.Close() })
			serving.Go(func() {
				serve(c.(*net.TCPConn))
				stop()
				_ = c.Close()
				g.closed.Add(1)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return g
}

// newHole listens on a port of the loopback that answers no SYN as long as nobody
// accepts: one connection waits for that already, and there is no room for another.
func newHole(t *testing.T) (l net.Listener, port int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	must(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, syscall.Listen(fd, 0))
	file := os.NewFile(uintptr(fd), "hole")
	l, err = net.FileListener(file)
	must(t, errors.Join(err, file.Close()))
	t.Cleanup(func() { _ = l.Close() })
	c, err := net.Dial("tcp4", l.Addr().String())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	d := net.Dialer{Timeout: 300 * time.Millisecond}
	if c, err := d.Dial("tcp4", l.Addr().String()); err == nil {
		_ = c.Close()
		t.Fatal("a socket that has no room took a connection")
	}
	return l, l.Addr().(*net.TCPAddr).Port
}

// A usage is what a program holds.
type usage struct {
	goroutines, files, streams int
	memory                     int64 // resident
}

func (c usage) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d streams, %d MiB", c.goroutines, c.files, c.streams, c.memory>>20)
}

// What a program may hold more after a load than before it. Connections stay for a while
// when there is no more for them to do; a leak of one in fifty dials is more.
const (
	moreGoroutines = 60
	moreFiles      = 20
	moreMemory     = 64 << 20
)

// memoryTells is whether a program's memory says anything of it: what watches for
// races gives none back.
func memoryTells(t testing.TB) bool { return !raced(t) }

// bothEnds are the programs that a stream goes through.
func (f *front) bothEnds() []string { return []string{"server", f.node} }

// usage counts what the server or a node's agent holds. The streams are those that
// lead to targets of nodes; the request for it may take one.
func (f *front) usage(t *testing.T, of string) usage {
	t.Helper()
	pid := f.pid(t, of)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	c := usage{files: len(files), memory: residentBytes(t, pid)}
	for name, v := range f.metricsAt(t, metricsOf(of)) {
		switch {
		case name == "go_goroutines":
			c.goroutines = int(v)
		case strings.HasPrefix(name, "hawser_hub_streams{") && strings.Contains(name, `opener="server"`),
			strings.HasPrefix(name, "hawser_agent_streams{") && strings.Contains(name, `"in"`):
			c.streams += int(v)
		}
	}
	if c.goroutines == 0 {
		t.Fatalf("%s does not say how many goroutines it has", of)
	}
	return c
}

// socketsTo counts the sockets by which a program is connected, or about to be, to a
// port of the loopback.
func (f *front) socketsTo(t *testing.T, program string, port int) int {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", f.pid(t, program))
	files, err := os.ReadDir(proc + "/fd")
	must(t, err)
	own := map[string]bool{}
	for _, file := range files {
		// It may have been closed meanwhile.
		if to, err := os.Readlink(filepath.Join(proc, "fd", file.Name())); err == nil {
			own[to] = true
		}
	}
	table, err := os.ReadFile(proc + "/net/tcp")
	must(t, err)
	n := 0
	for line := range strings.Lines(string(table)) {
		// Columns 3 and 10 of a row are the far address, in hexadecimal, and the inode.
		row := strings.Fields(line)
		if len(row) > 9 && row[2] == fmt.Sprintf("0100007F:%04X", port) && own["socket:["+row[9]+"]"] {
			n++
		}
	}
	return n
}

// settled waits until a program holds what it held before, or hardly more.
func (f *front) settled(t *testing.T, program string, was usage) {
	t.Helper()
	eventually(t, program+" holds what it held before", func() error {
		is := f.usage(t, program)
		if is.goroutines > was.goroutines+moreGoroutines || is.files > was.files+moreFiles ||
			is.streams > was.streams+1 || memoryTells(t) && is.memory > was.memory+moreMemory {
			return fmt.Errorf("it held %v and holds %v", was, is)
		}
		return nil
	})
}
