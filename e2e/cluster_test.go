// Clusters for tests: hawser up as a child, and kubectl against it.

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/e2e/await"
)

// patience bounds every wait for something that must happen. It is generous:
// only a fault lets it pass.
const patience = 3 * time.Minute

// A cluster is a running hawser up.
type cluster struct {
	dir    string
	port   int
	env    []string // of hawser up and its children, beside this process's
	up     *exec.Cmd
	ends   os.Signal // hawser up, at the end of the test; nil means an interrupt
	out    *lines
	node   string // to which pods are bound; none leaves it to the scheduler
	client kubernetes.Interface
	rest   *rest.Config
}

// startUp runs hawser up in a new directory and waits until it says ready. At
// the end of the test it is interrupted and must end well, with nothing of it
// left running.
func startUp(t testing.TB, args ...string) *cluster {
	t.Helper()
	c := &cluster{dir: shortTempDir(t), port: await.FreePort(t)}
	c.start(t, args...)
	return c
}

func (c *cluster) start(t testing.TB, args ...string) {
	t.Helper()
	under, _ := bin(t)
	// What this machine is short of is not the concern of these tests.
	first := []string{"up", "--dir", c.dir, "--port", strconv.Itoa(c.port), "--agent-arg=--eviction-hard="}
	c.up = exec.Command(filepath.Join(under, "hawser"), append(first, args...)...)
	c.out = &lines{}
	c.up.Stdout, c.up.Stderr = c.out, c.out
	c.up.Env = append(os.Environ(), c.env...)
	if err := c.up.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.up.Wait() }()
	t.Cleanup(func() { c.stop(t, ended) })
	for {
		more := c.out.more()
		if strings.Contains(c.out.String(), "ready: export KUBECONFIG=") {
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("hawser up ended: %v\n%s", err, c.out)
		case <-more:
		case <-time.After(patience):
			t.Fatalf("hawser up is not ready\n%s\n%s", c.out, c.logs())
		}
	}
	var err error
	if c.rest, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig()); err != nil {
		t.Fatal(err)
	}
	c.rest.QPS, c.rest.Burst = 200, 400
	if c.client, err = kubernetes.NewForConfig(c.rest); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) stop(t testing.TB, ended chan error) {
	if t.Failed() {
		t.Log(c.logs())
	}
	if err := c.up.Process.Signal(cmp.Or(c.ends, os.Interrupt)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("hawser up ended: %v\n%s", err, c.out)
		}
	case <-time.After(patience):
		_ = c.up.Process.Kill()
		t.Errorf("hawser up did not end after an interrupt\n%s", c.out)
	}
	eventually(t, "nothing is left running", func() error {
		if left := processesOf(c.dir); len(left) > 0 {
			return fmt.Errorf("still there: %v", left)
		}
		return nil
	})
	for _, log := range c.logFiles() {
		b, err := os.ReadFile(log)
		if err == nil && hasRace(string(b)) {
			t.Errorf("data race in %s:\n%s", log, b)
		}
	}
}

// hasRace tells whether a program's log has a data race. One is Kubernetes' own and left out: the
// service controller of k8s.io/cloud-provider (v0.37.2, controller.go:339 and :503) stores a
// pointer in its cache without the lock under which another worker reads it.
func hasRace(log string) bool {
	reports := strings.Split(log, "WARNING: DATA RACE")
	return slices.ContainsFunc(reports[1:], func(report string) bool {
		report, _, _ = strings.Cut(report, "==================")
		return !strings.Contains(report, "k8s.io/cloud-provider/controllers/service.(*serviceCache).allServices()") ||
			!strings.Contains(report, "k8s.io/cloud-provider/controllers/service.(*Controller).processServiceCreateOrUpdate()")
	})
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

func (c *cluster) logFiles() []string {
	nodes, _ := filepath.Glob(filepath.Join(c.dir, "nodes", "*", "agent.log"))
	return append([]string{filepath.Join(c.dir, "server.log")}, nodes...)
}

// logs returns the end of each log.
func (c *cluster) logs() string {
	var b strings.Builder
	for _, file := range c.logFiles() {
		data, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintln(&b, err)
			continue
		}
		if len(data) > 6000 {
			data = data[len(data)-6000:]
		}
		fmt.Fprintf(&b, "--- %s\n%s\n", file, data)
	}
	return b.String()
}

// pid reads the process id of the server ("server") or of a node's agent.
func (c *cluster) pid(t testing.TB, of string) int {
	t.Helper()
	file := filepath.Join(c.dir, "server.pid")
	if of != "server" {
		file = filepath.Join(c.dir, "nodes", of, "agent.pid")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// kill ends a process of the cluster at once and returns the command line by
// which it was running.
func (c *cluster) kill(t *testing.T, of string) []string {
	t.Helper()
	return c.end(t, of, syscall.SIGKILL)
}

// end ends a process of the cluster by a signal and returns the command line by which it was
// running.
func (c *cluster) end(t *testing.T, of string, by syscall.Signal) []string {
	t.Helper()
	pid, args := c.pid(t, of), c.cmdline(t, of)
	if err := syscall.Kill(pid, by); err != nil {
		t.Fatal(err)
	}
	// Not until its parent has taken leave of it: a process may be dead while
	// threads of it still hold its files, and their locks.
	eventually(t, of+" is gone", func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return errors.New("still there")
		}
		return nil
	})
	return args
}

// cmdline is the command line by which a process of the cluster runs.
func (c *cluster) cmdline(t *testing.T, of string) []string {
	t.Helper()
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.pid(t, of)))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(args), "\x00"), "\x00")
}

// alive tells whether a process runs, as opposed to having ended unnoticed by
// its parent.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// run starts a command that the test ends at its end, if it has not ended, with
// its output in base.log and its process id in base.pid.
func run(t *testing.T, args []string, base string) {
	t.Helper()
	out, err := os.OpenFile(base+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = out.Close()
	})
	if err := os.WriteFile(base+".pid", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
}

var otherKubectl = flag.String("e2e.kubectl", "", "file of a kubectl that the tests use instead of hawser's")

// kubectlCommand is how kubectl is called.
func kubectlCommand(t testing.TB) []string {
	if *otherKubectl != "" {
		return []string{*otherKubectl}
	}
	_, client := bin(t)
	return []string{filepath.Join(client, "hawser"), "kubectl"}
}

// asksWhoami says whether auth whoami of kubectl asks a version of the API that is still
// there: 1.27 asks an older one.
func asksWhoami(t testing.TB) bool {
	t.Helper()
	args := append(kubectlCommand(t), "version", "--client", "-o", "json")
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return !strings.Contains(string(out), `"gitVersion": "v1.27.`)
}

// kubectl runs kubectl and returns its output and exit code. What it makes of stdin it does not
// validate, unless it is told to: a server makes the OpenAPI document for that, which costs more
// than its start. TestManifests, TestReadme and TestScripts have it validate.
func (c *cluster) kubectl(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	// Not the test's context: cleanups run kubectl too.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if stdin != "" && (args[0] == "apply" || args[0] == "create") && !slices.ContainsFunc(args, isValidate) {
		args = append(args, "--validate=false")
	}
	args = append(kubectlCommand(t), args...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	cmd.Stdin = strings.NewReader(stdin)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func isValidate(arg string) bool { return strings.HasPrefix(arg, "--validate=") }

// mustKubectl is kubectl that has to end with 0.
func (c *cluster) mustKubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	stdout, stderr, code := c.kubectl(t, stdin, args...)
	if code != 0 {
		t.Fatalf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// eventually repeats check until it returns nil.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	await.Until(t, patience, what, check)
}

// processesOf lists the processes whose command line names dir, or a container
// that is kept below dir.
func processesOf(dir string) map[int]string {
	marks := [][]byte{[]byte(dir)}
	containers, _ := filepath.Glob(filepath.Join(dir, "nodes", "*", "runtime", "c", "*"))
	for _, c := range containers {
		marks = append(marks, []byte(filepath.Base(c)))
	}
	out := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && slices.ContainsFunc(marks, func(m []byte) bool { return bytes.Contains(b, m) }) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && alive(pid) {
				out[pid] = strings.ReplaceAll(string(b), "\x00", " ")
			}
		}
	}
	return out
}

// shortTempDir is t.TempDir with a path short enough for unix sockets in it.
func shortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// lines collects output and tells of more.
type lines struct {
	mu     sync.Mutex
	buf    bytes.Buffer // guarded by mu
	notify chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(p)
	if l.notify != nil {
		close(l.notify)
		l.notify = nil
	}
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// more is closed when there is output after the call.
func (l *lines) more() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notify == nil {
		l.notify = make(chan struct{})
	}
	return l.notify
}

// readUntil reads lines until one contains want, and returns it.
func readUntil(r io.Reader, want string) (string, error) {
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		if strings.Contains(sc.Text(), want) {
			return sc.Text(), nil
		}
	}
	return "", fmt.Errorf("ended without %q: %w", want, errors.Join(sc.Err(), io.ErrUnexpectedEOF))
}
