// Servers that are killed while streams go through them: nothing that was cut off
// passes for complete, and what begins afterwards works.

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/e2e/await"
)

func TestServerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	whole := t
	overEachFront(t, everyTransport, func(t *testing.T, f *front, _ string) {
		v := startVictims(t, f)
		args := f.kill(t, "server")
		v.allFail(t)
		run(whole, args, filepath.Join(f.dir, "server"))
		eventually(t, "the API answers again", func() error {
			_, err := f.client.CoreV1().Nodes().Get(t.Context(), f.node, metav1.GetOptions{})
			return err
		})
		v.goOn(t, f)
	})
}

// victims are streams of every kind that no one has told to end.
type victims struct {
	kubectls        []*runningKubectl
	target          *target
	stream, forward net.Conn
	forwarded       int // port of the pod
}

// endless is a file of which no copy comes to its end within a test.
const endless = int64(1) << 40

func startVictims(t *testing.T, f *front) *victims {
	t.Helper()
	v := &victims{target: newTarget(t, nil, echoAll), forwarded: await.FreePort(t)}
	f.podWith(t, "numbers", "", "", "sh", "-c", "truncate -s 1T /tmp/endless; i=0; while :; do i=$((i+1)); echo number $i; sleep 0.05; done")
	f.roleInPod(t, "echo", fmt.Sprintf("echo-server 127.0.0.1:%d", v.forwarded))
	var err error
	v.forward, err = net.Dial("tcp", f.forward(t, "echo", v.forwarded))
	must(t, err)
	v.stream, err = f.connect(v.target.port)
	must(t, err)
	for _, c := range []net.Conn{v.forward, v.stream} {
		t.Cleanup(func() { _ = c.Close() })
		_, err := io.WriteString(c, "x")
		must(t, errors.Join(err, skip(c, 1)))
	}
	dir := t.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	must(t, os.WriteFile(there, nil, 0o600))
	must(t, os.Truncate(there, endless))
	v.kubectls = []*runningKubectl{
		f.begin(t, "number 5", "logs", "-f", "numbers"),
		f.begin(t, "line 5", "exec", "numbers", "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"),
		f.set(t, "cp", there, "numbers:/tmp/copied"),
		f.set(t, "cp", "numbers:/tmp/endless", back),
	}
	f.mustKubectl(t, "", "exec", "numbers", "--", "sh", "-c", "until [ -s /tmp/copied ]; do sleep 0.1; done")
	eventually(t, "something has been copied", func() error {
		fi, err := os.Stat(back)
		if err == nil && fi.Size() == 0 {
			err = errNotYet
		}
		return err
	})
	return v
}

// set starts a kubectl that has nothing to say before its end.
func (c *cluster) set(t *testing.T, args ...string) *runningKubectl {
	t.Helper()
	b := &runningKubectl{Cmd: c.startKubectl(t, args...), stderr: &lines{}, ended: make(chan struct{})}
	b.Stderr = b.stderr
	out, err := b.StdoutPipe()
	must(t, err)
	must(t, b.Start())
	go func() {
		defer close(b.ended)
		_, _ = io.Copy(io.Discard, out)
	}()
	return b
}

// allFail wants each stream to end, and kubectl to say that it has failed.
func (v *victims) allFail(t *testing.T) {
	t.Helper()
	for _, k := range v.kubectls {
		k.mustFail(t)
	}
	for what, c := range map[string]net.Conn{"a CONNECT stream": v.stream, "a forwarded connection": v.forward} {
		must(t, c.SetReadDeadline(time.Now().Add(patience)))
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s read %d bytes, %v", what, n, err)
		}
	}
	v.target.deserted(t)
}

// goOn wants new streams of every kind to work.
func (v *victims) goOn(t *testing.T, f *front) {
	t.Helper()
	f.execs(t, "numbers")
	must(t, f.exchange(v.target.port, 1<<20))
	follow := f.begin(t, "number", "logs", "-f", "--tail=1", "numbers")
	must(t, follow.Process.Signal(os.Interrupt))
	<-follow.ended
	_ = follow.Wait() // interrupted by us
	conn, err := net.Dial("tcp", f.forward(t, "echo", v.forwarded))
	must(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "hello")
	got := make([]byte, len("hello"))
	_, rerr := io.ReadFull(conn, got)
	if must(t, errors.Join(err, rerr)); string(got) != "hello" {
		t.Errorf("the echo says %q", got)
	}
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	must(t, os.WriteFile(there, []byte(strings.Repeat("copied ", 1000)), 0o600))
	f.mustKubectl(t, "", "cp", there, "numbers:/tmp/again")
	if out := f.mustKubectl(t, "", "exec", "numbers", "--", "cat", "/tmp/again"); out != strings.Repeat("copied ", 1000) {
		t.Errorf("%d bytes were copied", len(out))
	}
}
