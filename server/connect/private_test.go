package connect

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Only its owner may use the socket's file as soon as it exists.
func TestUnixSocketIsPrivate(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	bound := filepath.Join(t.TempDir(), "bound")
	conf := net.ListenConfig{Control: func(network, address string, c syscall.RawConn) error {
		if err := private(network, address, c); err != nil {
			return err
		}
		// What Listen does next, and no more.
		var berr error
		err := c.Control(func(fd uintptr) { berr = syscall.Bind(int(fd), &syscall.SockaddrUnix{Name: bound}) })
		return errors.Join(err, berr)
	}}
	if l, err := conf.Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "never")); err == nil {
		_ = l.Close()
		t.Error("a socket was bound twice")
	}
	path := filepath.Join(t.TempDir(), "s")
	for range 2 { // the second replaces the file of the first
		l, err := ListenUnix(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ListenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "in use by another process") {
			t.Errorf("a second listener: %v", err)
		}
		u, _ := l.(*net.UnixListener)
		u.SetUnlinkOnClose(false)
		for _, p := range []string{bound, path} {
			if fi, err := os.Stat(p); err != nil || fi.Mode().Perm() != socketMode {
				t.Errorf("%s: %v, %v", p, fi.Mode(), err)
			}
		}
		_ = l.Close()
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(t.Context(), file); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file: %v", err)
	}
}

// TestUnixSocketOfBusyProcess: the socket of a process that does not accept at the moment is left
// alone.
func TestUnixSocketOfBusyProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path) // its place in the queue is the only one
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenUnix(t.Context(), path)
	if err == nil {
		_ = l.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "may be in use by another process") {
		t.Errorf("a second listener: %v", err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was replaced: %v", err)
	}
}
