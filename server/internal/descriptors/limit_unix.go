// The limit, where there is one.

//go:build unix

package descriptors

import "syscall"

// limit is how many descriptors the process may have; zero if that is unknown.
func limit() uint64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return uint64(r.Cur) //nolint:unconvert // it is signed on some systems
}
