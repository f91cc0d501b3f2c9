package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// Containers go on without the agent, and the next one adopts them.
func TestAdopt(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		dir := t.TempDir()
		first := newRig(t, Config{DataDir: dir, Isolation: iso})
		if _, err := first.EnsureSandbox(first.ctx, runtime.Sandbox{Pod: testPod, Hostname: "h"}); err != nil {
			t.Fatal(err)
		}
		running := first.idle("running")
		ended := first.start(first.container("ended", "echo ended; exit 6"))
		first.wait(ended)
		c := first.container("ends-later", "read x; echo $x; exit 7")
		c.Stdin, c.StdinOnce = true, true
		later := first.start(c)
		first.waitLog(running, "ready")
		before := map[string]runtime.ContainerStatus{running: first.status(running), ended: first.status(ended)}
		first.stop()

		second := newRig(t, Config{DataDir: dir, Isolation: iso})
		for id, want := range before {
			if got := second.status(id); !sameStatus(got, want) {
				t.Errorf("before %+v\nafter  %+v", want, got)
			}
		}
		var out bytes.Buffer
		if code, err := second.Exec(second.ctx, running, []string{"echo", "hi"}, runtime.Stdio{Out: &out}); err != nil || code != 0 || out.String() != "hi\n" {
			t.Errorf("exec: %d %v %q", code, err, out.String())
		}
		if err := second.Attach(second.ctx, later, runtime.Stdio{In: strings.NewReader("word\n"), Out: &out}); err != nil {
			t.Error(err)
		}
		if st := second.wait(later); st.ExitCode != 7 || second.log(later) != "word\n" {
			t.Errorf("status %+v, log %q", st, second.log(later))
		}
		pods, err := second.Sandboxes(second.ctx)
		if err != nil || len(pods) != 1 || pods[0] != testPod {
			t.Errorf("sandboxes %v, %v", pods, err)
		}
	})
}

func sameStatus(a, b runtime.ContainerStatus) bool {
	same := a.StartedAt.Equal(b.StartedAt) && a.EndedAt.Equal(b.EndedAt) && a.CreatedAt.Equal(b.CreatedAt)
	a.StartedAt, a.EndedAt, a.CreatedAt = b.StartedAt, b.EndedAt, b.CreatedAt
	return same && a == b
}

// The next agent has the record of a container that ended while there was no agent.
func TestAdoptEndedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	first := newRig(t, Config{DataDir: dir, Isolation: None})
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	id := first.start(first.container("c", "cat "+fifo+"; exit 8"))
	path := filepath.Join(first.containersDir(), id)
	first.stop()
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	// The shim has ended when its lock is free.
	waitUnlocked(t, path)
	second := newRig(t, Config{DataDir: dir, Isolation: None})
	if st := second.status(id); st.State != runtime.Exited || st.ExitCode != 8 || st.Reason != "" {
		t.Errorf("status %+v", st)
	}
}

func waitUnlocked(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// A container whose shim is killed ends with all of its processes, and is recorded as killed,
// also by an agent that was not running at that time.
func TestShimKilled(t *testing.T) {
	for _, present := range []bool{true, false} {
		name := map[bool]string{true: "agent present", false: "agent absent"}[present]
		t.Run(name, func(t *testing.T) {
			eachIsolation(t, func(t *testing.T, iso Isolation) {
				dir := t.TempDir()
				g := newRig(t, Config{DataDir: dir, Isolation: iso})
				// All processes in the container have the pipe open.
				fifo := filepath.Join(dir, "fifo")
				if err := unix.Mkfifo(fifo, 0o666); err != nil {
					t.Fatal(err)
				}
				r, err := os.OpenFile(fifo, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				script := "trap '' HUP TERM; exec 3>/fifo; sh -c 'trap \"\" HUP TERM; sleep 1000' & echo ready; while :; do sleep 0.1; done"
				c := g.container("c", script)
				c.Mounts = []runtime.Mount{{HostPath: fifo, ContainerPath: "/fifo"}}
				if iso == None {
					c.Mounts = nil
					c.Argv[2] = strings.ReplaceAll(script, "/fifo", fifo)
				}
				id := g.start(c)
				g.waitLog(id, "ready")
				// Only the container has it open for writing once this has been closed.
				only, err := os.OpenFile(fifo, os.O_RDONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer only.Close()
				_ = r.Close()
				if !present {
					g.stop()
				}
				g.containers[id].killShim()
				if !present {
					waitUnlocked(t, filepath.Join(g.containersDir(), id))
					g = newRig(t, Config{DataDir: dir, Isolation: iso})
				}
				st := g.wait(id)
				if st.ExitCode != 137 || st.Reason != "ContainerStatusUnknown" || st.State != runtime.Exited {
					t.Errorf("status %+v", st)
				}
				// The pipe ends when all of its processes have ended.
				if b, err := readAllUntil(only, g); err != nil || len(b) != 0 {
					t.Errorf("%q %v", b, err)
				}
			})
		})
	}
}

func readAllUntil(f *os.File, g *rig) ([]byte, error) {
	deadline, _ := g.ctx.Deadline()
	if err := f.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err := b.ReadFrom(f)
	return b.Bytes(), err
}

// The agent may be killed at any moment.
func TestAgentKilled(t *testing.T) {
	dir := t.TempDir()
	a := startAgent(t, agentOptions{dir: dir, keep: true})
	id := a.run(t, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
	a.kill(t)
	g := newRig(t, Config{DataDir: dir})
	g.waitLog(id, "ready")
	if st := g.status(id); st.State != runtime.Running {
		t.Errorf("status %+v", st)
	}
	if err := g.Stop(g.ctx, id, patience); err != nil {
		t.Error(err)
	}
	if st := g.status(id); st.ExitCode != 0 {
		t.Errorf("status %+v", st)
	}
}

// The files of an interrupted start are removed, and unreadable ones are not touched.
func TestAdoptLeftovers(t *testing.T) {
	dir := t.TempDir()
	containers := filepath.Join(dir, "c")
	for _, name := range []string{"empty", "never-ran", "garbled"} {
		if err := os.MkdirAll(filepath.Join(containers, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeJSON(filepath.Join(containers, "never-ran", specName), spec{ID: "never-ran", Dir: filepath.Join(containers, "never-ran"), Isolation: None}); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(containers, "garbled", specName), "{", 0o600)
	started := exec.Command("sleep", "1000") // its start was interrupted before there was a record
	started.Env = append(os.Environ(), containerEnv+"=never-ran")
	if err := started.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = started.Wait() }()
	t.Cleanup(func() { _ = started.Process.Kill(); <-ended })
	g := newRig(t, Config{DataDir: dir, Isolation: None})
	list, err := g.Containers(g.ctx)
	if err != nil || len(list) != 0 {
		t.Errorf("containers %v, %v", list, err)
	}
	left, err := os.ReadDir(containers)
	if err != nil || len(left) != 1 || left[0].Name() != "garbled" {
		t.Errorf("left %v, %v", left, err)
	}
	dies(t, ended)
	if err := os.RemoveAll(filepath.Join(containers, "garbled")); err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	g := newRig(t, Config{DataDir: dir, Isolation: None})
	ch := make(chan runtime.PodID)
	done := make(chan error, 1)
	ctx := t.Context()
	go func() { done <- g.Watch(ctx, ch) }() // begins before or after the container ends
	id := g.start(g.container("c", "exit 0"))
	for g.status(id).State != runtime.Exited {
		if got := <-ch; got != testPod {
			t.Errorf("got %v", got)
		}
	}
	g.changed(testPod) // it gets no more updates
	g.stop()
	if err := <-done; err == nil {
		t.Error("watch of a stopped runtime returned no error")
	}
	if _, err := g.Containers(g.ctx); err == nil {
		t.Error("a stopped runtime answers")
	}
	if err := g.Run(g.ctx); err == nil {
		t.Error("Run twice")
	}
	newRig(t, Config{DataDir: dir, Isolation: None}) // clears up
}

// A container may start and end before the watch begins, on a busy machine.
func TestWatchBeginsLate(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	g.wait(g.start(g.container("c", "exit 0")))
	ch := make(chan runtime.PodID)
	ctx, cancel := context.WithTimeout(g.ctx, 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- g.Watch(ctx, ch) }()
	select {
	case got := <-ch:
		if got != testPod {
			t.Errorf("got %v", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	case err := <-done:
		t.Errorf("watch sent nothing: %v", err)
	}
}

func TestDuplicateAttempt(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	c := g.container("c", "exit 0")
	id := g.start(c)
	if _, err := g.Start(g.ctx, c); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("same attempt: %v", err)
	}
	c.Attempt++
	g.start(c)
	if err := g.RemoveSandbox(g.ctx, testPod); err == nil {
		t.Error("sandbox removed under its containers")
	}
	g.wait(id)
	if err := g.Remove(g.ctx, id); err != nil {
		t.Error(err)
	}
	if err := g.Remove(g.ctx, id); err != nil {
		t.Errorf("remove twice: %v", err)
	}
	if err := g.Stop(g.ctx, id, 0); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("stop after remove: %v", err)
	}
}

// Each start of an agent connects to the shim of each container. The shim notices when a
// client hangs up, so that no number of starts uses up its connections.
func TestManyAgents(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	id := g.start(g.container("c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"))
	g.waitLog(id, "ready")
	dir := filepath.Join(g.containersDir(), id)
	for i := range maxConns + 44 {
		conn, _, err := watchShim(dir)
		if err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
		// The shim hangs up too when it has noticed.
		err = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(patience / 2))
		var rep reply
		if rerr := conn.recv(&rep); err != nil || !errors.Is(rerr, io.EOF) {
			t.Errorf("watch %d: %v, then %v, want EOF", i, err, rerr)
		}
		_ = conn.Close()
		if t.Failed() {
			break
		}
	}
	if err := g.Stop(g.ctx, id, patience); err != nil {
		t.Error(err)
	}
	if st := g.status(id); st.ExitCode != 3 {
		t.Errorf("status %+v", st)
	}
}

// A shim that lives and hangs up at once is not stuck: it has too many connections. Its
// container is left running, and followed until it ends.
func TestAdoptShimThatHangsUp(t *testing.T) {
	shim := exec.Command("sleep", "1000") // a process to be killed wrongly
	if err := shim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = shim.Process.Kill()
		_ = shim.Wait()
	})
	st, err := statOf(shim.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dir, id := t.TempDir(), "ead3838b110b707ad0db96a9762375d7"
	running := record{State: runtime.Running, StartedAt: time.Now(), ShimPID: st.PID, ShimStart: st.Starttime}
	status, err := json.Marshal(running)
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, dir, id, without(t, golden(t, specName), "cgroup"), status, nil)
	g := newRig(t, Config{DataDir: dir, Isolation: None})
	if got := g.status(id); got.State != runtime.Running || !got.StartedAt.Equal(running.StartedAt) {
		t.Errorf("status %+v", got)
	}
	if got, err := statOf(shim.Process.Pid); err != nil || got.State == "Z" {
		t.Errorf("the shim was killed: %+v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, statusName), []byte(oldEnd), 0o600); err != nil {
		t.Fatal(err)
	}
	p.end()
	if got := g.wait(id); got.ExitCode != 3 {
		t.Errorf("status %+v", got)
	}
}

// A shim that does not answer and has made no record is still starting its container: that is
// known, and followed. Else nobody would end it, and it would be started a second time.
func TestAdoptShimThatStarts(t *testing.T) {
	dir, id := t.TempDir(), "ead3838b110b707ad0db96a9762375d7"
	p := newPeer(t, dir, id, without(t, golden(t, specName), "cgroup"), nil, map[string][]string{opWatch: nil})
	if err := os.Remove(filepath.Join(p.dir, statusName)); err != nil {
		t.Fatal(err)
	}
	p.mute.Store(true)
	g := newRig(t, Config{DataDir: dir, Isolation: None})
	if got := g.status(id); got.State != runtime.Running {
		t.Errorf("status %+v", got)
	}
	write(t, filepath.Join(p.dir, statusName), oldEnd, 0o600)
	p.end()
	if got := g.wait(id); got.ExitCode != 3 {
		t.Errorf("status %+v", got)
	}
}

// A shim with all connections in use is told the grace period, and ends its container with it.
func TestStopBusy(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	id := g.start(g.container("c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"))
	g.waitLog(id, "ready")
	for full := false; !full; {
		conn, _, err := watchShim(filepath.Join(g.containersDir(), id))
		if err == nil {
			defer conn.hangUp()
		} else if full = hungUp(err); !full {
			t.Fatal(err)
		}
	}
	c, err := g.find(g.ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.askStop(g.ctx, time.Hour); err != nil {
		t.Errorf("the shim was not told the grace period: %v", err)
	}
	if err := g.Stop(g.ctx, id, patience); err != nil {
		t.Error(err)
	}
	if st := g.status(id); st.ExitCode != 3 {
		t.Errorf("status %+v", st)
	}
}

// A shim that cannot be reached, as by an agent without descriptors, has not ended and was not
// told to end its container: the caller tries again, with all of the grace period.
func TestStopUnreachable(t *testing.T) {
	g := newRig(t, Config{Isolation: None})
	id := g.start(g.container("c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done"))
	g.waitLog(id, "ready")
	at := filepath.Join(g.containersDir(), id, sockName)
	if err := os.Rename(at, at+".real"); err != nil {
		t.Fatal(err)
	}
	other, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: at}) // connecting fails with EPROTOTYPE
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Stop(g.ctx, id, patience); !errors.Is(err, errNoConn) {
		t.Errorf("stop: %v", err)
	}
	_ = other.Close()
	if err := os.Rename(at+".real", at); err != nil {
		t.Fatal(err)
	}
	if err := g.Stop(g.ctx, id, patience); err != nil {
		t.Error(err)
	}
	if st := g.status(id); st.ExitCode != 3 {
		t.Errorf("status %+v", st)
	}
}
