//go:build !linux

// Socket options where there are none of these.

package carrier

import (
	"errors"
)

func tuneSocket(int) {}

func setUnsent(_, _ int) {}

func quickAck(int) {}

func limitSegments(_, _ int) {}

func setCongestion(int, string) error { return errors.ErrUnsupported }

func tryCongestion(string) error {
	return errors.New("not supported on this system: use auto or system")
}

func acknowledgementOf(int) (acknowledgement, bool) { return acknowledgement{}, false }
