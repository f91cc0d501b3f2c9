// This file has logind allow as long a delay as is asked for.

package shutdown

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

// DefaultDropIn is Config.DropIn where nothing else is said: the kubelet's file, so that
// there is one of the two.
const DefaultDropIn = "/etc/systemd/logind.conf.d/99-kubelet.conf"

const (
	// raiseTime is how long logind has for reading its configuration again, and
	// raiseEvery how often it is asked meanwhile.
	raiseTime  = 5 * time.Second
	raiseEvery = 50 * time.Millisecond
)

// A tooShortError says that logind delays a shutdown for less than is asked for.
type tooShortError struct {
	have, want time.Duration
	dropIn     string
	err        error // why it was not raised; nil if logind would not
}

func (e *tooShortError) Error() string {
	why := "another file of logind's configuration has the last word, see systemd-analyze cat-config systemd/logind.conf"
	if e.err != nil {
		why = e.err.Error()
	}
	return fmt.Sprintf("logind's InhibitDelayMaxSec is %s, less than the %s of the shutdown grace periods, and %s did not raise it (%s): set InhibitDelayMaxSec=%d in /etc/systemd/logind.conf and reload systemd-logind, or ask for less",
		e.have, e.want, e.dropIn, why, seconds(e.want))
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// raise sees to it that logind delays a shutdown for as long as want. Its error is a
// *tooShortError unless the bus is the reason.
func (l *logind) raise(ctx context.Context, want time.Duration, dropIn string) error {
	have, err := l.delay(ctx)
	if err != nil || have >= want {
		return err
	}
	if err = writeDropIn(dropIn, want); err != nil {
		return &tooShortError{have, want, dropIn, err}
	}
	if err = l.reload(ctx); err != nil {
		return &tooShortError{have, want, dropIn, err}
	}
	tick := time.NewTicker(raiseEvery)
	defer tick.Stop()
	for late := time.After(raiseTime); ; {
		if have, err = l.delay(ctx); err != nil || have >= want {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return &tooShortError{have, want, dropIn, nil}
		case <-tick.C:
		}
	}
}

// writeDropIn replaces the file at once, so that logind never reads half of it.
func writeDropIn(path string, want time.Duration) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // configuration of the system, which all read
		return err
	}
	text := fmt.Sprintf("# Written by hawser-agent: a shutdown waits for its pods.\n[Login]\nInhibitDelayMaxSec=%d\n", seconds(want))
	return atomicfile.Write(path, []byte(text), 0o644)
}
