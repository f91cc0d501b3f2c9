package process

// Tests of killing by a process number on disk: no other process is killed, and no process of
// the container is left.

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// aSession starts a script in a session of its own. It returns the leader, and a channel that
// is closed when every process of the script has ended.
func aSession(t *testing.T, script string, env ...string) (leader procfs.ProcStat, ended <-chan struct{}) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.Env = append([]string{"PATH=" + defaultPath}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe() // its end is that of the script's processes
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	if _, err := r.ReadString('\n'); err != nil { // ready
		t.Fatal(err)
	}
	leader, err = statOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.ReadString('\n')
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-done
		_ = cmd.Wait()
	})
	return leader, done
}

// lives fails the test if the session's processes have ended. Processes that lost has killed
// are dead when it returns, but the kernel may still be closing their files.
func lives(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
		t.Error("a stranger's session was killed")
	case <-time.After(100 * time.Millisecond):
	}
}

func dies(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("what the container has left lives on")
	}
}

const (
	// alone waits for the end of its input.
	alone = "echo ready; read x"
	// orphan leaves a process in the session of a leader that has ended: the leader
	// is a zombie until it is waited for.
	orphan = "exec 3<&0; { read x <&3; } & echo ready; exit 0"
	// daemon leaves one in a session of its own.
	daemon = "exec 3<&0; setsid sh -c 'read x <&3' & echo ready; exit 0"
)

// TestStrangersLive: records have the session of a process that is not the container's.
func TestStrangersLive(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		script string
		record func(leader procfs.ProcStat) record
	}{
		"after a reboot": {alone, func(l procfs.ProcStat) record {
			return record{Version: 1, BootID: "another", PID: l.PID, PIDStart: l.Starttime, StartedAt: now}
		}},
		"number given out again": {alone, func(l procfs.ProcStat) record {
			return record{Version: 1, BootID: bootID(), PID: l.PID, PIDStart: l.Starttime - 1, StartedAt: now}
		}},
		"its leader has ended": {orphan, func(l procfs.ProcStat) record {
			return record{Version: 1, BootID: bootID(), PID: l.PID, PIDStart: l.Starttime - 1, StartedAt: now}
		}},
		"no start known": {alone, func(l procfs.ProcStat) record {
			return record{Version: 1, BootID: bootID(), PID: l.PID, StartedAt: now}
		}},
		"old record, after a reboot": {alone, func(l procfs.ProcStat) record {
			return record{PID: l.PID, ShimPID: 2, ShimStart: l.Starttime + 100_000, StartedAt: now}
		}},
		"old record, number given out again": {alone, func(l procfs.ProcStat) record {
			self, err := statOfSelf()
			if err != nil {
				t.Fatal(err)
			}
			at := ticksAt(self.Starttime).Add(-time.Hour)
			return record{PID: l.PID, ShimPID: 2, ShimStart: self.Starttime - 360_000, StartedAt: at}
		}},
		"old record, its leader has ended": {orphan, func(l procfs.ProcStat) record {
			return record{PID: l.PID, ShimPID: 2, ShimStart: l.Starttime - 500, StartedAt: ticksAt(l.Starttime - 500)}
		}},
		"malformed": {alone, func(l procfs.ProcStat) record {
			return record{Version: 1, PID: l.PID, StartedAt: now}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			leader, ended := aSession(t, tt.script)
			s := &spec{Version: 1, ID: "0123456789abcdef", Dir: t.TempDir(), Isolation: None}
			rec := tt.record(leader)
			rec.State = runtime.Running
			if err := writeJSON(filepath.Join(s.Dir, statusName), rec); err != nil {
				t.Fatal(err)
			}
			if got := lost(s); got.State != runtime.Exited || got.ExitCode != 137 {
				t.Errorf("record %+v", got)
			}
			lives(t, ended)
		})
	}
}

// TestLeftoversDie: records have a session of the container.
func TestLeftoversDie(t *testing.T) {
	const id = "0123456789abcdef"
	mark := containerEnv + "=" + id
	v1 := func(l procfs.ProcStat) record {
		return record{Version: 1, BootID: bootID(), PID: l.PID, PIDStart: l.Starttime, StartedAt: time.Now()}
	}
	for name, tt := range map[string]struct {
		script string
		env    []string
		record func(leader procfs.ProcStat) record
	}{
		"leader":                        {alone, nil, v1},
		"leader with the mark":          {alone, []string{mark}, v1},
		"leader has ended":              {orphan, []string{mark}, v1},
		"left the session":              {daemon, []string{mark}, v1},
		"part of the session hides":     {"exec 3<&0; env -i /bin/sh -c 'read x <&3' & { read x <&3; } & echo ready; exit 0", []string{mark}, v1},
		"process ended before the note": {orphan, []string{mark}, func(l procfs.ProcStat) record { r := v1(l); r.PIDStart = 0; return r }},
		"old record": {alone, nil, func(l procfs.ProcStat) record {
			return record{PID: l.PID, ShimPID: 2, ShimStart: l.Starttime, StartedAt: ticksAt(l.Starttime)}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			leader, ended := aSession(t, tt.script, tt.env...)
			s := &spec{Version: 1, ID: id, Dir: t.TempDir(), Isolation: None}
			rec := tt.record(leader)
			rec.State = runtime.Running
			if err := writeJSON(filepath.Join(s.Dir, statusName), rec); err != nil {
				t.Fatal(err)
			}
			lost(s)
			dies(t, ended)
		})
	}
}

// TestMarkedWhileExecuting: a process that executes one program after the other has the mark,
// or its environment cannot be read at the moment. It never counts as unmarked.
func TestMarkedWhileExecuting(t *testing.T) {
	const id = "0123456789abcdef"
	script, stop := filepath.Join(t.TempDir(), "again"), filepath.Join(t.TempDir(), "stop")
	if err := os.WriteFile(script, []byte("[ -e "+stop+" ] || exec /bin/sh "+script+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	leader, _ := aSession(t, "echo ready; exec /bin/sh "+script, containerEnv+"="+id)
	defer func() {
		if err := os.WriteFile(stop, nil, 0o600); err != nil {
			t.Error(err)
		}
	}()
	known := 0
	for range 20_000 {
		is, certain := marked("/proc", leader.PID, id)
		switch {
		case is:
			known++
		case certain:
			t.Fatal("taken for a stranger")
		}
	}
	if known == 0 {
		t.Error("never known")
	}
}

// TestMarkedInTheMidst: during execve(2) the kernel shows the start of an environment that is
// still empty, and startcode is zero until the end. A process without an environment has a
// startcode.
func TestMarkedInTheMidst(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		certain    bool
	}{{"without an environment", "4194304", true}, {"executing", "0", false}} {
		proc := t.TempDir()
		dir := filepath.Join(proc, "7")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		fields := slices.Repeat([]string{"1"}, 50)
		fields[26-3], fields[50-3], fields[51-3] = tt.code, "4096", "4096"
		stat := "7 (sh) " + strings.Join(fields, " ") + "\n"
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "environ"), nil, 0o600), os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600)); err != nil {
			t.Fatal(err)
		}
		if is, certain := marked(proc, 7, "0123456789abcdef"); is || certain != tt.certain {
			t.Errorf("%s: is %v, certain %v", tt.name, is, certain)
		}
	}
}

// TestKillProcess kills by number and start, not by number alone.
func TestKillProcess(t *testing.T) {
	p, ended := aSession(t, alone)
	killProcess(procfs.ProcStat{PID: p.PID, Starttime: p.Starttime + 1})
	lives(t, ended)
	killProcess(p)
	dies(t, ended)
	killProcess(p) // it has ended
}

// TestDaemonsDieWithTheirShim: a process of a container with the machine's process ids that
// has left its session and its parents, by setsid and a second fork, ends with its shim.
func TestDaemonsDieWithTheirShim(t *testing.T) {
	eachIsolation(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := unix.Open(fifo, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer closeFD(r)
		for i, how := range []string{"the command ends", "its shim is killed"} {
			script := "exec 3>" + fifo + "; (setsid sh -c 'trap \"\" HUP TERM; echo ready; exec sleep 1000' &) ; exec 3>&-; read x; exit 0"
			c := g.container(strings.ReplaceAll(how, " ", "-"), script)
			c.Mounts = []runtime.Mount{{HostPath: fifo, ContainerPath: fifo}}
			c.Security.HostPID = true
			c.Stdin = true
			c.Attempt = i
			id := g.start(c)
			g.waitLog(id, "ready")
			if i == 0 {
				if err := g.Stop(g.ctx, id, 0); err != nil {
					t.Fatal(err)
				}
			} else {
				g.containers[id].killShim()
			}
			g.wait(id)
			// Once no process has it open for writing, there is nothing to wait for.
			fds := []unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
			var err error = unix.EINTR // a signal of the Go runtime ends a poll
			for errors.Is(err, unix.EINTR) {
				_, err = unix.Poll(fds, int(patience.Milliseconds()))
			}
			if err != nil || fds[0].Revents&unix.POLLHUP == 0 {
				t.Errorf("%s: its daemon lives on (%v, %#x)", how, err, fds[0].Revents)
			}
		}
	})
}

func FuzzMark(f *testing.F) {
	f.Add([]byte("A=b\x00"+containerEnv+"=x\x00"), "x")
	f.Add([]byte(containerEnv+"="), "")
	f.Fuzz(func(t *testing.T, environ []byte, id string) {
		if hasMark(environ, id) && !strings.Contains(string(environ), containerEnv+"="+id) {
			t.Errorf("%q has no mark %q", environ, id)
		}
	})
}

// TestRebooted: a container tells whether the machine was rebooted since it started, if its
// record identifies the boot.
func TestRebooted(t *testing.T) {
	for boot, want := range map[string]bool{bootID(): false, "another": true, "": false} {
		c := newContainer(&spec{}, record{BootID: boot})
		if got := c.status().Rebooted; got != want {
			t.Errorf("boot %q: %v", boot, got)
		}
	}
}
