// How a server is asked to stop: by a signal or by hawser server drain, and at once by
// another signal.

package e2e

import (
	"bufio"
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

// begin begins a request of the administrator that the server has to answer before it ends. finish
// ends it, and returns the code of the answer.
func (s *lone) begin(t *testing.T) (finish func() int) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(s.dir, "pki", "admin.crt"), filepath.Join(s.dir, "pki", "admin.key"))
	must(t, err)
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}).DialContext(t.Context(), "tcp", s.addr)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	const body = `{"metadata":{"name":"begun"}}`
	_, err = fmt.Fprintf(conn, "POST /api/v1/namespaces HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", s.addr, len(body))
	must(t, err)
	answers := bufio.NewReader(conn)
	if line, err := answers.ReadString('\n'); !strings.Contains(line, " 100 ") { // its handler reads
		t.Fatal(line, err)
	}
	_, err = answers.ReadString('\n')
	must(t, err)
	return func() int {
		t.Helper()
		_, err := conn.Write([]byte(body))
		must(t, err)
		resp, err := http.ReadResponse(answers, nil)
		must(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
}

// TestServerDrainAgain: commands that are given again while the server drains wait with the first.
// They do not end the server, which answers what it has.
func TestServerDrainAgain(t *testing.T) {
	under, _ := bin(t)
	t.Parallel()
	s := startLone(t, filepath.Join(shortTempDir(t), "s"), "--graceful-shutdown-timeout=1h")
	finish := s.begin(t)
	drain := func() (cmd *exec.Cmd, out *lines) {
		cmd, out = exec.CommandContext(t.Context(), filepath.Join(under, "hawser"), "server", "drain", "--data-dir", s.dir), &lines{}
		cmd.Stdout, cmd.Stderr = out, out
		must(t, cmd.Start())
		return cmd, out
	}
	says := func(out *lines, text string) {
		t.Helper()
		eventually(t, "the command says: "+text, func() error {
			if !strings.Contains(out.String(), text) {
				return fmt.Errorf("it says %q", out)
			}
			return nil
		})
	}
	const before = "drains already: waiting"
	first, firstOut := drain()
	second, secondOut := drain() // at the same time
	eventually(t, "both wait", func() error {
		if all := firstOut.String() + secondOut.String(); strings.Count(all, "waiting until") != 2 {
			return fmt.Errorf("they say %q", all)
		}
		return nil
	})
	says(firstOut, "streams are open")
	must(t, first.Process.Signal(syscall.SIGINT))
	if err := first.Wait(); err == nil || !strings.Contains(firstOut.String(), "not waited any longer: the server goes on draining") {
		t.Errorf("interrupted: %v, %q", err, firstOut)
	}
	third, thirdOut := drain()
	says(thirdOut, before)
	if code := finish(); code != http.StatusCreated {
		t.Errorf("what was under way is answered with %d", code)
	}
	for out, cmd := range map[*lines]*exec.Cmd{secondOut: second, thirdOut: third} {
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "drained: ") {
			t.Errorf("%v, %q", err, out)
		}
	}
	if status := s.end(t); !status.Exited() || status.ExitStatus() != 0 {
		t.Errorf("the server ended with %v", status)
	}
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
