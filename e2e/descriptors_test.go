// A server that runs out of file descriptors: it turns away who comes, and keeps
// who is there.

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// spareDescriptors is how many descriptors the server is left with.
const spareDescriptors = 40

func TestDescriptors(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"qmux", "yamux", "quic"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			testDescriptors(t, startFront(t, transport))
		})
	}
}

func testDescriptors(t *testing.T, f *front) {
	loads := startLoads(t, f.cluster)
	target := f.node + ":" + echoHere(t)
	early := connectTo(t, f.socket, target)
	if early.err != nil {
		t.Fatal(early.err)
	}
	limit, widen := narrow(t, f.pid(t, "server"))

	tunnels := []connectTunnel{early}
	for {
		x := connectTo(t, f.socket, target)
		if x.err == nil {
			if tunnels = append(tunnels, x); len(tunnels) > 2*spareDescriptors {
				t.Fatalf("%d tunnels with %d descriptors to spare", len(tunnels), spareDescriptors)
			}
			continue
		}
		if !strings.HasPrefix(x.err.Error(), "503 ") {
			t.Errorf("tunnel %d is refused with %v", len(tunnels), x.err)
		}
		break
	}
	if len(tunnels) < 2 {
		t.Error("nothing was taken at all")
	}
	t.Logf("%d tunnels, and then no more", len(tunnels)-1)
	for i, x := range tunnels {
		x.echoes(t, fmt.Sprintf("tunnel %d lives", i))
	}
	loads.goOn(t, "while tunnels are refused")

	// Those who say nothing take the rest.
	mark := f.mark(t, "server")
	var mute []net.Conn
	for range 2 * spareDescriptors {
		conn, err := net.Dial("tcp", "127.0.0.1:"+portOf(f.cluster))
		must(t, err)
		defer conn.Close()
		mute = append(mute, conn)
	}
	mark.until(t, late, "turned a connection away: the last file descriptors are for the server itself")
	// The store, among others, opens files from time to time, and cannot do without.
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.pid(t, "server")))
	must(t, err)
	if len(files) > limit-4 {
		t.Errorf("%d of %d descriptors are in use", len(files), limit)
	}
	loads.goOn(t, "with no descriptor left")
	for i, x := range tunnels {
		x.echoes(t, fmt.Sprintf("tunnel %d still lives", i))
	}

	for _, conn := range mute {
		must(t, conn.Close())
	}
	for _, x := range tunnels[1:] {
		must(t, x.conn.Close())
	}
	eventually(t, "there is room again", func() error {
		x := connectTo(t, f.socket, target)
		if x.err == nil {
			x.echoes(t, "room again")
			x.err = x.conn.Close()
		}
		return x.err
	})
	widen()
	early.echoes(t, "from before to after")
	f.execs(t, "shell")
	loads.finish(t)
}

// narrow leaves a process with few descriptors to spare until widen, and returns its limit.
func narrow(t *testing.T, pid int) (few int, widen func()) {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	taken := map[string]bool{}
	for _, e := range open {
		taken[e.Name()] = true
	}
	limit := uint64(0)
	for free := 0; free < spareDescriptors; limit++ {
		if !taken[fmt.Sprint(limit)] {
			free++
		}
	}
	var was unix.Rlimit
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was))
	narrowed := was
	narrowed.Cur = limit
	must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &narrowed, nil))
	return int(limit), func() { must(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil)) }
}

// echoHere serves an echo on this machine's loopback and returns its port.
func echoHere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with l
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = echo(conn.(*net.TCPConn)) }() // ends with the connection
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	return port
}

// A connectTunnel is a tunnel through the CONNECT front end, or why there is none.
type connectTunnel struct {
	conn net.Conn
	err  error
}

func connectTo(t *testing.T, socket, target string) connectTunnel {
	t.Helper()
	conn, err := connectUnix(socket, target)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return connectTunnel{conn, err}
}

// echoes sends text and wants it back.
func (x connectTunnel) echoes(t *testing.T, text string) {
	t.Helper()
	must(t, x.conn.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(x.conn, text)
	must(t, err)
	back := make([]byte, len(text))
	if _, err := io.ReadFull(x.conn, back); err != nil || string(back) != text {
		t.Fatal(errors.Join(fmt.Errorf("%q came back as %q", text, back), err))
	}
}
