// The five minutes of README: each command as it is printed, by a newcomer's shell.

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/e2e/document"
)

// TestReadme runs the blocks of README that are marked with a setting. A block with until=TEXT
// stays in the foreground: the next one begins when it has printed the text.
func TestReadme(t *testing.T) {
	t.Parallel()
	needReadmePorts(t)
	t.Run("alone", func(t *testing.T) { newcomer(t).does(t, "alone") })
	t.Run("beside", func(t *testing.T) {
		c := startUp(t, notOurs...)
		newcomer(t, "KUBECONFIG="+c.kubeconfig()).does(t, "beside")
	})
	t.Run("ssh", func(t *testing.T) { newcomer(t).does(t, "ssh") })
}

// TestKubernetesReadme has the hub of README beside a cluster of Kubernetes' own programs.
func TestKubernetesReadme(t *testing.T) {
	k := startKubeAPI(t)
	needReadmePorts(t)
	newcomer(t, "KUBECONFIG="+k.kubeconfig()).does(t, "beside")
}

// needReadmePorts skips the test where a port of README's commands is taken.
func needReadmePorts(t *testing.T) {
	t.Helper()
	for _, port := range []string{"6443", "8131", "8132", "8134"} {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			t.Skipf("SKIPPED: the commands of README need a port that is taken: %v", err)
		}
		_ = l.Close()
	}
}

// A reader types what README prints in a directory of its own.
type reader struct {
	dir string
	env []string
}

// newcomer has the programs on the path, and nothing else but env.
func newcomer(t *testing.T, env ...string) reader {
	t.Helper()
	under, _ := bin(t)
	dir := shortTempDir(t)
	return reader{dir: dir, env: append([]string{"PATH=" + under + ":" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}, env...)}
}

// does runs the blocks of a setting.
func (r reader) does(t *testing.T, setting string) {
	t.Helper()
	// What stays in the foreground ends before.
	t.Cleanup(func() {
		eventually(t, "nothing is left running", func() error {
			if left := processesOf(r.dir); len(left) > 0 {
				return fmt.Errorf("still there: %v", left)
			}
			return nil
		})
	})
	ran := 0
	for _, b := range document.All(t, "..")[0].Blocks() {
		if len(b.Marks) == 0 || b.Marks[0] != setting {
			continue
		}
		ran++
		if until, ok := strings.CutPrefix(strings.Join(b.Marks[1:], " "), "until="); ok {
			r.foreground(t, b.Text, until)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, "sh", "-eux", "-c", "umask 022\n"+b.Text)
		cmd.Dir, cmd.Env = r.dir, r.env
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if ran == 0 {
		t.Error("README has no command for that")
	}
	left, err := os.ReadDir(r.dir)
	must(t, err)
	for _, f := range left {
		info, err := f.Info()
		must(t, err)
		if strings.HasSuffix(f.Name(), "kubeconfig") && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s can be read by others: %v", f.Name(), info.Mode())
		}
	}
}

// foreground starts a command and waits until it has printed a text. At the end of the test it
// is interrupted, and must end well unless it is kubectl, which says that it was interrupted.
func (r reader) foreground(t *testing.T, command, until string) {
	t.Helper()
	var out lines
	cmd := exec.Command("sh", "-eu", "-c", "exec "+command)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		if err := <-ended; err != nil && !strings.HasPrefix(command, "hawser kubectl ") {
			t.Errorf("%s ended: %v\n%s", command, err, out.String())
		}
		if t.Failed() {
			t.Logf("%s\n%s", command, out.String())
		}
	})
	eventually(t, command+" is ready", func() error {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("%s ended: %v\n%s", command, err, out.String())
		default:
		}
		if !strings.Contains(out.String(), until) {
			return errors.New(out.String())
		}
		return nil
	})
}
