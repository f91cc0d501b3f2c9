package kubelet

// Logs that are followed past the loss of a session: the log is asked for again, and what has been
// passed on is left out of what comes. A kubelet that names the container of its answer is asked for
// that one, also when the pod has started another since.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// followAgainFor bounds how long a followed log waits for its node, and followAgainLeast and
	// followAgainMost how long for the next attempt.
	followAgainFor   = time.Minute
	followAgainLeast = 200 * time.Millisecond
	followAgainMost  = 5 * time.Second
	// followAgainAnswer bounds how long an attempt waits for an answer.
	followAgainAnswer = 15 * time.Second
	// followMargin is how far back a log is asked for again. Lines of the two streams of a
	// container may stand in the log in another order than their times.
	followMargin = time.Second
	// maxStamp bounds the time before a line.
	maxStamp = len(time.RFC3339Nano)
	// followBuffer is how much of a log is read at a time.
	followBuffer = 32 << 10
)

var (
	errPodGone  = errors.New("the pod is gone")
	errNoTime   = errors.New("the node sent a line without its time")
	errLineGone = errors.New("the log no longer has the last line that was passed on")
)

// goesOn says whether a log of node can be asked for again: of a node whose kubelet is known to
// send times when asked to.
func goesOn(o *corev1.PodLogOptions, node *corev1.Node) bool {
	return o.Follow && strings.HasSuffix(node.Status.NodeInfo.KubeletVersion, "+hawser")
}

// A followedLog is the body of a log that outlives the sessions by which it comes. It is read by
// one goroutine.
type followedLog struct {
	ctx context.Context //nolint:containedctx // of the request whose answer this is
	// ask opens the log. Its error is errPodGone or errLineGone if there is nothing to wait for.
	ask    func(ctx context.Context, query url.Values) (io.ReadCloser, error)
	query  url.Values // of the first request, and the container that its answer named
	body   io.ReadCloser
	err    error // what the body ended with; nil while it has not
	pause  time.Duration
	passed passedLog
	buf    []byte
	out    []byte // what was new in buf
	left   []byte // what of it is not yet handed out
}

// newFollowedLog follows body, the answer to a request with query, in which times are asked for.
// The times are passed on if stamps is set. It owns body.
func newFollowedLog(ctx context.Context, query url.Values, stamps bool, body io.ReadCloser,
	ask func(context.Context, url.Values) (io.ReadCloser, error),
) *followedLog {
	return &followedLog{
		ctx: ctx, ask: ask, query: query, body: body, pause: followAgainLeast,
		passed: passedLog{stamps: stamps}, buf: make([]byte, followBuffer),
	}
}

// Read gives each byte of the log once. It fails once the node has been out of reach for
// followAgainFor, if its log is gone or lacks the last line that was passed on, and if no line was
// passed on of a log whose beginning the time of the request decides.
func (l *followedLog) Read(p []byte) (int, error) {
	for len(l.left) == 0 {
		if l.err != nil {
			if err := l.again(); err != nil {
				return 0, err
			}
		}
		n, err := l.body.Read(l.buf)
		out, wrong := l.passed.take(l.out[:0], l.buf[:n])
		if l.out, l.left = out, out; len(out) > 0 {
			l.pause = followAgainLeast
		}
		if l.err = err; wrong != nil {
			l.err = wrong
		}
	}
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}

// again opens the log again, once it has broken off.
func (l *followedLog) again() error {
	switch {
	case errors.Is(l.err, io.EOF) && l.passed.seeking():
		return errLineGone
	case errors.Is(l.err, io.EOF), errors.Is(l.err, errNoTime), errors.Is(l.err, errLineGone), l.ctx.Err() != nil:
		return l.err
	case !l.passed.begun() && (l.query.Has("tailLines") || l.query.Has("sinceSeconds")):
		return l.err // what was written since the first request would be missing
	}
	_ = l.body.Close() // it has failed already
	query := l.passed.rest(l.query)
	late := time.NewTimer(followAgainFor)
	defer late.Stop()
	for {
		next := time.NewTimer(l.pause/2 + rand.N(l.pause)/2) //nolint:gosec // jitter
		select {
		case <-next.C:
		case <-late.C:
			next.Stop()
			return l.err
		case <-l.ctx.Done():
			next.Stop()
			return l.ctx.Err()
		}
		l.pause = min(2*l.pause, followAgainMost)
		body, err := l.ask(l.ctx, query)
		if err == nil {
			l.body, l.err = body, nil
			return nil
		}
		switch {
		case errors.Is(err, errPodGone):
			return l.err
		case errors.Is(err, errLineGone):
			return err
		}
	}
}

// Close gives the log up.
func (l *followedLog) Close() error { return l.body.Close() }

// A logLine is a place in a log.
type logLine struct {
	at    time.Time
	nth   int  // of the lines in a row that have this time; 0 before the first line
	text  int  // bytes of the text, its newline among them, that have been passed on
	whole bool // whether the newline is among them
}

// passedLog is how much of a log has been passed on. Each line comes with its time before it.
type passedLog struct {
	stamps bool // whether times are passed on

	stamp  []byte   // of the line that begins, while incomplete
	inText bool     // whether the time has come
	line   logLine  // the latest
	sought *logLine // in a log that has been asked for again: the last that was passed on
	skip   int      // bytes of the line that have been passed on before
	whole  bool     // whether the line ends with them
}

// begun says whether a line has been passed on, if not all of it.
func (g *passedLog) begun() bool { return g.sought != nil || g.line.nth > 0 }

func (g *passedLog) seeking() bool { return g.sought != nil || g.skip > 0 }

// rest is the query for what has not been passed on. What is taken next is its answer.
func (g *passedLog) rest(first url.Values) url.Values {
	if g.sought == nil && g.line.nth > 0 {
		l := g.line
		l.text += g.skip
		l.whole = l.whole || g.whole
		g.sought = &l
	}
	g.stamp, g.inText, g.line, g.skip, g.whole = g.stamp[:0], false, logLine{}, 0, false
	if g.sought == nil {
		return first
	}
	q := maps.Clone(first)
	q.Del("tailLines")
	q.Del("sinceSeconds")
	q.Set("sinceTime", g.sought.at.Add(-followMargin).UTC().Format(time.RFC3339))
	return q
}

// take appends to out what b has that is new.
func (g *passedLog) take(out, b []byte) ([]byte, error) {
	for len(b) > 0 {
		if !g.inText {
			stamp, rest, whole := cut(b, ' ')
			if len(g.stamp)+len(stamp) > maxStamp+1 {
				return out, errNoTime
			}
			g.stamp, b = append(g.stamp, stamp...), rest
			if !whole {
				break
			}
			var err error
			if out, err = g.begin(out); err != nil {
				return out, err
			}
			continue
		}
		text, rest, whole := cut(b, '\n')
		b = rest
		n := min(g.skip, len(text))
		if g.skip -= n; whole && g.skip > 0 || g.whole && n < len(text) {
			return out, errLineGone // another line has the time
		}
		if g.line.text += len(text); g.sought == nil {
			out = append(out, text[n:]...)
		}
		if whole {
			g.whole = false
			g.stamp, g.inText, g.line.whole = g.stamp[:0], false, true
		}
	}
	return out, nil
}

// begin begins a line whose time has come.
func (g *passedLog) begin(out []byte) ([]byte, error) {
	at, err := time.Parse(time.RFC3339Nano, string(g.stamp[:len(g.stamp)-1]))
	if err != nil {
		return out, errNoTime
	}
	nth := 1
	if at.Equal(g.line.at) {
		nth += g.line.nth
	}
	g.inText, g.line = true, logLine{at: at, nth: nth}
	switch s := g.sought; {
	case s == nil:
		if g.stamps {
			out = append(out, g.stamp...)
		}
	case at.Equal(s.at) && nth == s.nth:
		g.sought, g.skip, g.whole = nil, s.text, s.whole
	case at.After(s.at.Add(followMargin)):
		return out, errLineGone
	}
	return out, nil
}

// cut splits b behind the first end, if it has one.
func cut(b []byte, end byte) (before, after []byte, whole bool) {
	if i := bytes.IndexByte(b, end); i >= 0 {
		return b[:i+1], b[i+1:], true
	}
	return b, nil, false
}
