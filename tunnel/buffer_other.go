// Systems whose sockets are read as any connection is.

//go:build !unix

package tunnel

import (
	"errors"
	"net"
)

type socket struct{}

func (*socket) is(net.Conn) bool { return false }

func (*Buffer) readSocket() (int, error) { return 0, errors.ErrUnsupported }
