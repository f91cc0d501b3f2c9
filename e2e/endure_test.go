// Streams that outlive their connections: logs, a port-forward and a terminal, and how each
// proves that no byte was lost.

package e2e

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/hawser-project/hawser/cmd/lab"
	"github.com/hawser-project/hawser/e2e/await"
)

// lab gives access to the cluster's links until the test ends.
func (c *cluster) lab(t *testing.T) *lab.Lab {
	t.Helper()
	l, err := lab.Open(t.Context(), c.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return l
}

// A load is a stream that goes on until it is told to finish, and then says
// whether every byte came once.
type load struct {
	name   string
	count  func() int64 // how far it is
	finish func() error
	done   func() string
}

type loads []load

// startLoads starts one of each.
func startLoads(t *testing.T, c *cluster) loads { return startLoadsOn(t, c, "") }

// startLoadsOn starts one of each on a node; with none the scheduler chooses.
func startLoadsOn(t *testing.T, c *cluster, node string) loads {
	t.Helper()
	return loads{startNumbers(t, c, node), startEcho(t, c, node), startKeys(t, c, node)}
}

// on is a pod's name, and what its spec says of where it runs.
func on(node, pod string) (name, spec string) {
	if node == "" {
		return pod, ""
	}
	return pod + "-" + node, fmt.Sprintf(`,"nodeName":%q`, node)
}

// finish finishes all.
func (ls loads) finish(t *testing.T) {
	for _, l := range ls {
		if err := l.finish(); err != nil {
			t.Errorf("%s: %v", l.name, err)
		} else {
			t.Logf("%s: %s", l.name, l.done())
		}
	}
}

// goOn waits until each has come a little further.
func (ls loads) goOn(t *testing.T, what string) {
	t.Helper()
	from := make([]int64, len(ls))
	for i, l := range ls {
		from[i] = l.count()
	}
	eventually(t, what, func() error {
		for i, l := range ls {
			if l.count() == from[i] {
				return fmt.Errorf("%s stands still", l.name)
			}
		}
		return nil
	})
}

// startNumbers follows the log of a container that counts.
func startNumbers(t *testing.T, c *cluster, node string) load {
	t.Helper()
	return startLines(t, c, node, "i=0; while :; do i=$((i+1)); echo number $i; sleep 0.05; done", numberLine)
}

func numberLine(i int64) string { return fmt.Sprintf("number %d", i) }

// startLines follows the log of a container whose line i, from 1, is known, and
// begins with "number" and i.
func startLines(t *testing.T, c *cluster, node, script string, line func(i int64) string) load {
	t.Helper()
	pod, spec := on(node, "numbers")
	c.podWith(t, pod, "", spec, "sh", "-c", script)
	return followLines(t, c, pod, line)
}

// followLines is startLines for a pod that is there.
func followLines(t *testing.T, c *cluster, pod string, line func(i int64) string) load {
	t.Helper()
	cmd := c.startKubectl(t, "logs", "-f", pod)
	var stderr lines
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen atomic.Int64
	broken := make(chan error, 1)
	go func() {
		sc := bufio.NewScanner(out)
		for i := int64(1); ; i++ {
			if want := line(i); !sc.Scan() || sc.Text() != want {
				broken <- errors.Join(fmt.Errorf("got %q in place of %q; kubectl says %q", sc.Text(), want, stderr.String()), sc.Err())
				return
			}
			seen.Store(i)
		}
	}()
	return load{
		name: "logs -f", count: seen.Load,
		finish: func() error {
			var want int64
			eventually(t, "the last number is told", func() error {
				out, stderr, _ := c.kubectl(t, "", "logs", "--tail=1", pod)
				if _, err := fmt.Sscanf(out, "number %d", &want); err != nil {
					return errors.New(out + stderr)
				}
				return nil
			})
			eventuallySeen := time.Now().Add(patience)
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for seen.Load() < want {
				select {
				case err := <-broken:
					return err
				case <-tick.C:
				}
				if time.Now().After(eventuallySeen) {
					return fmt.Errorf("stands at %d of %d", seen.Load(), want)
				}
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				return err
			}
			<-broken
			_ = cmd.Wait() // interrupted by us
			return nil
		},
		done: func() string { return fmt.Sprintf("%d lines", seen.Load()) },
	}
}

// startEcho sends bytes of chance through kubectl port-forward to a server that
// sends them back, and compares.
func startEcho(t *testing.T, c *cluster, node string) load {
	t.Helper()
	pod, spec := on(node, "echo")
	port := await.FreePort(t) // nodes that are plain processes share the machine's
	c.roleInPodWith(t, pod, "", spec, fmt.Sprintf("echo-server 127.0.0.1:%d", port))
	conn, err := net.Dial("tcp", c.forward(t, pod, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, stop := context.WithCancel(t.Context())
	sent, back := sha256.New(), sha256.New()
	var n atomic.Int64
	wrote, read := make(chan error, 1), make(chan error, 1)
	go func() { wrote <- sendPaced(ctx, conn.(*net.TCPConn), sent) }()
	go func() {
		_, err := io.Copy(io.MultiWriter(back, counter{&n}), conn)
		read <- err
	}()
	return load{
		name: "port-forward", count: n.Load,
		finish: func() error {
			stop()
			for _, half := range []chan error{wrote, read} {
				select {
				case err := <-half:
					if err != nil {
						return fmt.Errorf("after %d bytes: %w", n.Load(), err)
					}
				case <-time.After(patience):
					return fmt.Errorf("hangs after %d bytes", n.Load())
				}
			}
			if got, want := hex.EncodeToString(back.Sum(nil)), hex.EncodeToString(sent.Sum(nil)); got != want {
				return fmt.Errorf("%d bytes came back, and not those that were sent", n.Load())
			}
			return nil
		},
		done: func() string { return fmt.Sprintf("%d bytes, SHA-256 %x", n.Load(), back.Sum(nil)) },
	}
}

// sendPaced sends 1.6 MB a second until ctx is done, then ends its half.
func sendPaced(ctx context.Context, c *net.TCPConn, sum hash.Hash) error {
	source := rand.NewChaCha8([32]byte{1})
	block := make([]byte, 16<<10)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return c.CloseWrite()
		case <-tick.C:
		}
		_, _ = source.Read(block) // never fails
		_, _ = sum.Write(block)
		if _, err := c.Write(block); err != nil {
			return err
		}
	}
}

// counter counts what is written to it.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// startKeys types into a shell and reads what it answers.
func startKeys(t *testing.T, c *cluster, node string) load {
	t.Helper()
	pod, spec := on(node, "shell")
	c.podWith(t, pod, "", spec, "sleep", "10000")
	cmd := c.startKubectl(t, "exec", "-it", pod, "--", "sh")
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	ctx, stop := context.WithCancel(t.Context())
	typed := make(chan error, 1)
	var n atomic.Int64
	go func() { typed <- typeKeys(ctx, tty, &n) }()
	return load{
		name: "exec -it", count: n.Load,
		finish: func() error {
			stop()
			if err := <-typed; err != nil {
				return fmt.Errorf("after %d lines: %w", n.Load(), err)
			}
			if _, err := io.WriteString(tty, "exit 7\n"); err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, tty) // until the terminal is hung up
			err := cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 7 {
				return fmt.Errorf("kubectl ended with %w, want exit code 7", err)
			}
			return nil
		},
		done: func() string { return fmt.Sprintf("%d lines answered", n.Load()) },
	}
}

func typeKeys(ctx context.Context, tty *os.File, n *atomic.Int64) error {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	answers := bufio.NewScanner(tty)
	for ctx.Err() == nil {
		i := n.Load() + 1
		// Written so that the echo of what is typed is not the answer.
		if _, err := fmt.Fprintf(tty, "echo answer $((%d+0)).\n", i); err != nil {
			return err
		}
		want := fmt.Sprintf("answer %d.", i)
		for {
			if !answers.Scan() {
				return fmt.Errorf("ended without %q: %w", want, errors.Join(answers.Err(), io.ErrUnexpectedEOF))
			}
			if strings.Contains(answers.Text(), want) {
				break
			}
		}
		n.Store(i)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// roleInPod runs a role of this test binary, a server, in a pod.
func (c *cluster) roleInPod(t *testing.T, name, role string) {
	t.Helper()
	c.roleInPodWith(t, name, "", "", role)
}

// roleInPodWith is roleInPod with more JSON for the container and for the pod's spec.
func (c *cluster) roleInPodWith(t *testing.T, name, container, spec, role string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A container's /tmp is its own: what lies in the machine's is mounted.
	c.podWith(t, name, fmt.Sprintf(`,"env":[{"name":%q,"value":%q}],"volumeMounts":[{"name":"test","mountPath":"/e2e"}]`, roleEnv, role)+container,
		spec+fmt.Sprintf(`,"volumes":[{"name":"test","hostPath":{"path":%q}}]`, filepath.Dir(self)), "/e2e/"+filepath.Base(self))
	eventually(t, name+" listens", func() error {
		if out, stderr, _ := c.kubectl(t, "", "logs", name); !strings.HasPrefix(out, "listening") {
			return errors.New(out + stderr)
		}
		return nil
	})
}

// Past the detach window there is no pretending: every client hears of it, and
// nothing that was cut off passes for complete. A log that is followed goes on.
func TestPastTheWindow(t *testing.T) {
	t.Parallel()
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	overEach(t, resuming, testPastTheWindow, "--netns",
		"--agent-arg=--detach-window=3s", "--agent-arg=--link-keepalive=1s", "--server-arg=--link-keepalive=1s")
}

func testPastTheWindow(t *testing.T, c *cluster, _ string) {
	c.podWith(t, "numbers", "", "", "sh", "-c", "i=0; while :; do i=$((i+1)); echo number $i; sleep 0.05; done")
	const port = 18713
	c.roleInPod(t, "echo", fmt.Sprintf("echo-server 127.0.0.1:%d", port))
	conn, err := net.Dial("tcp", c.forward(t, "echo", port))
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "hello")
	must(t, errors.Join(err, skip(conn, len("hello"))))
	follow := loads{followLines(t, c, "numbers", numberLine)}
	follow.goOn(t, "at first")
	endless := c.begin(t, "line 5", "exec", "numbers", "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done")
	node, err := c.lab(t).Node(c.node)
	must(t, err)
	marks := []*logMark{c.mark(t, "server"), c.mark(t, c.node)}
	must(t, node.Cut(t.Context()))
	endless.mustFail(t)
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the forwarded connection read %d bytes, %v", n, err)
	}
	for _, mark := range marks {
		mark.until(t, patience, "detach window is over")
	}
	must(t, node.Heal(t.Context()))
	c.execs(t, "numbers")
	follow.goOn(t, "once there is another session")
	follow.finish(t)
}

// A runningKubectl is a kubectl that has printed something.
type runningKubectl struct {
	*exec.Cmd
	stderr *lines
	ended  chan struct{} // closed when its output has ended
}

// begin starts a kubectl and waits for a line of its output.
func (c *cluster) begin(t *testing.T, line string, args ...string) *runningKubectl {
	t.Helper()
	b := &runningKubectl{Cmd: c.startKubectl(t, args...), stderr: &lines{}, ended: make(chan struct{})}
	b.Stderr = b.stderr
	out, err := b.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := readUntil(out, line); err != nil {
		t.Fatal(err, b.stderr)
	}
	go func() {
		defer close(b.ended)
		_, _ = io.Copy(io.Discard, out)
	}()
	return b
}

// mustFail waits for the end and wants it to be a failure with a word.
func (b *runningKubectl) mustFail(t *testing.T) {
	t.Helper()
	select {
	case <-b.ended:
	case <-time.After(patience):
		_ = b.Process.Kill()
		<-b.ended
		t.Errorf("%v goes on as if nothing had happened", b.Args[1:])
	}
	if err := b.Wait(); err == nil || strings.TrimSpace(b.stderr.String()) == "" {
		t.Errorf("%v was cut off and ended with %v, saying %q", b.Args[1:], err, b.stderr)
	}
}
