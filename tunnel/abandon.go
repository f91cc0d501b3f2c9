// Abandon: whether the opener of a request still waits for its answer.

package tunnel

import (
	"errors"
	"io"
	"os"
	"time"
)

const (
	// watchAfter is how long a target may take to answer before anybody looks
	// whether the opener still waits. Most have answered by then, and cost nothing.
	watchAfter = 100 * time.Millisecond
	// aheadLimit bounds what is read ahead of a request's stream, in bytes. An
	// opener that has said more is not watched any longer: it is TLS, whose first
	// flight is less than half of that, that speaks before it is answered.
	aheadLimit = 4 << 10
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// A lookout calls giveUp when the opener of a stream has given it up: a target that
// does not answer would otherwise keep a socket, and a place among the session's
// streams, for as long as the opener had once been ready to wait. It hears of that
// by reading, and keeps what it reads.
type lookout struct {
	stream Stream
	giveUp func()
	timer  *time.Timer   // calls watch
	over   chan struct{} // closed when watch returns

	// Of the one who watches; of the caller of stop once over is closed.
	ahead []byte
	ended bool // the opener's direction
}

func newLookout(s Stream, giveUp func()) *lookout {
	l := &lookout{stream: s, giveUp: giveUp, over: make(chan struct{})}
	l.timer = time.AfterFunc(watchAfter, l.watch)
	return l
}

func (l *lookout) watch() {
	defer close(l.over)
	l.ahead = make([]byte, 0, aheadLimit)
	for len(l.ahead) < aheadLimit {
		n, err := l.stream.Read(l.ahead[len(l.ahead):aheadLimit])
		l.ahead = l.ahead[:len(l.ahead)+n]
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded): // by stop
			return
		case errors.Is(err, io.EOF): // it has said all, and waits
			l.ended = true
			return
		default:
			l.giveUp()
			return
		}
	}
}

// stop ends the watch and returns the stream as if nobody had read from it. What
// goes wrong is for who uses it next to find out.
func (l *lookout) stop() Stream {
	if l.timer.Stop() {
		return l.stream
	}
	_ = l.stream.SetReadDeadline(past)
	<-l.over
	_ = l.stream.SetReadDeadline(time.Time{})
	if len(l.ahead) == 0 && !l.ended {
		return l.stream
	}
	return &watched{Stream: l.stream, ahead: l.ahead, ended: l.ended}
}

// A watched stream is one of which something has been read ahead. It is an Aborter
// if the stream is.
type watched struct {
	Stream
	ahead []byte // Read's alone
	ended bool
}

func (w *watched) Read(p []byte) (int, error) {
	switch {
	case len(w.ahead) > 0:
		n := copy(p, w.ahead)
		if w.ahead = w.ahead[n:]; len(w.ahead) == 0 {
			w.ahead = nil
		}
		return n, nil
	case w.ended && len(p) > 0:
		return 0, io.EOF
	default:
		return w.Stream.Read(p)
	}
}

// ReadBuffer is for Splice.
func (w *watched) ReadBuffer(b *Buffer) (int, error) {
	if len(w.ahead) > 0 || w.ended {
		return w.Read(b.Take(len(w.ahead)))
	}
	return ReadBuffer(w.Stream, b)
}

// Abort gives the stream up.
func (w *watched) Abort() error { return Abort(w.Stream) }

var _ Aborter = (*watched)(nil)
