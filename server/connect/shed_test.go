package connect

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fewFiles is the limit of descriptors of the child of TestFewFiles. The variable is
// its address.
const (
	fewFiles   = 96
	fewFilesAt = "HAWSER_TEST_FEW_FILES"
)

// TestFewFilesChild is the other process of TestFewFiles.
func TestFewFilesChild(t *testing.T) {
	socket := os.Getenv(fewFilesAt)
	if socket == "" {
		t.Skip("a part of another test")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: fewFiles, Max: fewFiles}); err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			_, _ = io.Copy(far, far)
			_ = far.Close()
		}()
		return near, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Serve(ctx, l) }()
	fmt.Println("serving")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the other process ends
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A server without free file descriptors answers new clients with an error, and existing
// tunnels go on.
func TestFewFiles(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFewFilesChild$")
	child.Env = append(os.Environ(), fewFilesAt+"="+socket)
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = child.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	if !said.Scan() || said.Text() != "serving" {
		t.Fatalf("child said %q", said.Text())
	}
	var tunnels []*tunneled
	shed := 0
	for range 3 * fewFiles {
		x, resp := dialTunnel(t, socket)
		switch ps := resp.Header.Get("Proxy-Status"); {
		case resp.StatusCode == http.StatusOK:
			tunnels = append(tunnels, x)
		case resp.StatusCode != http.StatusServiceUnavailable || !strings.HasPrefix(ps, "hawser; error=connection_limit_reached;") || resp.Header.Get("Retry-After") == "":
			t.Fatalf("%s, Proxy-Status %s", resp.Status, ps)
		default:
			shed++
			_ = x.conn.Close()
		}
	}
	if len(tunnels) < fewFiles/2 || len(tunnels) >= fewFiles || shed != 3*fewFiles-len(tunnels) {
		t.Errorf("%d tunnels with %d descriptors, %d requests shed", len(tunnels), fewFiles, shed)
	}
	for i, x := range tunnels {
		x.echo(t, fmt.Sprintf("tunnel %d is alive", i))
	}
	for _, x := range tunnels[:len(tunnels)/2] {
		_ = x.conn.Close()
	}
	// The server notices that with a delay.
	for {
		x, resp := dialTunnel(t, socket)
		if resp.StatusCode == http.StatusOK {
			x.echo(t, "room again")
			break
		}
		_ = x.conn.Close()
	}
	_ = in.Close()
	if rest, err := io.ReadAll(out); err != nil {
		t.Errorf("%v, child said %s", err, rest)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("child: %v", err)
	}
}

// A tunneled is a connection through a CONNECT front end.
type tunneled struct {
	conn net.Conn
	r    *bufio.Reader
}

func dialTunnel(t *testing.T, socket string) (*tunneled, *http.Response) {
	t.Helper()
	resp, conn, r := request(t, socket, connectRequest)
	_ = resp.Body.Close()
	return &tunneled{conn, r}, resp
}

func (x *tunneled) echo(t *testing.T, text string) {
	t.Helper()
	if err := x.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(x.conn, text); err != nil {
		t.Fatal(err)
	}
	expect(t, x.r, text)
}
