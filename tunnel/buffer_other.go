// Systems whose sockets are read as any connection is.

//go:build !unix

package tunnel

import (
	"errors"
	"io"
)

type socket struct{}

func (*socket) is(io.Reader) bool { return false }

func (*Buffer) readSocket() (int, error) { return 0, errors.ErrUnsupported }
