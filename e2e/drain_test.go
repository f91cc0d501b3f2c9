// How a server is asked to stop: by a signal or by hawser server drain, and at once by
// another signal.

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/e2e/await"
)

// A lone server is one without nodes.
type lone struct {
	*exec.Cmd
	backend
	dir   string
	ended chan struct{}
}

// startLone starts a server and returns once it is ready.
func startLone(t *testing.T, dir string, args ...string) *lone {
	t.Helper()
	return startLoneAt(t, await.FreePort(t), nil, dir, args...)
}

// startLoneAt starts it at a port, in a mount namespace of its own by the command under, if
// there is one.
func startLoneAt(t *testing.T, port int, under []string, dir string, args ...string) *lone {
	t.Helper()
	programs, _ := bin(t)
	log := &lines{}
	s := &lone{dir: dir, ended: make(chan struct{})}
	s.addr = "127.0.0.1:" + strconv.Itoa(port)
	words := slices.Concat(under, []string{
		filepath.Join(programs, "hawser"), "server", "--data-dir", dir, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port), "--connect-port", "0",
	}, args)
	s.Cmd = exec.Command(words[0], words[1:]...)
	if under != nil {
		s.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	s.Stdout, s.Stderr = log, log
	must(t, s.Start())
	go func() {
		_ = s.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		_ = s.Process.Kill()
		<-s.ended
		if t.Failed() || hasRace(log.String()) {
			t.Errorf("server:\n%s", log)
		}
	})
	eventually(t, "the server is ready", func() error {
		if !strings.Contains(log.String(), "msg=ready") {
			return errNotYet
		}
		return nil
	})
	return s
}

// end waits until the server has ended, and says how.
func (s *lone) end(t *testing.T) syscall.WaitStatus {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatal("the server has not ended")
	}
	return s.ProcessState.Sys().(syscall.WaitStatus)
}

func TestServerDrain(t *testing.T) {
	bin(t) // before the tests that are timed
	t.Parallel()
	under, _ := bin(t)
	drain := func(dir string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(under, "hawser"), "server", "drain", "--data-dir", dir).CombinedOutput()
		return string(out), err
	}
	dir := filepath.Join(shortTempDir(t), "s")
	if out, err := drain(dir); err == nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, "is no server's data directory") {
		t.Errorf("no directory: %v, %q", err, out)
	}
	s := startLone(t, dir)
	if out, err := drain(dir); err != nil || !strings.HasPrefix(out, fmt.Sprintf("waiting until the server, process %d, has handed its work over\n", s.Process.Pid)+"drained: 0 of 0 nodes moved to other servers; all 0 streams ended within ") {
		t.Errorf("%v, %q", err, out)
	}
	if status := s.end(t); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("the server ended with %v", status)
	}
	if out, err := drain(dir); err == nil || !strings.Contains(out, "no server runs on "+dir) {
		t.Errorf("no server: %v, %q", err, out)
	}

	s = startLone(t, dir, "--shutdown-delay-duration=1h")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	status := func(path string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.addr+path, nil)
		must(t, err)
		resp, err := client.Do(req)
		if err != nil {
			return err.Error()
		}
		_ = resp.Body.Close()
		return strconv.Itoa(resp.StatusCode)
	}
	must(t, s.Process.Signal(syscall.SIGTERM))
	eventually(t, "the server is not ready any more", func() error {
		if got := status("/readyz"); got != "500" {
			return fmt.Errorf("/readyz: %s", got)
		}
		return nil
	})
	if got := status("/version"); got != "200" {
		t.Errorf("/version: %s", got)
	}
	must(t, s.Process.Signal(syscall.SIGTERM))
	if status := s.end(t); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("at a second signal the server ended with %v", status)
	}
}
