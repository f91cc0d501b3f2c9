package kubelet

// Witness: a connection to a kubelet that tells when it is cut short.
//
// Exec and attach end with a status that the kubelet sends on a stream of its own.
// When the way to the node is lost before that, SPDY's streams merely end, and
// clients take a stream without a status for a command that succeeded. So a
// connection that is lost gets one more frame here, with a status that says so.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// frameHeader is the size of the header of a SPDY/3.1 frame.
	frameHeader = 8
	// finFlag marks the last frame of a stream.
	finFlag = 1
	// maxControlFrame bounds the control frames that are looked into, and
	// maxPreamble the HTTP header before the first frame.
	maxControlFrame = 64 << 10
	maxPreamble     = 64 << 10
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
		return &trackedConn{Conn: c, node: host}, nil
	}
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

	// sent is the writer's.
	sent struct {
		preamble bool // whether the request has been sent
		ending   []byte
		frames   frames
		framer   *spdy.Framer // nil before the first frame
		in       bytes.Buffer // what framer reads
		lost     bool         // what is sent makes no sense
	}
	// got is the reader's.
	got struct {
		preamble []byte // of the answer, while incomplete
		plain    bool   // whether bytes are passed as they are
		version  string // of the protocol on the streams
		frames   frames
		buf      []byte
		out      []byte // not yet handed out
		told     bool   // whether the kubelet has begun to say how it ended
		err      error
	}
}

// frames cuts a sequence of bytes into frames.
type frames struct {
	header  [frameHeader]byte
	have    int    // of the header
	left    int    // of the frame after its header
	control []byte // a control frame so far
}

// isControl says whether the current frame is one.
func (f *frames) isControl() bool { return f.header[0]&0x80 != 0 }

// stream is that of the current data frame.
func (f *frames) stream() uint32 { return binary.BigEndian.Uint32(f.header[:4]) }

// flags are the current frame's.
func (f *frames) flags() byte { return f.header[4] }

// next takes a piece of at most one frame off p: the body of a data frame or what
// there is of it, or a whole control frame with its header. Both may be nil, while
// a header or a control frame is incomplete. It fails if a control frame is too
// large.
func (f *frames) next(p []byte) (body, control, rest []byte, err error) {
	if f.have < frameHeader {
		n := copy(f.header[f.have:], p)
		f.have, p = f.have+n, p[n:]
		if f.have < frameHeader {
			return nil, nil, p, nil
		}
		f.left = int(binary.BigEndian.Uint32(f.header[4:]) & 0xffffff)
		if f.isControl() {
			if f.left > maxControlFrame {
				return nil, nil, p, fmt.Errorf("control frame of %d bytes", f.left)
			}
			f.control = append(f.control[:0], f.header[:]...)
		} else if f.left == 0 {
			f.have = 0
			return []byte{}, nil, p, nil
		}
	}
	n := min(f.left, len(p))
	f.left -= n
	if f.left == 0 {
		f.have = 0
	}
	if !f.isControl() {
		return p[:n], nil, p[n:], nil
	}
	f.control = append(f.control, p[:n]...)
	if f.left == 0 {
		return nil, f.control, p[n:], nil
	}
	return nil, nil, p[n:], nil
}

// Close ends the connection on the client's behalf.
func (w *trackedConn) Close() error {
	w.closed.Store(true)
	return w.Conn.Close()
}

// Write passes p to the kubelet and finds out which stream the status is to come
// on.
func (w *trackedConn) Write(p []byte) (int, error) {
	w.listen(p)
	return w.Conn.Write(p)
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
	for len(p) > 0 && !s.lost && w.errorStream.Load() == 0 && w.spdy.Load() {
		var control []byte
		var err error
		if _, control, p, err = s.frames.next(p); err != nil {
			s.lost = true
		} else if control != nil {
			w.learn(control)
		}
	}
}

// learn reads a control frame of the client's. All of them have to be read, since
// headers are compressed in one sequence.
func (w *trackedConn) learn(control []byte) {
	s := &w.sent
	s.in.Reset()
	_, _ = s.in.Write(control) // never fails
	if s.framer == nil {
		var err error
		if s.framer, err = spdy.NewFramer(io.Discard, &s.in); err != nil {
			s.lost = true
			return
		}
	}
	f, err := s.framer.ReadFrame()
	if err != nil {
		s.lost = true
		return
	}
	if syn, ok := f.(*spdy.SynStreamFrame); ok && syn.Headers.Get(corev1.StreamType) == corev1.StreamTypeError {
		w.errorStream.Store(uint32(syn.StreamId))
	}
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
		if g.plain {
			return w.Conn.Read(p)
		}
		if g.buf == nil {
			g.buf = make([]byte, trackedBuffer)
		}
		n, err := w.Conn.Read(g.buf)
		g.out = g.out[:0]
		w.take(g.buf[:n])
		if err != nil {
			w.conclude(err)
			g.err = err
		}
	}
	n := copy(p, g.out)
	g.out = g.out[n:]
	return n, nil
}

// take adds what came from the kubelet to what is handed out.
func (w *trackedConn) take(b []byte) {
	g := &w.got
	if !w.spdy.Load() && !g.plain {
		before := g.preamble[max(0, len(g.preamble)-3):]
		n := endOfHeader(before, b)
		if n < 0 {
			g.preamble = append(g.preamble, b...)
			g.out = append(g.out, b...)
			g.plain = len(g.preamble) > maxPreamble
			return
		}
		g.preamble = append(g.preamble, b[:n]...)
		g.out = append(g.out, b[:n]...)
		w.agree()
		b = b[n:]
	}
	for len(b) > 0 {
		if g.plain {
			g.out = append(g.out, b...)
			return
		}
		body, control, rest, err := g.frames.next(b)
		switch {
		case err != nil: // whatever it is, it is not for us to break
			g.plain = true
			g.out = append(g.out, g.frames.header[:]...)
		case control != nil:
			g.out = append(g.out, control...)
		case body != nil:
			w.pass(body)
		}
		b = rest
	}
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
	flags := g.frames.flags()
	if g.frames.left > 0 {
		flags &^= finFlag // the last piece has it
	}
	if len(body) > 0 && g.frames.stream() == w.errorStream.Load() {
		g.told = true
	}
	g.out = appendData(g.out, g.frames.stream(), flags, body)
}

// appendData appends a frame of data.
func appendData(out []byte, stream uint32, flags byte, body []byte) []byte {
	out = binary.BigEndian.AppendUint32(out, stream)
	out = binary.BigEndian.AppendUint32(out, uint32(flags)<<24|uint32(len(body)))
	return append(out, body...)
}

// conclude says how it ended if the kubelet has not. A connection that was lost is
// always cut short, also when it was given up at this end, with all that a session
// carried; one that the kubelet closed is if the protocol always has a status.
func (w *trackedConn) conclude(err error) {
	g := &w.got
	stream := w.errorStream.Load()
	status := strings.HasPrefix(g.version, "v4.") || strings.HasPrefix(g.version, "v5.")
	closed := errors.Is(err, io.EOF)
	if !w.spdy.Load() || g.plain || g.told || stream == 0 || closed && !status || w.closed.Load() {
		return
	}
	why := err.Error()
	if closed {
		why = "the node closed it"
	}
	text := fmt.Sprintf("the connection to node %s was lost before the result was known: %s", w.node, why)
	message := []byte(text)
	if status {
		var merr error
		if message, merr = json.Marshal(&metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
			Code: http.StatusInternalServerError, Message: text,
		}); merr != nil {
			message = []byte(text) // which no client takes for success either
		}
	}
	g.out = appendData(g.out, stream, finFlag, message)
}
