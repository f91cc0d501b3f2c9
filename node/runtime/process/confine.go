package process

// Confinement of the thread that starts a container's processes: its root, and the
// privileges that the container does not get. They belong to a thread, and the processes
// that it starts inherit them.

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// A confinement is what the thread is confined to.
type confinement struct {
	root     string // the root of a new mount namespace; "" means the machine's
	security runtime.Security
}

// filters reports whether system calls are filtered. As in Kubernetes they are not for a
// privileged container.
func (c confinement) filters() bool { return c.security.DefaultSeccomp && !c.security.Privileged }

// enter confines the calling thread. It cannot be undone.
func (c confinement) enter() error {
	if c.root != "" {
		if err := pivot(c.root); err != nil {
			return err
		}
	}
	// The shim needed these capabilities to set up the container.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	// The container gets no keyring of the user who started the agent. (The third
	// argument is the name of the new keyring: none.)
	if _, _, errno := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 && os.Geteuid() == 0 && errno != unix.ENOSYS {
		return fmt.Errorf("make a keyring: %w", errno)
	}
	keep, err := capsFor(c.security)
	if err != nil {
		return err
	}
	noNew := c.security.NoNewPrivileges
	switch err := boundCaps(keep); {
	case err == nil:
	case errors.Is(err, unix.EPERM) && os.Geteuid() != 0:
		// Neither root nor in a namespace: there are no capabilities to drop, but a
		// set-user-id program could gain some, and the kernel accepts a filter only
		// from a thread that cannot gain privileges.
		noNew = noNew || len(c.security.DropCapabilities) > 0 || c.filters()
	default:
		return err
	}
	if noNew {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("keep processes from gaining privileges: %w", err)
		}
	}
	if c.filters() {
		return filterCalls(keep)
	}
	return nil
}

// pivot gives the calling thread a mount namespace in which root is the root and no
// other mount of the machine exists. A process that may call chroot(2) can leave a plain
// chroot.
func pivot(root string) error {
	// This also ends the sharing of root and working directory with other threads.
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// pivot_root(2) requires that the new root is a mount of its own.
	if err := bind(root, root, true); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	// The old root is now mounted over the new one, and is unmounted.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return nil
}

// setOOMScore sets oom_score_adj of the calling process, which later child processes
// inherit. A lower value needs a privilege; without it the value stays.
func setOOMScore(adj int) error {
	err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(adj)), 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}
