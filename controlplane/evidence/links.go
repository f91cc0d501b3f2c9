package evidence

// The server's own links.

import (
	"errors"
	"fmt"
	"net"
)

// OwnLinks returns an error if no network interface of this machine but the
// loopback is up and has a carrier.
func OwnLinks() error {
	all, err := net.Interfaces()
	if err != nil {
		return nil //nolint:nilerr // what cannot be seen proves nothing
	}
	return judgeLinks(all)
}

func judgeLinks(all []net.Interface) error {
	var down string
	for _, i := range all {
		switch {
		case i.Flags&net.FlagLoopback != 0:
		case i.Flags&net.FlagUp != 0 && i.Flags&net.FlagRunning != 0:
			return nil
		case down == "":
			down = i.Name
		default:
			down += ", " + i.Name
		}
	}
	if down == "" {
		return errors.New("there is no network interface but the loopback")
	}
	return fmt.Errorf("no network interface is up (%s)", down)
}
