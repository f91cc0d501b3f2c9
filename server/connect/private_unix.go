// The mode of a unix socket, on systems where files have modes.

//go:build unix

package connect

import "syscall"

// private sets the mode of a socket before it is bound. On Linux the file gets that mode
// when it is made, so that no other user can connect in between. Other systems refuse the
// call.
func private(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), socketMode) })
}
