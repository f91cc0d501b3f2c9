// Dials over a session: Connect at one end; ReadRequest, Request and Answer at the other.

package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// DefaultDialTimeout bounds a dial whose context has no deadline, and the answering
	// end's work on a request without a timeout.
	DefaultDialTimeout = 30 * time.Second
	// requestTimeout bounds the wait for the dial frame of a stream.
	requestTimeout = 30 * time.Second
)

// A Dial is the target of a stream.
type Dial struct {
	Network string // "tcp"
	Addr    string
	// Name is what errors call the address; empty means Addr.
	Name string
	Meta Meta
	// Spare makes the dial fail with Busy if the session has an eighth of its streams left, or
	// less: those are kept for other dials. It is not sent.
	Spare bool
}

func (d Dial) name() string { return cmp.Or(d.Name, d.Addr) }

// Connect opens a stream on s and makes the other end connect it to addr. Errors are
// *DialError. The caller owns the stream.
func Connect(ctx context.Context, s Session, network, addr string) (Stream, error) {
	return Dial{Network: network, Addr: addr}.Connect(ctx, s)
}

// Connect is the function of that name with metadata.
func (d Dial) Connect(ctx context.Context, s Session) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultDialTimeout)
	defer cancel()
	st, err := d.open(ctx, s)
	if err != nil {
		return nil, NewDialError(d.name(), cmp.Or(context.Cause(ctx), err))
	}
	dial := d.frame(ctx)
	answer, err := exchange(ctx, st, &dial)
	if err == nil {
		err = d.answered(answer)
	}
	if err != nil {
		return nil, d.failed(st, err)
	}
	return st, nil
}

// Fits returns an error that wraps Busy if d is Spare, and l is of a session whose last streams are
// kept for other dials. Connect asks it by itself.
func (d Dial) Fits(l LinkState) error {
	if d.Spare && l.MaxStreams > 0 && 8*l.Streams >= 7*l.MaxStreams {
		return fmt.Errorf("%w: %d of the session's %d streams are open, and the rest are kept", Busy, l.Streams, l.MaxStreams)
	}
	return nil
}

// open opens a stream on s.
func (d Dial) open(ctx context.Context, s Session) (Stream, error) {
	if d.Spare {
		if err := d.Fits(s.Link()); err != nil {
			return nil, err
		}
	}
	return s.Open(ctx)
}

// frame is the dial frame, with the time that ctx leaves.
func (d Dial) frame(ctx context.Context) frame {
	f := frame{kind: kindDial, network: d.Network, addr: d.Addr, meta: d.Meta}
	if deadline, ok := ctx.Deadline(); ok {
		f.timeout = max(time.Until(deadline), time.Millisecond)
	}
	return f
}

// answered is the error in an answer; nil if the dial has succeeded.
func (d Dial) answered(f frame) error {
	switch {
	case f.kind != kindAnswer:
		return fmt.Errorf("%w: kind %d in place of an answer", ErrFrame, f.kind)
	case f.code != 0:
		return &DialError{Addr: d.name(), Code: f.code, Text: f.text}
	default:
		return nil
	}
}

// failed ends st, whose dial has failed with err, and makes a DialError of err.
func (d Dial) failed(st Stream, err error) *DialError {
	if refusal, ok := errors.AsType[*DialError](err); ok {
		_ = st.Close() // the peer has ended its direction, so that an orderly end is enough
		return refusal
	}
	abortQuietly(st)
	return NewDialError(d.name(), err)
}

// errNoAnswer is the end of a stream before its answer.
var errNoAnswer = fmt.Errorf("%w: stream ended before the answer", Lost)

// within calls f, which uses st, within the bounds of ctx. On error st is aborted.
func within(ctx context.Context, st Stream, f func() error) error {
	stop := context.AfterFunc(ctx, func() { abortQuietly(st) })
	err := f()
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		abortQuietly(st)
	}
	return err
}

// abortQuietly aborts a stream whose failure is reported already.
func abortQuietly(s net.Conn) { _ = Abort(s) }

// A Request is a stream that the peer has opened, and its target. Exactly one of Accept and
// Reject must be called.
type Request struct {
	Network string
	Addr    string
	// Timeout is how long the opener will wait; zero means that it is unknown.
	Timeout time.Duration
	Meta    Meta

	stream Stream
}

// ReadRequest reads the dial frame of a stream that was just accepted. On error the stream is
// aborted.
func ReadRequest(s Stream) (*Request, error) {
	var f frame
	err := s.SetReadDeadline(time.Now().Add(requestTimeout))
	if err == nil {
		f, err = readFrame(s)
	}
	if err == nil {
		err = s.SetReadDeadline(time.Time{})
	}
	switch {
	case err == nil && f.kind == kindDial:
		return &Request{Network: f.network, Addr: f.addr, Timeout: f.timeout, Meta: f.meta, stream: s}, nil
	case err == nil:
		abortQuietly(s)
		err = fmt.Errorf("%w: kind %d in place of a dial", ErrFrame, f.kind)
	case errors.Is(err, ErrFrame):
		_ = (&Request{stream: s}).Reject(Invalid, err.Error()) // err is what is reported
	default:
		abortQuietly(s)
	}
	return nil, fmt.Errorf("read request: %w", err)
}

// RemoteAddr is the remote address of the session.
func (r *Request) RemoteAddr() net.Addr { return r.stream.RemoteAddr() }

// Accept tells the opener that the stream is connected to its target. The caller owns the
// stream.
func (r *Request) Accept() (Stream, error) {
	if err := writeFrame(r.stream, frame{kind: kindAnswer}); err != nil {
		abortQuietly(r.stream)
		return nil, fmt.Errorf("accept %s: %w", r.Addr, err)
	}
	return r.stream, nil
}

// Reject tells the opener the reason and ends the stream. Text is for people and is cut to
// 1024 bytes.
func (r *Request) Reject(code Code, text string) error {
	if err := writeFrame(r.stream, frame{kind: kindAnswer, code: cmp.Or(code, Internal), text: clip(text)}); err != nil {
		abortQuietly(r.stream)
		return fmt.Errorf("reject %s: %w", r.Addr, err)
	}
	return r.stream.Close()
}

// Context bounds the answering end's work on r by Timeout and by DefaultDialTimeout.
func (r *Request) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(cmp.Or(r.Timeout, DefaultDialTimeout), DefaultDialTimeout))
}

// Answer dials the target of r and splices the two. The dial's context is done when the
// opener resets the stream, if that is a Resetter. An error of the dial was sent to the
// opener. n counts the bytes from and to the opener.
func Answer(ctx context.Context, r *Request, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (n Counts, err error) {
	dctx, cancel := r.Context(ctx)
	// Otherwise a dial to a target that does not answer would use a socket, and a place among
	// the session's streams, until its timeout.
	stop := onReset(r.stream, func(error) { cancel() })
	target, err := dial(dctx, r.Network, r.Addr)
	stop()
	cancel()
	if err != nil {
		failed := NewDialError(r.Addr, err)
		return Counts{}, errors.Join(failed, r.Reject(failed.Code, failed.Text)) // the opener knows the address
	}
	st, err := r.Accept()
	if err != nil {
		_ = target.Close()
		return Counts{}, err
	}
	return Splice(ctx, st, target)
}

// A streamHandler is a Session with callbacks. OnStream makes f be called with each stream
// that the peer opens; after a nil f streams wait for Accept again. f owns the stream and
// must return at once.
type streamHandler interface {
	OnStream(f func(Stream))
}

// StartServing accepts the streams of s until it ends or ctx is done, and does not wait for
// that. For each stream it reads the request and calls f, in a goroutine. f's context is the
// session's: ctx only ends the accepting, which takes no goroutine if the session has
// callbacks. wait must be called once ctx is done or the session has ended. It returns once
// every f has returned. Its error is nil unless accepting has failed; then the session is
// closed.
func StartServing(ctx context.Context, s Session, f func(context.Context, *Request)) (wait func() error) {
	var (
		wg  sync.WaitGroup
		err error
	)
	serve := func(st Stream) {
		wg.Go(func() {
			if r, rerr := ReadRequest(st); rerr == nil { // else ReadRequest has ended the stream
				f(s.Context(), r)
			}
		})
	}
	c, ok := s.(streamHandler)
	if ok {
		c.OnStream(serve)
	} else {
		wg.Go(func() { err = acceptAll(ctx, s, serve) })
	}
	return func() error {
		if ok {
			c.OnStream(nil)
		}
		wg.Wait()
		return err
	}
}

// acceptAll calls serve with each stream that the peer opens.
func acceptAll(ctx context.Context, s Session, serve func(Stream)) error {
	for {
		st, err := s.Accept(ctx)
		switch {
		case err == nil:
			serve(st)
		case ctx.Err() != nil || CodeOf(err).Away() || errors.Is(err, syscall.ECONNRESET):
			return nil // the last is wrapped by a session that ended for another reason
		default:
			_ = s.Dismiss(&Goodbye{Code: Internal, Text: err.Error()}) // it cannot be used any more
			return fmt.Errorf("accept stream: %w", err)
		}
	}
}

// An Addr is an address inside a tunnel, such as node-1:10250.
type Addr string

// Network is "hawser".
func (Addr) Network() string { return "hawser" }

func (a Addr) String() string { return string(a) }
