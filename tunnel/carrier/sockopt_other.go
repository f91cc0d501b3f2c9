//go:build !linux

// Socket options where there are none of these.

package carrier

import (
	"errors"
	"fmt"
	"time"
)

var errNoCongestion = errors.New("not supported on this system")

func tuneSocket(int) {}

func setUnsent(_, _ int) {}

func limitSegments(_, _ int) {}

func setCongestion(int, string) error { return errNoCongestion }

// checkCongestion says whether this process may use a congestion control that
// was asked for by name.
func checkCongestion(name string) error {
	if name == "" || name == congestionAuto || name == congestionSystem {
		return nil
	}
	return fmt.Errorf("congestion control %q: %w: use auto or system", name, errNoCongestion)
}

func acknowledgement(int) (outstanding bool, ago time.Duration, ok bool) { return false, 0, false }
