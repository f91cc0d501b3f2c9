// A server whose port fails under it.

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/e2e/await"
)

// TestPortFails: a server that can take no more connections ends.
func TestPortFails(t *testing.T) {
	t.Parallel()
	port := await.FreePort(t)
	s := startLoneAt(t, port, nil, shortTempDir(t))
	breakListener(t, s.Process.Pid, port)
	if status := s.end(t); !status.Exited() || status.ExitStatus() != 1 {
		t.Errorf("the server ended with %v", status)
	}
}

// breakListener makes the next accept of a process's socket at a port fail.
func breakListener(t *testing.T, pid, port int) {
	t.Helper()
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Skipf("SKIPPED: the sockets of another process cannot be had: %v", err)
	}
	defer func() { _ = unix.Close(p) }()
	names, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	must(t, err)
	for _, name := range names {
		n, err := strconv.Atoi(name.Name())
		must(t, err)
		fd, err := unix.PidfdGetfd(p, n, 0)
		if err != nil {
			if errors.Is(err, unix.EPERM) {
				t.Skipf("SKIPPED: the sockets of another process cannot be had: %v", err)
			}
			continue // closed meanwhile
		}
		defer func() { _ = unix.Close(fd) }()
		at, err := unix.Getsockname(fd)
		listens, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if four, ok := at.(*unix.SockaddrInet4); err == nil && listens == 1 && ok && four.Port == port {
			must(t, unix.Shutdown(fd, unix.SHUT_RDWR))
			return
		}
	}
	t.Fatal("nobody listens there")
}
