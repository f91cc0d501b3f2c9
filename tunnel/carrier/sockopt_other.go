//go:build !linux

// Socket options where there are none of these.

package carrier

import (
	"errors"
	"fmt"
)

var errNoCongestion = errors.New("not supported on this system")

func tuneSocket(int) {}

func setUnsent(_, _ int) {}

func setCongestion(int, string) error { return errNoCongestion }

// checkCongestion says whether this process may use a congestion control that
// was asked for by name.
func checkCongestion(name string) error {
	if name == "" || name == congestionAuto || name == congestionSystem {
		return nil
	}
	return fmt.Errorf("congestion control %q: %w: use auto or system", name, errNoCongestion)
}
