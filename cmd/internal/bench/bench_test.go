package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// bound bounds every wait. It is no measure: what takes this long hangs.
const bound = time.Minute

// parentVariable makes the test binary run a comparison until it is killed.
const parentVariable = "HAWSER_BENCH_TEST_PARENT"

// TestMain makes the test binary one that can be started as a run starts it.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "bench" && os.Args[2] == "serve" {
		os.Exit(served(strings.TrimPrefix(os.Args[3], "--role=")))
	}
	if os.Getenv(parentVariable) != "" {
		c := Config{Duration: time.Minute, Rounds: MaxRounds, Sessions: 1, Streams: 1, Progress: os.Stdout}
		if _, err := Run(context.Background(), c); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func served(role string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Serve(ctx, role, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// children are the processes that a process has started and that run.
func children(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			if runs(child) {
				pids = append(pids, child)
				pids = append(pids, children(t, child)...)
			}
		}
	}
	return pids
}

// runs says whether a process is there and no zombie.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	return len(f) > 0 && f[0] != "Z" && f[0] != "X"
}

// nothingLeft fails the test if something of a run is still there when it ends.
func nothingLeft(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	before := children(t, os.Getpid())
	t.Cleanup(func() {
		left := slices.DeleteFunc(children(t, os.Getpid()), func(p int) bool { return slices.Contains(before, p) })
		if len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Errorf("%v is left, %v", files, err)
		}
	})
}

// TestRun compares everything with everything, once and briefly, and two things twice. Its
// processes do not watch for races; those of TestInterrupted and TestParentKilled do.
func TestRun(t *testing.T) {
	program := filepath.Join(t.TempDir(), "role")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./testdata/role")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	command := func(role string) ([]string, error) { return []string{program, role}, nil }
	t.Run("all", func(t *testing.T) { testRun(t, command, 1, Transports()) })
	t.Run("again", func(t *testing.T) { testRun(t, command, 2, []string{Relay, "qmux"}) })
}

func testRun(t *testing.T, command func(role string) ([]string, error), rounds int, transports []string) {
	nothingLeft(t)
	var progress bytes.Buffer
	report, err := Run(t.Context(), Config{
		Duration: 100 * time.Millisecond, Rounds: rounds, Transports: transports, Sessions: 10, Streams: 30, Version: "v0", Progress: &progress, Command: command,
	})
	if err != nil {
		t.Fatalf("%v; after %s", err, &progress)
	}
	var text bytes.Buffer
	if err := report.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.Schema != Schema || back.Rounds != rounds || len(back.Results) != len(transports) {
		t.Errorf("schema %q, %d rounds, %d results", back.Schema, back.Rounds, len(back.Results))
	}
	for _, r := range back.Results {
		for _, f := range back.Figures {
			v := r.Values[f.Name]
			if absent(r.Transport, f.Name) {
				if v != nil {
					t.Errorf("%s has %s", r.Transport, f.Name)
				}
				continue
			}
			if v == nil || v.Median <= 0 || len(v.Rounds) == 0 {
				t.Errorf("%s: %s is %+v", r.Transport, f.Name, v)
				continue
			}
			if measuredOnce := strings.HasSuffix(f.Name, "KiB"); !measuredOnce && len(v.Rounds) != rounds {
				t.Errorf("%s: %s has %d rounds", r.Transport, f.Name, len(v.Rounds))
			}
			if r.Transport == Relay && v.Ratio != 1 {
				t.Errorf("the relay is %v of itself in %s", v.Ratio, f.Name)
			}
			delete(r.Values, f.Name)
		}
		for name := range r.Values {
			t.Errorf("%s has %s, which is not in the list of figures", r.Transport, name)
		}
	}
	if slices.Contains(transports, "ssh") && (len(back.Notes) != 1 || !strings.HasPrefix(back.Notes[0], "ssh: the node's side is ")) {
		t.Errorf("notes %q", back.Notes)
	}
}

// absent says what does not apply.
func absent(transport, figure string) bool {
	switch transport {
	case Direct:
		return strings.HasSuffix(figure, "s_per_GB") || strings.HasSuffix(figure, "KiB")
	case Relay:
		return figure == "session_control_KiB"
	default:
		return false
	}
}

// A signalled writer closes a channel when a text has gone by.
type signalled struct {
	text string
	mu   sync.Mutex // guards the following
	seen chan struct{}
	all  bytes.Buffer
}

func (s *signalled) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := strings.Contains(s.all.String(), s.text)
	s.all.Write(p)
	if !before && strings.Contains(s.all.String(), s.text) {
		close(s.seen)
	}
	return len(p), nil
}

// TestInterrupted ends a run in the middle of its bulk.
func TestInterrupted(t *testing.T) {
	nothingLeft(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	why := errors.New("enough")
	w := &signalled{text: "16 streams to the client", seen: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, Config{
			Duration: 100 * time.Millisecond, Rounds: MaxRounds, Sessions: 1, Streams: 1, Progress: w, Transports: []string{Relay, "qmux"},
		})
		done <- err
	}()
	select {
	case <-w.seen:
	case err := <-done:
		t.Fatal(err)
	case <-time.After(2 * bound):
		w.mu.Lock()
		t.Errorf("the run does not get there:\n%s", &w.all)
		w.mu.Unlock()
	}
	cancel(why)
	select {
	case err := <-done:
		if !errors.Is(err, why) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(bound):
		t.Fatal("the run does not end")
	}
}

// TestParentKilled shows that nothing outlives a run that was killed.
func TestParentKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), parentVariable+"=1", "TMPDIR="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	// When the first measurement begins, everything has been started.
	seen := ""
	for b := make([]byte, 1024); !strings.Contains(seen, "round 1"); {
		n, err := out.Read(b)
		if seen += string(b[:n]); err != nil {
			t.Fatalf("%v; after %s", err, seen)
		}
	}
	started := children(t, parent.Process.Pid)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	_ = parent.Wait() // it was killed
	if len(started) < 2*(len(Transports())-1) {
		t.Fatalf("only %d processes were started", len(started))
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(bound); slices.ContainsFunc(started, runs); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("of %v some still run", started)
		}
	}
}

func TestBadConfig(t *testing.T) {
	nothingLeft(t)
	for name, c := range map[string]Config{
		`"carrier-pigeon" is none of direct, relay, qmux, yamux, h2, quic, ssh`: {Transports: []string{"relay", "carrier-pigeon"}},
		`"relay" is there twice`:                           {Transports: []string{"relay", "relay"}},
		"duration: 1ms is not between 10ms and 1m0s":       {Duration: time.Millisecond},
		"rounds: -1 is not between 1 and 100":              {Rounds: -1},
		"sessions: 1000000 is not between 1 and 10000":     {Sessions: 1_000_000},
		"streams: 1001 is not between 1 and 1000":          {Streams: 1001},
		"start relay-node: fork/exec /nowhere/hawser: no ": {Command: func(string) ([]string, error) { return []string{"/nowhere/hawser"}, nil }},
		"relay-node: exit status 1: oh no": {Command: func(string) ([]string, error) {
			return []string{"/bin/sh", "-c", "echo oh no >&2; exit 1"}, nil
		}},
	} {
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %s", err, name)
		}
	}
}
