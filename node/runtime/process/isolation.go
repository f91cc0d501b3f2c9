package process

// The namespaces that this process may make, and how a shim is started in them.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// probeArg makes a shim try the set-up of a container. Its exit code is the result.
const probeArg = "probe"

// selfExe is this program, also after its file was replaced or removed.
const selfExe = "/proc/self/exe"

// errNotHad is why a machine has no isolation of a kind, now and later.
var errNotHad = errors.New("the machine does not let this process have it")

// notHadCode is the exit code of a probe that has failed so.
const notHadCode = 3

// notHad reports whether err says that, and not that something is short for now.
func notHad(err error) bool {
	return slices.ContainsFunc([]error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EINVAL, unix.ENODEV}, func(no error) bool { return errors.Is(err, no) })
}

// probeIsolation finds the strongest isolation that the machine lets this process have, or checks
// the configured one. It fails if that cannot be told for now: containers must not run without
// isolation for that.
func probeIsolation(ctx context.Context, c Config) (Isolation, error) {
	if c.Isolation == None {
		return None, nil
	}
	if c.Isolation != Auto {
		if err := probe(ctx, c, c.Isolation); err != nil {
			return "", fmt.Errorf("isolation %s: %w", c.Isolation, err)
		}
		return c.Isolation, nil
	}
	for _, iso := range []Isolation{Namespaces, UserNamespace} {
		err := probe(ctx, c, iso)
		if err == nil {
			return iso, nil
		}
		if !errors.Is(err, errNotHad) {
			return "", fmt.Errorf("isolation %s: %w", iso, err)
		}
		c.Log.Debug("isolation cannot be had", "isolation", string(iso), "err", err)
	}
	return None, nil
}

func probe(ctx context.Context, c Config, iso Isolation) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, selfExe)
	cmd.Args = []string{shimName, probeArg, c.DataDir}
	cmd.Env = []string{}
	cmd.SysProcAttr = shimAttributes(iso, 0, 0, runtime.Security{})
	out, err := cmd.CombinedOutput()
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case ended && exit.ExitCode() == notHadCode:
		return fmt.Errorf("%w: %s", errNotHad, out[:min(len(out), 512)])
	case ended && len(out) > 0:
		return errors.New(string(out[:min(len(out), 512)]))
	case notHad(err), iso == UserNamespace && errors.Is(err, unix.ENOSPC): // user.max_user_namespaces is 0
		return fmt.Errorf("%w: %w", errNotHad, err)
	}
	return err
}

// probeMain is the shim's side of probe.
func probeMain(args []string) int {
	err := errors.New("no directory given")
	if len(args) == 1 {
		err = probeMounts(args[0])
	}
	if err == nil {
		return 0
	}
	fmt.Fprint(os.Stderr, err)
	if notHad(err) {
		return notHadCode
	}
	return 1
}

// probeMounts mounts over dir, where nothing need be free.
func probeMounts(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	sub := filepath.Join(dir, "pts")
	if err := os.Mkdir(sub, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("devpts", sub, "devpts", 0, "newinstance"); err != nil {
		return fmt.Errorf("mount terminals: %w", err)
	}
	return nil
}

// shimAttributes are the attributes for starting a shim. In a user namespace this
// process's user is mapped to uid and gid, which are the only ones.
func shimAttributes(iso Isolation, uid, gid int, security runtime.Security) *syscall.SysProcAttr {
	// With a session of its own it gets no signals of the agent's terminal.
	attr := &syscall.SysProcAttr{Setsid: true}
	if iso == None {
		return attr
	}
	attr.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	if !security.HostIPC {
		attr.Cloneflags |= unix.CLONE_NEWIPC
	}
	if !security.HostPID {
		attr.Cloneflags |= unix.CLONE_NEWPID
	}
	if iso == UserNamespace {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: os.Getegid(), Size: 1}}
		if uid != 0 {
			// Another user than 0 would lose, by executing the shim, the capabilities
			// that it needs to set up the container. They are limited to the namespace,
			// and the commands of the container do not get them.
			attr.AmbientCaps = []uintptr{
				unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE, unix.CAP_CHOWN, unix.CAP_FOWNER, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP,
			}
		}
	}
	return attr
}
