// Privacy of a socket, where files have modes.

//go:build unix

package connect

import "syscall"

// private sets the mode of a socket that has no file yet: on Linux the file gets the
// mode that the socket has when it is bound, so that nobody can connect in between.
// Other systems do not know that, and refuse.
func private(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), socketMode) })
}
