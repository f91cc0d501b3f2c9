package process

// The filter of system calls: the default profile of Docker and containerd, compiled to
// BPF.

import (
	"cmp"
	"errors"
	"fmt"
	goruntime "runtime"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// filterCalls installs the filter for containers with these capabilities on the calling
// thread and the processes that it starts. The thread must have CAP_SYS_ADMIN or
// no_new_privs.
func filterCalls(keep capSet) error {
	rules, err := defaultRules(keep)
	if err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	code, err := assembleFilter(rules)
	if err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	filter := make([]unix.SockFilter, len(code))
	for i, c := range code {
		filter[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}

// defaultRules is the profile for a container with capabilities keep, on this
// kernel.
func defaultRules(keep capSet) (*specs.LinuxSeccomp, error) {
	caps := &specs.LinuxCapabilities{}
	for n, name := range capNames {
		if keep&(1<<n) != 0 {
			caps.Bounding = append(caps.Bounding, "CAP_"+name)
		}
	}
	return seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: caps}})
}

// Offsets in struct seccomp_data of linux/seccomp.h, for machines that store the
// low half of a number first.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

// assembleFilter compiles rules. A call gets the action of the first rule that matches.
func assembleFilter(rules *specs.LinuxSeccomp) ([]bpf.RawInstruction, error) {
	if goruntime.GOARCH != "amd64" && goruntime.GOARCH != "arm64" {
		return nil, fmt.Errorf("there is no profile for %s", goruntime.GOARCH)
	}
	info, err := arch.GetInfo("")
	if err != nil {
		return nil, err
	}
	number := bpf.LoadAbsolute{Off: dataNumber, Size: 4}
	fallback, err := verdict(rules.DefaultAction, rules.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	prog := []bpf.Instruction{
		// System calls of other architectures have other numbers.
		bpf.LoadAbsolute{Off: dataArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		fallback,
		number,
	}
	if info.ID == arch.X86_64.ID { // so do those of x32
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: uint32(arch.X32.SeccompMask), SkipFalse: 1}, fallback)
	}
	for _, rule := range rules.Syscalls {
		action, err := verdict(rule.Action, rule.ErrnoRet)
		if err != nil {
			return nil, err
		}
		for _, name := range rule.Names {
			nr, known := info.SyscallNames[name]
			if !known {
				continue // of another architecture, or newer than the table
			}
			body, err := conditions(rule.Args)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if body = append(body, action); len(rule.Args) > 0 {
				body = append(body, number)
			}
			prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(nr), SkipFalse: uint8(len(body))})
			prog = append(prog, body...)
		}
	}
	return bpf.Assemble(append(prog, fallback))
}

// verdict is the kernel's encoding of an action.
func verdict(a specs.LinuxSeccompAction, errno *uint) (bpf.RetConstant, error) {
	switch a {
	case specs.ActAllow:
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}, nil
	case specs.ActErrno:
		no := uint(unix.EPERM)
		if errno != nil {
			no = cmp.Or(*errno, no)
		}
		return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(no)&unix.SECCOMP_RET_DATA}, nil
	default:
		return bpf.RetConstant{}, fmt.Errorf("action %s is not supported", a)
	}
}

// conditions compares arguments. If one does not match, the program jumps over the
// action, which follows the conditions.
func conditions(args []specs.LinuxSeccompArg) ([]bpf.Instruction, error) {
	var prog []bpf.Instruction
	for i := len(args) - 1; i >= 0; i-- {
		a := args[i]
		load := func(half uint32) bpf.Instruction {
			return bpf.LoadAbsolute{Off: dataArgs + 8*uint32(a.Index) + 4*half, Size: 4}
		}
		after := uint8(len(prog)) + 1 // the instructions to skip from the end of a comparison
		var own []bpf.Instruction
		switch a.Op {
		case specs.OpEqualTo:
			own = []bpf.Instruction{
				load(1),
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(a.Value >> 32), SkipFalse: after + 2},
				load(0),
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(a.Value), SkipFalse: after},
			}
		case specs.OpMaskedEqual:
			own = []bpf.Instruction{
				load(1),
				bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(a.Value >> 32)},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(a.ValueTwo >> 32), SkipFalse: after + 3},
				load(0),
				bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(a.Value)},
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(a.ValueTwo), SkipFalse: after},
			}
		case specs.OpLessThan:
			if a.Value>>32 != 0 {
				return nil, errors.New("a bound of more than 32 bits is not supported")
			}
			own = []bpf.Instruction{
				load(1),
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipFalse: after + 2},
				load(0),
				bpf.JumpIf{Cond: bpf.JumpLessThan, Val: uint32(a.Value), SkipFalse: after},
			}
		default:
			return nil, fmt.Errorf("comparison %s is not supported", a.Op)
		}
		prog = append(own, prog...)
	}
	return prog, nil
}
