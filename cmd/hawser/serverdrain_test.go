package main

// Which process hawser server drain signals, and what ends its wait.

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/cmd/internal/setup"
)

// aProcess starts a process that ends when its input does. A deaf one does not mind
// SIGTERM. It has a file open, which may be nil.
func aProcess(t *testing.T, deaf bool, file *os.File) (cmd *exec.Cmd, ended <-chan struct{}) {
	t.Helper()
	script := "echo ready; read x"
	if deaf {
		script = "trap '' TERM; " + script
	}
	cmd = exec.Command("sh", "-c", script)
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-over
	})
	if line != "ready\n" {
		t.Fatal(line, err)
	}
	return cmd, over
}

// aServer starts a process that holds the lock of a data directory, as a server does. What it says stands
// in the lock file after its number.
func aServer(t *testing.T, dir string, deaf bool, says string) (cmd *exec.Cmd, file *os.File, ended <-chan struct{}) {
	t.Helper()
	file, err := os.Create(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cmd, ended = aProcess(t, deaf, file)
	if _, err = fmt.Fprintf(file, "%d\n%s", cmd.Process.Pid, says); err != nil {
		t.Fatal(err)
	}
	return cmd, file, ended
}

// TestDrainOfAnotherNamespace: the lock is held, and the number in it is here that of a
// process that has nothing to do with the server. It is left alone.
func TestDrainOfAnotherNamespace(t *testing.T) {
	dir := t.TempDir()
	unlock, err := setup.Lock(dir, lockFile)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	cmd, ended := aProcess(t, false, nil)
	for _, pid := range []int{cmd.Process.Pid, os.Getpid(), 1 << 30} {
		if err = os.WriteFile(filepath.Join(dir, lockFile), []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err = drainServer(t.Context(), &out, &out, dir)
		if err == nil || err.Error() != "the server of "+dir+" is in another PID namespace: run this there, or stop its pod" || out.String() != "" {
			t.Errorf("process %d: %v, %q", pid, err, &out)
		}
	}
	_ = cmd.Process.Kill()
	<-ended
	if s, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		t.Errorf("the other process ended with %v", s.Signal())
	}
}

// A writerFunc is called with what is written.
type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// TestDrainInterrupted: an interrupt ends the wait for a server that takes its time.
func TestDrainInterrupted(t *testing.T) {
	dir := t.TempDir()
	aServer(t, dir, true, "")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var out strings.Builder
	err := drainServer(ctx, &out, writerFunc(func(p []byte) {
		if string(p) == "the server has been told to drain, and does not say yet that it does: see its log\n" {
			interrupt()
		}
	}), dir)
	if err == nil || err.Error() != "not waited any longer: the server has been told to drain, and does not say yet that it does: see its log" || out.String() != "" {
		t.Errorf("%v, %q", err, &out)
	}
}

// TestDrainTwice: a server that has been told to drain gets no second signal, which would end it:
// neither once it drains nor while another command waits for that.
func TestDrainTwice(t *testing.T) {
	const already, goesOn = "the server, process %d, drains already: waiting until it has handed its work over\n", "the server goes on draining"
	for name, tc := range map[string]struct{ file, says, interrupted string }{
		"drains":   {"\n0 of 1 nodes have moved\n", already, goesOn},
		"drained":  {"1 of 1 nodes moved\n", already, goesOn},
		"told now": {"", "waiting until the server, process %d, has handed its work over\n", "this command has not told the server to drain: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd, _, ended := aServer(t, dir, false, tc.file)
			if tc.file == "" {
				turn, err := os.Open(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer turn.Close()
				if err = syscall.Flock(int(turn.Fd()), syscall.LOCK_EX); err != nil {
					t.Fatal(err)
				}
			}
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			var out, progress strings.Builder
			err := drainServer(ctx, &out, writerFunc(func(p []byte) {
				progress.Write(p)
				interrupt()
			}), dir)
			want := fmt.Sprintf(tc.says, cmd.Process.Pid)
			if err == nil || !strings.HasPrefix(err.Error(), "not waited any longer: "+tc.interrupted) || out.String() != "" || progress.String() != want {
				t.Errorf("%v, %q, %q", err, &out, &progress)
			}
			_ = cmd.Process.Kill()
			<-ended
			if s, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
				t.Errorf("the server ended with %v", s.Signal())
			}
		})
	}
}

// TestDrainSaysThatItBegins: from the signal on the file says that the server drains.
func TestDrainSaysThatItBegins(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	dir := filepath.Join(t.TempDir(), "data")
	d, unlock, err := takeDataDir(ctx, &serverOptions{dataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pid, said, far := readLock(f); pid != os.Getpid() || said != "" || far != "" {
		t.Errorf("%d, %q, %q", pid, said, far)
	}
	d.sayStill("far")
	if pid, said, far := readLock(f); pid != os.Getpid() || said != "" || far != "far" {
		t.Errorf("once it has been told: %d, %q, %q", pid, said, far)
	}
}

// TestDrainOnHungDisk: a server whose lock file cannot be written goes on with its drain.
func TestDrainOnHungDisk(t *testing.T) {
	d := &drain{file: filepath.Join(t.TempDir(), lockFile)}
	if err := syscall.Mkfifo(d.file, 0o600); err != nil {
		t.Fatal(err)
	}
	said := make(chan bool)
	go func() { said <- d.sayStill("far") }() // opens what nobody reads
	for d.saying.TryLock() {
		d.saying.Unlock()
		<-time.After(time.Millisecond)
	}
	d.follow(func() int { return 0 })
	d.mu.Lock()
	d.next.Stop()
	d.mu.Unlock()
	disk, err := os.Open(d.file)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if !<-said {
		t.Error("it is over")
	}
}

// TestDrainToldLate: a command that finds the directory locked tells the server once it is free.
func TestDrainToldLate(t *testing.T) {
	dir := t.TempDir()
	cmd, _, ended := aServer(t, dir, false, "")
	turn, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Close()
	if err = syscall.Flock(int(turn.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = drainServer(t.Context(), &out, writerFunc(func(p []byte) {
		if strings.HasPrefix(string(p), "this command has not told the server") {
			_ = turn.Close()
		}
	}), dir)
	if err == nil || !strings.Contains(err.Error(), "the server has ended") {
		t.Errorf("%v, %q", err, &out)
	}
	<-ended
	if s, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGTERM {
		t.Errorf("the server ended with %v", s.Signal())
	}
}

// TestDrainTellsHowFarItIs: what the server writes while it drains is shown, and is followed by
// what it says at the end.
func TestDrainTellsHowFarItIs(t *testing.T) {
	const far, end = "3 of 9 nodes have moved", "9 of 9 nodes moved"
	dir := t.TempDir()
	cmd, file, _ := aServer(t, dir, false, "\n"+far+"\n")
	var out, progress strings.Builder
	err := drainServer(t.Context(), &out, writerFunc(func(p []byte) {
		progress.Write(p)
		if strings.Contains(string(p), far) {
			if err := os.WriteFile(file.Name(), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"+end+"\n"), 0o600); err != nil {
				t.Error(err)
			}
			_ = cmd.Process.Kill()
		}
	}), dir)
	if err != nil || out.String() != "drained: "+end+"\n" || !strings.HasSuffix(progress.String(), far+"\n") {
		t.Errorf("%v, %q, %q", err, &out, &progress)
	}
}

// TestDrainOfUnreaped: a server whose parent does not ask how it ended has ended all the same.
func TestDrainOfUnreaped(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), lockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	if _, err := fmt.Fprintf(file, "%d\nall is handed over\n", cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, progress strings.Builder
	if err := awaitDrained(ctx, &out, &progress, cmd.Process, file, nil); err != nil || out.String() != "drained: all is handed over\n" {
		t.Errorf("%v, %q", err, &out)
	}
}

// A server that drains says how far it has come until it has drained.
func TestDrainSaysHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), lockFile)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		d := &drain{file: file, grace: time.Minute}
		d.nodes.Store(9)
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		open := 7
		d.follow(func() int { return open })
		for i := range 3 {
			d.moved.Store(int64(i))
			time.Sleep(drainSay)
			synctest.Wait()
			pid, said, far := readLock(f)
			if want := fmt.Sprintf("%d of 9 nodes have moved to other servers, 7 streams are open", i); pid != os.Getpid() || said != "" || far != want {
				t.Errorf("%d, %q, %q, want %q", pid, said, far, want)
			}
		}
		now := time.Now().Add(-16 * time.Millisecond)
		d.late = time.AfterFunc(time.Minute, func() {})
		d.began.Store(&now)
		if err := d.end(slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * drainSay)
		if _, said, far := readLock(f); said != "2 of 9 nodes moved to other servers; all 0 streams ended within 16ms" || far != "" {
			t.Errorf("at the end: %q, %q", said, far)
		}
		d.streams.Store(7)
		d.cut.Store(3)
		if err := d.end(slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if _, said, _ := readLock(f); !strings.HasSuffix(said, "; of 7 streams 3 were cut after 1m0s") {
			t.Errorf("with streams that were cut: %q", said)
		}
	})
}
