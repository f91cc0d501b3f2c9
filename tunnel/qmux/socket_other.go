// Where sockets cannot be tried without waiting.

//go:build !unix

package qmux

import (
	"errors"
	"syscall"
)

func socketOf(any) syscall.RawConn { return nil }

func tryWrite(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

func tryRead(uintptr, []byte) (int, bool, error) { return 0, false, errors.ErrUnsupported }
