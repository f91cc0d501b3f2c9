package kubelet

// Witness: a connection to a kubelet that tells when it is cut short.
//
// Exec and attach end with a status that the kubelet sends on a stream of its own.
// When the way to the node is lost before that, SPDY's streams merely end, and
// clients take a stream without a status for a command that succeeded. So a
// connection that is lost gets one more frame here, with a status that says so. A client that
// is still opening its streams would wait for their answers, so these come from here, too (lost.go).

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth/spdyframes"
)

const (
	// maxPreamble bounds the HTTP header before the first frame.
	maxPreamble = 64 << 10
	// trackedBuffer is how much is read from the kubelet at a time.
	trackedBuffer = 32 << 10
)

// tracked has connections of dial tell when they are cut short. The address's host is the
// node's name.
func tracked(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		w := newTrackedConn(c, host, streamsOf(ctx))
		// The library's Close waits for a Write that the kubelet takes nothing of.
		context.AfterFunc(ctx, func() { _ = w.Close() })
		return w, nil
	}
}

// newTrackedConn tracks a connection to node, on which the client opens so many streams.
func newTrackedConn(c net.Conn, node string, streams int) *trackedConn {
	return &trackedConn{Conn: c, node: node, opened: openedStreams{expected: streams, changed: make(chan struct{}, 1)}}
}

// A trackedConn is a connection that is to be upgraded to SPDY. One goroutine may
// read, one may write.
type trackedConn struct {
	net.Conn
	node string

	// spdy is set, by the reader, once the kubelet has agreed to it; no client
	// sends a frame before. errorStream is the stream of the status, found by the
	// writer; zero until then.
	spdy        atomic.Bool
	errorStream atomic.Uint32
	closed      atomic.Bool // by Close: nobody wants to know any more

	opened openedStreams
	alone  atomic.Bool // set by the reader once the kubelet says no more
	ended  atomic.Bool // set by the reader once it has told how it ended

	// sent is the writer's.
	sent struct {
		preamble bool // whether the request has been sent
		ending   []byte
		frames   spdyframes.Frames
		lost     bool // what is sent makes no sense
	}
	// got is the reader's.
	got struct {
		preamble []byte // of the answer, while incomplete
		plain    bool   // whether bytes are passed as they are
		version  string // of the protocol on the streams
		frames   spdyframes.Frames
		buf      []byte
		out      []byte    // not yet handed out
		told     bool      // whether the kubelet has begun to say how it ended
		headers  bool      // whether a frame with headers has come
		lost     error     // what the connection ended with; the client is told before it ends
		patience time.Time // until when the client may open its next stream
		err      error
	}
}

// Close ends the connection on the client's behalf.
func (w *trackedConn) Close() error {
	w.closed.Store(true)
	w.opened.wake()
	return w.Conn.Close()
}

// Write passes p to the kubelet and finds out which streams are opened. It discards p once the
// connection is lost, until the reader has told: who copies both ways would end them upon an error.
func (w *trackedConn) Write(p []byte) (int, error) {
	if w.ended.Load() { // before listen, by which the reader may get all that it waits for
		return 0, net.ErrClosed
	}
	w.listen(p)
	if w.alone.Load() {
		return len(p), nil
	}
	n, err := w.Conn.Write(p)
	if err != nil && w.spdy.Load() && !w.closed.Load() {
		return len(p), nil
	}
	return n, err
}

func (w *trackedConn) listen(p []byte) {
	s := &w.sent
	if !s.preamble {
		n := endOfHeader(s.ending, p)
		if n < 0 {
			s.ending = append(s.ending, p...)
			s.ending = s.ending[max(0, len(s.ending)-3):]
			return
		}
		s.preamble, s.ending, p = true, nil, p[n:]
	}
	for len(p) > 0 && !s.lost && w.spdy.Load() && !w.opened.all() {
		var control []byte
		var err error
		if _, control, p, err = s.frames.Next(p); err != nil {
			s.lost = true
		} else if control != nil {
			w.learn(control)
		}
	}
}

// learn reads a control frame of the client's. All of them have to be read, since
// headers are compressed in one sequence.
func (w *trackedConn) learn(control []byte) {
	f, err := w.sent.frames.Read(control)
	if err != nil {
		w.sent.lost = true
		return
	}
	syn, ok := f.(*spdy.SynStreamFrame)
	if !ok {
		return
	}
	if syn.Headers.Get(corev1.StreamType) == corev1.StreamTypeError {
		w.errorStream.Store(uint32(syn.StreamId))
	}
	w.opened.add(uint32(syn.StreamId))
}

// endOfHeader is how much of p belongs to an HTTP header that ends in it; negative
// if it does not. before is what came just before p.
func endOfHeader(before, p []byte) int {
	b := append(append(make([]byte, 0, len(before)+len(p)), before...), p...)
	for i, c := range b {
		for _, end := range []string{"\n", "\r\n"} { // a lone LF ends a line, too (RFC 9112, 2.2)
			if c == '\n' && bytes.HasPrefix(b[i+1:], []byte(end)) {
				return i + 1 + len(end) - len(before)
			}
		}
	}
	return -1
}

// Read gives what the kubelet sends, and a status of its own at the end if the
// kubelet's is missing. Frames of data may be split, so that none is left
// incomplete.
func (w *trackedConn) Read(p []byte) (int, error) {
	g := &w.got
	if len(p) == 0 {
		return 0, nil
	}
	for len(g.out) == 0 {
		if g.err != nil {
			return 0, g.err
		}
		if g.lost != nil {
			w.answerAlone()
			continue
		}
		if g.plain {
			return w.Conn.Read(p)
		}
		if g.buf == nil {
			g.buf = make([]byte, trackedBuffer)
		}
		n, err := w.Conn.Read(g.buf)
		g.out = g.out[:0]
		if terr := w.take(g.buf[:n]); terr != nil {
			err = terr
		}
		if err != nil {
			g.lost, g.patience = err, time.Now().Add(openPatience)
			w.alone.Store(true)
		}
	}
	n := copy(p, g.out)
	g.out = g.out[n:]
	return n, nil
}

// take adds what came from the kubelet to what is handed out. It fails upon a frame that no kubelet
// sends: the client that reads here, the API server itself or a user's, has hardly a bound.
func (w *trackedConn) take(b []byte) error {
	g := &w.got
	if !w.spdy.Load() && !g.plain {
		before := g.preamble[max(0, len(g.preamble)-3):]
		n := endOfHeader(before, b)
		if n < 0 {
			g.preamble = append(g.preamble, b...)
			g.out = append(g.out, b...)
			g.plain = len(g.preamble) > maxPreamble
			return nil
		}
		g.preamble = append(g.preamble, b[:n]...)
		g.out = append(g.out, b[:n]...)
		w.agree()
		b = b[n:]
	}
	for len(b) > 0 {
		if g.plain {
			g.out = append(g.out, b...)
			return nil
		}
		body, control, rest, err := g.frames.Next(b)
		if err == nil && control != nil {
			err = w.fromKubelet(control)
		}
		if err != nil {
			return err
		}
		switch {
		case control != nil:
			g.out = append(g.out, control...)
		case body != nil:
			w.pass(body)
		}
		b = rest
	}
	return nil
}

// fromKubelet checks a control frame of the kubelet's, which opens no streams.
func (w *trackedConn) fromKubelet(control []byte) error {
	f, err := w.got.frames.Read(control)
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *spdy.SynStreamFrame:
		return fmt.Errorf("%w: the node opens a stream", spdyframes.ErrRefused)
	case *spdy.SynReplyFrame:
		w.got.headers = true
		w.opened.answered(uint32(f.StreamId))
	case *spdy.HeadersFrame:
		w.got.headers = true
	case *spdy.RstStreamFrame:
		w.opened.answered(uint32(f.StreamId))
	}
	return nil
}

// agree looks at the kubelet's answer to the request for an upgrade.
func (w *trackedConn) agree() {
	g := &w.got
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(g.preamble)), nil)
	g.preamble = nil
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(resp.Header.Get("Upgrade"), "SPDY/3.1") {
		g.plain = true
	} else {
		g.version = resp.Header.Get("X-Stream-Protocol-Version")
		w.spdy.Store(true)
	}
	if err == nil {
		_ = resp.Body.Close() // what there is of it is not read here
	}
}

// pass hands out a piece of a data frame as a frame of its own.
func (w *trackedConn) pass(body []byte) {
	g := &w.got
	if len(body) > 0 && g.frames.Stream() == w.errorStream.Load() {
		g.told = true
	}
	g.out = spdyframes.AppendData(g.out, g.frames.Stream(), g.frames.Flags(), body)
}
