//go:build !linux

// Socket options where there are none of these.

package carrier

import (
	"errors"
	"time"
)

func tuneSocket(int) {}

func setUnsent(_, _ int) {}

func quickAck(int) {}

func limitSegments(_, _ int) {}

func setCongestion(int, string) error { return errors.ErrUnsupported }

func tryCongestion(string) error {
	return errors.New("not supported on this system: use auto or system")
}

func acknowledgement(int) (outstanding bool, ago time.Duration, ok bool) { return false, 0, false }
