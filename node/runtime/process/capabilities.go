package process

// The capabilities of containers.

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/node/runtime"
)

// capNames are the capabilities by number, as linux/capability.h has them.
var capNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
	"SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
	"AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
	"PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// A capSet has bit n for capability n.
type capSet uint64

const allCaps = ^capSet(0)

// defaultCaps are the default capabilities of containerd and Docker.
const defaultCaps = capSet(1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_KILL |
	1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_NET_BIND_SERVICE | 1<<unix.CAP_NET_RAW |
	1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_MKNOD | 1<<unix.CAP_AUDIT_WRITE | 1<<unix.CAP_SETFCAP)

// parseCaps makes a set of names. all is whether ALL is one of them.
func parseCaps(names []string) (set capSet, all bool, err error) {
	for _, name := range names {
		upper := strings.ToUpper(name)
		if upper == "ALL" {
			all = true
			continue
		}
		found := false
		for n, known := range capNames {
			if known == strings.TrimPrefix(upper, "CAP_") {
				set |= 1 << n
				found = true
			}
		}
		if !found {
			return 0, false, fmt.Errorf("capability %q is unknown: see capabilities(7)", name)
		}
	}
	return set, all, nil
}

// capsFor is the capability bounding set of a container's processes.
func capsFor(s runtime.Security) (capSet, error) {
	add, addAll, err := parseCaps(s.AddCapabilities)
	if err != nil {
		return 0, err
	}
	drop, dropAll, err := parseCaps(s.DropCapabilities)
	if err != nil {
		return 0, err
	}
	if s.Privileged {
		return allCaps, nil
	}
	set := defaultCaps
	if addAll {
		set = allCaps
	}
	if dropAll {
		set = 0
	}
	return (set | add) &^ drop, nil
}

// mayAdd refuses capabilities beyond the default ones if they cannot be given.
func mayAdd(s runtime.Security, iso Isolation) error {
	keep, err := capsFor(s)
	if err != nil || s.Privileged || len(s.AddCapabilities) == 0 {
		return err
	}
	// In a user namespace they would have no effect on the machine.
	if keep&^defaultCaps == 0 || iso != UserNamespace && os.Geteuid() == 0 {
		return nil
	}
	return fmt.Errorf("adding capabilities %s needs an agent that runs as root", strings.Join(s.AddCapabilities, ", "))
}

// boundCaps removes every capability that is not in keep from the bounding set of the
// calling thread and of the processes that it starts. The thread itself keeps them until
// it executes a program. It fails without CAP_SETPCAP if there are any to remove.
func boundCaps(keep capSet) error {
	for n := range len(capNames) + 8 { // and those that this program has no name for
		if keep&(1<<n) != 0 {
			continue
		}
		have, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(n), 0, 0, 0)
		if err != nil {
			break // the kernel has no more
		}
		if have == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capabilities: %w", err)
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&head, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
