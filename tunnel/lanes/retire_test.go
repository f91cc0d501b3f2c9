package lanes

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/tunnel"
)

// An endingSession is a session whose Accept fails before its context is done.
type endingSession struct {
	tunnel.Session
	err    error
	closed bool
}

func (e *endingSession) Context() context.Context                      { return context.Background() }
func (e *endingSession) Accept(context.Context) (tunnel.Stream, error) { return nil, e.err }
func (e *endingSession) Close() error                                  { e.closed = true; return nil }

// The end of a lane is nothing to warn of; what is wrong with one is, once.
func TestEndOfALaneIsNoFault(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		retiring bool
		lines    int
	}{
		"retired by the peer":       {io.EOF, true, 0},
		"closed":                    {tunnel.ErrSessionClosed, false, 0},
		"lost":                      {tunnel.Lost, false, 0},
		"its window is over":        {syscall.ECONNRESET, false, 0},
		"a fault":                   {errors.New("frame of kind 77"), false, 1},
		"cut off with nothing said": {io.ErrUnexpectedEOF, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			e := &endingSession{err: c.err}
			l := &lane{of: &Session{log: slog.New(slog.NewTextHandler(&log, nil))}, number: 2, session: e, retiring: c.retiring}
			l.accept(nil)
			if n := strings.Count(log.String(), "level=WARN msg=\"lane is broken\""); n != c.lines || !e.closed {
				t.Errorf("%d lines, closed %v:\n%s", n, e.closed, log.String())
			}
		})
	}
}
