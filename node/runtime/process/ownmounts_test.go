// The mount namespace of these tests.

package process

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// mountsEnv is set where the tests have mounts of their own.
const mountsEnv = "HAWSER_TEST_MOUNTS"

// withOwnMounts runs this binary again, with mounts that nobody else sees and that go with it: file
// systems that do not answer would concern tests of other packages, and stay after one that is killed.
// It returns false if that may not be.
func withOwnMounts() (code int, ok bool) {
	runtime.LockOSThread() // its end would be that of the child
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), mountsEnv+"=own")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, false
	}
	_ = cmd.Wait() // the exit code tells
	return cmd.ProcessState.ExitCode(), true
}
