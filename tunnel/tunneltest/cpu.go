// What the process has cost so far.

package tunneltest

import (
	"syscall"
	"time"
)

// CPU is the CPU time that this process has used, in user and in kernel
// mode; zero if the system does not tell.
func CPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
