// What etcd logs, handed to slog.

package etcd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// zapLogger is a zap logger that writes warnings and worse to l, until ctx is
// done: to etcd a listener that is closed when it stops is an error. Its
// information is about its own insides and stays out. When etcd is about to end the process,
// space, unless it is nil, says whether it wants room.
func zapLogger(ctx context.Context, l *slog.Logger, space func() error) *zap.Logger {
	return zap.New(&slogCore{LevelEnabler: zapcore.WarnLevel, log: l.With("component", "etcd"), stopping: ctx.Done(), space: space})
}

// slogCore is a zapcore.Core on a slog.Logger.
type slogCore struct {
	zapcore.LevelEnabler
	log      *slog.Logger
	stopping <-chan struct{}
	space    func() error
}

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{LevelEnabler: c.LevelEnabler, log: c.log.With(attrs(fields)...), stopping: c.stopping, space: c.space}
}

func (c *slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	select {
	case <-c.stopping:
		return ce
	default:
	}
	if !c.Enabled(e.Level) || expected(e.Message) {
		return ce
	}
	return ce.AddCore(e, c)
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if has(fields, unwritten) {
		return nil
	}
	if e.Level > zapcore.WarnLevel {
		c.log.Error(e.Message, attrs(fields)...)
	} else {
		c.log.Warn(e.Message, attrs(fields)...)
	}
	if e.Level > zapcore.ErrorLevel && c.space != nil {
		err := c.space()
		if has(fields, func(err error) bool { return errors.Is(err, unix.ENOSPC) }) {
			err = cmp.Or(err, error(unix.ENOSPC)) // the log takes more at a time
		}
		if err != nil {
			c.log.Error("the server ends, because its store cannot be written: start it again when there is room", "err", err)
		}
	}
	return nil
}

func (c *slogCore) Sync() error { return nil }

// expected tells the warnings etcd gives about choices made in embedConfig on
// purpose, and those about what whoever made a request is told anyway.
func expected(msg string) bool {
	switch msg {
	case "retrying of unary invoker failed": // one for each request while no member answers
		return true
	case "simple token is not cryptographically signed", // there are no users to sign tokens for
		"Running http and grpc server on single port. This is not recommended for production.",
		"serving client traffic insecurely; this is strongly discouraged!":
		return true
	}
	return false
}

// unwritten is whether etcd says that its store has no version yet. That is so in the first
// moments of a new store, in which nothing has been committed; etcd looks again every 4 s.
func unwritten(err error) bool { return strings.Contains(err.Error(), "missing term information") }

// has is whether one of fields is an error that is such.
func has(fields []zapcore.Field, such func(error) bool) bool {
	return slices.ContainsFunc(fields, func(f zapcore.Field) bool {
		err, ok := f.Interface.(error)
		return ok && such(err)
	})
}

// attrs are fields as arguments to a slog.Logger.
func attrs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	args := make([]any, 0, 2*len(enc.Fields))
	for _, f := range fields { // in the order given, not the map's
		if v, ok := enc.Fields[f.Key]; ok {
			args = append(args, f.Key, v)
		}
	}
	return args
}
