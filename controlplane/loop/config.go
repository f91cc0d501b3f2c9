package loop

// What a controller's New makes of the fields of its Config that were left empty.

import (
	"cmp"
	"log/slog"
	"time"

	"k8s.io/client-go/tools/record"
)

// Default sets *v to d unless it is above zero.
func Default[T int | float64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// Logger returns l, which may be nil and then discards, with the attribute
// "controller".
func Logger(l *slog.Logger, controller string) *slog.Logger {
	return cmp.Or(l, slog.New(slog.DiscardHandler)).With("controller", controller)
}

// Recorder returns r, or one that discards if r is nil.
func Recorder(r record.EventRecorder) record.EventRecorder {
	if r == nil {
		return &record.FakeRecorder{} // without a channel it discards
	}
	return r
}
