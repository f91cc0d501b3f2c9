// Tests of the API server's port in the network namespaces of pods.

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/e2e/await"
)

// newNet is a file of a network namespace that lasts as long as the test.
func newNet(t *testing.T) (file string) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil || os.Getuid() != 0 {
		t.Skip("SKIPPED: network namespaces need root and the package iproute2")
	}
	cmd := exec.Command("sh", "-c", "ip link set lo up && echo up && exec sleep 1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
		t.Fatal(err)
	}
	return "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/ns/net"
}

// dialIn connects from the network namespace of a file.
func dialIn(t *testing.T, file, addr string) (c net.Conn, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		fd, oerr := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if oerr != nil {
			err = oerr
			return
		}
		defer func() { _ = unix.Close(fd) }()
		if err = unix.Setns(fd, unix.CLONE_NEWNET); err == nil {
			c, err = net.Dial("tcp", addr)
		}
	}()
	<-done
	return c, err
}

// TestPodNets: a pod reaches the API server on its own loopback while its network namespace has a
// file, as does another pod; this machine has no port, nor does the agent's own namespace get one.
func TestPodNets(t *testing.T) {
	first, second := newNet(t), newNet(t)
	dir, addr := t.TempDir(), "127.0.0.1:"+strconv.Itoa(await.FreePort(t))
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("/proc/self/ns/net", "own")
	link(first, "first")
	if err := os.WriteFile(filepath.Join(dir, "not-mounted-yet"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	echo := func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(far, far); _ = far.Close() }()
		return near, nil
	}
	var log strings.Builder
	p := &podNets{dir: dir, addr: addr, log: slog.New(slog.NewTextHandler(&log, nil)), port: func(l net.Listener) *apiPort {
		return &apiPort{listener: l, dial: echo, suspect: func() {}, pod: true, log: slog.New(slog.DiscardHandler)}
	}}
	stop := together(t, p.run)
	ask := func(file string) (net.Conn, error) {
		c, err := dialIn(t, file, addr)
		if err != nil {
			return nil, err
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		got := make([]byte, 4)
		if _, err = io.WriteString(c, "ahoy"); err == nil {
			_, err = io.ReadFull(c, got)
		}
		if err == nil && string(got) != "ahoy" {
			err = errors.New(string(got))
		}
		return c, err
	}
	answers := func(file string) (open net.Conn) {
		t.Helper()
		await.Until(t, time.Minute, "a pod reaches the API server", func() (err error) {
			open, err = ask(file)
			return err
		})
		t.Cleanup(func() { _ = open.Close() })
		return open
	}
	open := answers(first)
	if c, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("on this machine: %v, %v", c, err)
	}
	if _, err := dialIn(t, second, addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("in another namespace: %v", err)
	}
	link(second, "second")
	answers(second)
	if err := os.Remove(filepath.Join(dir, "first")); err != nil {
		t.Fatal(err)
	}
	if _, err := open.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("open in a namespace whose file is gone: %v", err)
	}
	await.Until(t, time.Minute, "that has no port", func() error {
		if c, err := dialIn(t, first, addr); !errors.Is(err, syscall.ECONNREFUSED) {
			return errors.Join(errors.New("there is one"), err, closed(c))
		}
		return nil
	})
	answers(second)
	stop()
	if log.Len() > 0 {
		t.Errorf("the log says\n%s", &log)
	}
}

// A bell is sent to with each write.
type bell chan struct{}

func (s bell) Write(b []byte) (int, error) {
	select {
	case s <- struct{}{}:
	default:
	}
	return len(b), nil
}

// TestPodNetsUnread: while the directory cannot be read, and if a port breaks, pods keep the API
// server or get it back.
func TestPodNetsUnread(t *testing.T) {
	net1 := newNet(t)
	at, addr, logged := t.TempDir(), "127.0.0.1:"+strconv.Itoa(await.FreePort(t)), make(bell, 1)
	link := func(to string) { // replaces the directory at once
		t.Helper()
		err := os.Symlink(to, filepath.Join(at, "new"))
		if err = errors.Join(err, os.Rename(filepath.Join(at, "new"), filepath.Join(at, "dir"))); err != nil {
			t.Fatal(err)
		}
	}
	files := t.TempDir()
	if err := os.Symlink(net1, filepath.Join(files, "pod")); err != nil {
		t.Fatal(err)
	}
	link(files)
	listeners := make(chan net.Listener, 2)
	p := &podNets{dir: filepath.Join(at, "dir"), addr: addr, log: slog.New(slog.NewTextHandler(logged, nil)), port: func(l net.Listener) *apiPort {
		listeners <- l
		echo := func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(far, far); _ = far.Close() }()
			return near, nil
		}
		return &apiPort{listener: l, dial: echo, suspect: func() {}, pod: true, log: slog.New(slog.DiscardHandler)}
	}}
	together(t, p.run)
	first := <-listeners
	c, err := dialIn(t, net1, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	link("/dev/null") // which is no directory
	<-logged
	link(files)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	got := make([]byte, 4)
	if _, err := io.WriteString(c, "ahoy"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ahoy" {
		t.Errorf("after the directory could not be read: %q, %v", got, err)
	}
	_, _ = c.Close(), first.Close()
	select {
	case <-listeners:
	case <-time.After(time.Minute):
		t.Error("a port that broke is not made again")
	}
}

// TestOwnNet: however many namespaces are entered, the process stays in its own: a thread other
// than the first ends with its goroutine, but the first would stay in the last namespace, and
// /proc/self is the first.
func TestOwnNet(t *testing.T) {
	other := newNet(t)
	own, err := netOf("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		l, err := listenIn(t.Context(), other, "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if now, err := netOf("/proc/self/ns/net"); err != nil || now != own {
			t.Fatalf("after %d of another namespace, the process is in %v, not in %v: %v", i+1, now, own, err)
		}
	}
}

func closed(c net.Conn) error {
	if c == nil {
		return nil
	}
	return c.Close()
}
