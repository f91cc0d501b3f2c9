// Long and large streams through real kubectl: logs -f, exec -it, attach, cp,
// port-forward.

package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestStreams runs on a cluster whose nodes are behind NATs where that can be
// had, and on plain processes elsewhere.
func TestStreams(t *testing.T) {
	t.Parallel()
	args := []string{"--nodes", "1"}
	if netnsHere(t) {
		args = append(args, "--netns")
	}
	c := startUp(t, args...)
	for name, test := range map[string]func(*testing.T, *cluster){
		"log follow":           testLogFollow,
		"exec with a terminal": testTerminal,
		"attach":               testAttach,
		"attach to a terminal": testAttachTerminal,
		"proxies and ports":    testWeb,
		"copy":                 testCopy,
		"port-forward":         testPortForward,
		"closed port":          testClosedPort,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// pod creates a pod with one container of that command and waits until it runs.
func (c *cluster) pod(t *testing.T, name, container string, command ...string) {
	t.Helper()
	c.podWith(t, name, container, "", command...)
	t.Cleanup(func() { c.mustKubectl(t, "", "delete", "pod", name, "--now") })
}

// podWith is pod with more JSON for the container and for the pod's spec. The pod
// is left to the end of the cluster.
func (c *cluster) podWith(t *testing.T, name, container, spec string, command ...string) {
	t.Helper()
	argv, err := json.Marshal(command)
	must(t, err)
	if c.node != "" {
		spec += fmt.Sprintf(`,"nodeName":%q`, c.node)
	}
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"terminationGracePeriodSeconds":1%s,
		"containers":[{"name":"main","image":"none","command":%s%s}]}}`, name, spec, argv, container)
	var pod corev1.Pod
	must(t, yaml.UnmarshalStrict([]byte(text), &pod))
	// Not kubectl apply: a server's first OpenAPI document costs as much as its start.
	_, err = c.client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), &pod, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	must(t, err)
	c.mustKubectl(t, "", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=120s")
}

// startKubectl prepares a kubectl that goes on until the test ends.
func (c *cluster) startKubectl(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	_, client := bin(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	return cmd
}

func testLogFollow(t *testing.T, c *cluster) {
	const n = 20000
	c.pod(t, "counter", "", "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo number $i; done; echo end; exec sleep 1000", n))
	cmd := c.startKubectl(t, "logs", "-f", "counter")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(out)
	for i := 1; i <= n; i++ {
		if want := fmt.Sprintf("number %d", i); !sc.Scan() || sc.Text() != want {
			t.Fatalf("got %q (%v), want %q", sc.Text(), sc.Err(), want)
		}
	}
	if !sc.Scan() || sc.Text() != "end" {
		t.Errorf("got %q at the end", sc.Text())
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // interrupted by us
}

func testTerminal(t *testing.T, c *cluster) {
	c.pod(t, "shell", "", "sleep", "1000")
	cmd := c.startKubectl(t, "exec", "-it", "shell", "--", "sh")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 111})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	typeSizes(t, tty)
	if _, err := io.WriteString(tty, "exit 5\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, tty) // until the terminal is hung up
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("kubectl ended with %v, want exit code 5", err)
	}
}

// typeSizes asks a shell of 33 rows and 111 columns for them, and again when they are others.
func typeSizes(t *testing.T, tty *os.File) {
	t.Helper()
	// The size reaches the far terminal a moment after the shell has started.
	if _, err := io.WriteString(tty, "until [ \"$(stty size)\" = '33 111' ]; do sleep 0.1; done; echo size $(stty size)\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := readUntil(tty, "size 33 111"); err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 20, Cols: 70}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(tty, "until [ \"$(stty size)\" = '20 70' ]; do sleep 0.1; done; echo now $(stty size)\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := readUntil(tty, "now 20 70"); err != nil {
		t.Fatal(err)
	}
}

func testAttachTerminal(t *testing.T, c *cluster) {
	c.pod(t, "login", `,"stdin":true,"tty":true`, "sh")
	cmd := c.startKubectl(t, "attach", "-it", "login", "-c", "main")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 111})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	typeSizes(t, tty)
	if _, err := io.WriteString(tty, "exit\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, tty) // until the terminal is hung up
	if err := cmd.Wait(); err != nil {
		t.Errorf("kubectl ended with %v", err)
	}
}

func testAttach(t *testing.T, c *cluster) {
	c.pod(t, "echo", `,"stdin":true,"stdinOnce":true`, "sh", "-c", "while read line; do echo you said $line; done; echo bye; sleep 1000")
	cmd := c.startKubectl(t, "attach", "-i", "echo", "-c", "main")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		if _, err := fmt.Fprintln(in, word); err != nil {
			t.Fatal(err)
		}
		if _, err := readUntil(out, "you said "+word); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of standard input reaches the container", func() error {
		if logs := c.mustKubectl(t, "", "logs", "echo"); !strings.HasSuffix(logs, "bye\n") {
			return fmt.Errorf("log ends with %q", logs)
		}
		return nil
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func testCopy(t *testing.T, c *cluster) {
	c.pod(t, "files", "", "sleep", "1000")
	dir := t.TempDir()
	var data bytes.Buffer
	if _, err := io.CopyN(&data, pattern{}, 5<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "there"), data.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	c.mustKubectl(t, "", "cp", filepath.Join(dir, "there"), "files:/tmp/copied")
	c.mustKubectl(t, "", "cp", "files:/tmp/copied", filepath.Join(dir, "back"))
	back, err := os.ReadFile(filepath.Join(dir, "back"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back, data.Bytes()) {
		t.Errorf("%d bytes came back different (sent %d)", len(back), data.Len())
	}
}

const forwardPort = 18711

func testPortForward(t *testing.T, c *cluster) {
	c.roleInPod(t, "hash", fmt.Sprintf("hash-server 127.0.0.1:%d", forwardPort))
	local := c.forward(t, "hash", forwardPort)
	const total, conns = 100 << 20, 4
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			if err := roundTrip(local, total/conns); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c.mustKubectl(t, "", "label", "pod", "hash", "app=hash")
	c.mustKubectl(t, "", "expose", "pod", "hash", "--port=80", fmt.Sprintf("--target-port=%d", forwardPort))
	if err := roundTrip(c.forward(t, "service/hash", 80), 1<<20); err != nil {
		t.Errorf("by the service: %v", err)
	}
	c.mustKubectl(t, "", "delete", "service", "hash")
}

// forward runs kubectl port-forward to a pod, or to what is named TYPE/NAME, until the test
// ends and returns the local address.
func (c *cluster) forward(t *testing.T, what string, port int) string {
	t.Helper()
	cmd := c.startKubectl(t, "port-forward", what, fmt.Sprintf(":%d", port))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr lines
	cmd.Stderr = &stderr
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := readUntil(out, "Forwarding from 127.0.0.1:")
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }() // ends with kubectl
	return regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
}

// roundTrip sends n bytes to the hash server, ends its half, and checks the hash
// and the n bytes that come back.
func roundTrip(addr string, n int64) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	h := sha256.New()
	if _, err = io.CopyN(io.MultiWriter(conn, h), pattern{}, n); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if err = conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return fmt.Errorf("no hash came back: %w", err)
	}
	if want := hex.EncodeToString(h.Sum(nil)) + "\n"; line != want {
		return fmt.Errorf("the far side got other bytes: hash %q, want %q", line, want)
	}
	back := sha256.New()
	m, err := io.Copy(back, r)
	if err != nil || m != n {
		return fmt.Errorf("%d of %d bytes came back: %w", m, n, err)
	}
	return nil
}

func testClosedPort(t *testing.T, c *cluster) {
	c.pod(t, "quiet", "", "sleep", "1000")
	local := c.forward(t, "quiet", 9)
	conn, err := net.Dial("tcp", local)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// kubectl gets the refusal and closes the connection: what must not be is
	// that it hangs.
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a port on which nothing listens", n)
	}
}
