package process

// What the thread that starts a container's processes gives up before it starts the
// first: its view of the machine, and powers that the container is not to have. All
// of this belongs to a thread and is inherited by what it starts.

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// A confinement says what is given up.
type confinement struct {
	root     string // becomes the root of a mount namespace of its own; "" means the machine's
	security runtime.Security
}

// filters says whether system calls are filtered. As in Kubernetes they are not for
// a privileged container.
func (c confinement) filters() bool { return c.security.DefaultSeccomp && !c.security.Privileged }

// enter confines the calling thread for good.
func (c confinement) enter() error {
	if c.root != "" {
		if err := pivot(c.root); err != nil {
			return err
		}
	}
	// Powers the shim needed to make the container's surroundings.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	// Keys that whoever started the agent has in the kernel are not the container's.
	// (The third argument is its name: none.)
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
		// Neither root nor in a namespace: there is nothing to drop, but a
		// set-user-id program could get some, and the kernel takes a filter only
		// from who cannot gain privileges by it.
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

// pivot gives the calling thread a mount namespace in which root is the root and
// nothing else is left of the machine. A mere chroot can be left by whoever may
// make another.
func pivot(root string) error {
	// The thread stops sharing its root and working directory, too.
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// The root must be a mount of its own, and not the one it is put upon.
	if err := bind(root, root, true); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	// The old root comes to lie upon the new one, and is taken away.
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

// setOOMScore sets how early the kernel kills the calling process, and what it
// starts from then on. Less than before needs a privilege; without it things stay
// as they are.
func setOOMScore(adj int) error {
	err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(adj)), 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}
