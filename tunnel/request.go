// Dials over a session: Connect asks, ReadRequest, Request and Answer reply.

package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// DefaultDialTimeout bounds a dial whose context has no deadline, and the
	// answering end's work on a request that names no time.
	DefaultDialTimeout = 30 * time.Second
	// requestTimeout is how long an opened stream may take to say what it
	// wants.
	requestTimeout = 30 * time.Second
)

// A Dial says where a stream should lead.
type Dial struct {
	Network string // "tcp"
	Addr    string
	// Name is what errors call the address; empty means Addr.
	Name string
	Meta Meta
}

func (d Dial) name() string { return cmp.Or(d.Name, d.Addr) }

// Connect opens a stream on s and has the far side join it to addr. Errors are
// *DialError. The caller owns the stream.
func Connect(ctx context.Context, s Session, network, addr string) (Stream, error) {
	return Dial{Network: network, Addr: addr}.Connect(ctx, s)
}

// Connect is the function of that name with metadata.
func (d Dial) Connect(ctx context.Context, s Session) (Stream, error) {
	if by, ok := ctx.Deadline(); !ok || time.Until(by) > DefaultDialTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultDialTimeout)
		defer cancel()
	}
	st, err := s.Open(ctx)
	if err != nil {
		return nil, NewDialError(d.name(), blame(ctx, err))
	}
	f, err := exchange(ctx, st, d.frame(ctx))
	if err == nil {
		err = d.answered(f)
	}
	if err != nil {
		return nil, d.failed(st, err)
	}
	return st, nil
}

// frame asks for the dial, within the time that ctx leaves.
func (d Dial) frame(ctx context.Context) *dialFrame {
	f := &dialFrame{network: d.Network, addr: d.Addr, meta: d.Meta}
	if deadline, ok := ctx.Deadline(); ok {
		f.timeout = max(time.Until(deadline), time.Millisecond)
	}
	return f
}

// answered is what f says in answer to the dial: why not, or nil.
func (d Dial) answered(f frame) error {
	a, ok := f.(*answerFrame)
	switch {
	case !ok:
		return fmt.Errorf("%w: kind %d in place of an answer", ErrFrame, f.kind())
	case a.code != 0:
		return &DialError{Addr: d.name(), Code: a.code, Text: a.text}
	default:
		return nil
	}
}

// failed ends st, whose dial has failed with err, and makes a DialError of that.
func (d Dial) failed(st Stream, err error) *DialError {
	var refusal *DialError
	if errors.As(err, &refusal) {
		_ = st.Close() // the far side has said its last word, and an orderly end is enough
		return refusal
	}
	abortQuietly(st)
	return NewDialError(d.name(), err)
}

// errHungUp is the end of a stream that was to be answered.
var errHungUp = fmt.Errorf("%w: stream ended before the answer", Lost)

// within calls f, which uses st, within the bounds of ctx. If that fails st is gone.
func within(ctx context.Context, st Stream, f func() error) error {
	stop := context.AfterFunc(ctx, func() { abortQuietly(st) })
	err := f()
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		abortQuietly(st)
		return blame(ctx, err)
	}
	return nil
}

// blame is ctx's cause if ctx is why err came about. The stream's deadline is
// ctx's and may be the first to be noticed.
func blame(ctx context.Context, err error) error {
	deadline, ok := ctx.Deadline()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case ok && errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(deadline):
		return context.DeadlineExceeded
	default:
		return err
	}
}

// abortQuietly gives up a stream whose failure is being reported already.
func abortQuietly(s net.Conn) { _ = Abort(s) }

// A Request is a stream that the peer opened and where it wants to go. Exactly
// one of Accept and Reject must be called.
type Request struct {
	Network string
	Addr    string
	// Timeout is how long the opener will wait; zero means that it did not say.
	Timeout time.Duration
	Meta    Meta

	stream Stream
}

// ReadRequest reads the dial frame of a stream that was just accepted. On error
// the stream is gone.
func ReadRequest(s Stream) (*Request, error) {
	if err := s.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		abortQuietly(s)
		return nil, fmt.Errorf("read request: %w", err)
	}
	f, err := readFrame(s)
	if err == nil {
		err = s.SetReadDeadline(time.Time{})
	}
	if err != nil {
		if errors.Is(err, ErrFrame) {
			r := Request{stream: s}
			_ = r.Reject(Invalid, err.Error()) // the frame's error is the news
		} else {
			abortQuietly(s)
		}
		return nil, fmt.Errorf("read request: %w", err)
	}
	d, ok := f.(*dialFrame)
	if !ok {
		abortQuietly(s)
		return nil, fmt.Errorf("read request: %w: kind %d in place of a dial", ErrFrame, f.kind())
	}
	return &Request{Network: d.network, Addr: d.addr, Timeout: d.timeout, Meta: d.meta, stream: s}, nil
}

// RemoteAddr is where the session that carries the request comes from.
func (r *Request) RemoteAddr() net.Addr { return r.stream.RemoteAddr() }

// Accept tells the opener that the stream leads where it wanted. The caller
// owns the stream.
func (r *Request) Accept() (Stream, error) {
	if err := writeFrame(r.stream, &answerFrame{}); err != nil {
		abortQuietly(r.stream)
		return nil, fmt.Errorf("accept %s: %w", r.Addr, err)
	}
	return r.stream, nil
}

// Reject tells the opener why not and ends the stream. Text is for people and
// is cut to 1024 bytes.
func (r *Request) Reject(code Code, text string) error {
	if err := writeFrame(r.stream, &answerFrame{code: cmp.Or(code, Internal), text: clip(text)}); err != nil {
		abortQuietly(r.stream)
		return fmt.Errorf("reject %s: %w", r.Addr, err)
	}
	return r.stream.Close()
}

// Context bounds the answering end's work on r by the time that the opener will
// wait, and by DefaultDialTimeout.
func (r *Request) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(cmp.Or(r.Timeout, DefaultDialTimeout), DefaultDialTimeout))
}

// Answer dials where r wants to go and joins the two until both directions have
// ended. The dial's context is done when the opener has given up, if the stream is a
// Resetter. The error, if any, has been told to the opener when it concerns the dial; n
// counts the bytes from and to the opener.
func Answer(ctx context.Context, r *Request, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (n Counts, err error) {
	dctx, cancel := r.Context(ctx)
	// A target that does not answer would otherwise keep a socket, and a place among the
	// session's streams, for as long as the opener had once been ready to wait.
	stop := onReset(r.stream, func(error) { cancel() })
	target, err := dial(dctx, r.Network, r.Addr)
	stop()
	cancel()
	if err != nil {
		failed := NewDialError(r.Addr, err)
		if rerr := r.Reject(failed.Code, failed.Text); rerr != nil { // the opener knows the address
			return Counts{}, errors.Join(failed, rerr)
		}
		return Counts{}, failed
	}
	st, err := r.Accept()
	if err != nil {
		_ = target.Close()
		return Counts{}, err
	}
	return Splice(ctx, st, target)
}

// A streamCaller is a Session that hands out what the peer opens without being asked.
// OnStream has f called with each stream from now on, and nobody called if f is nil; what
// comes then waits for Accept. f owns the stream and must return at once.
type streamCaller interface {
	OnStream(f func(Stream))
}

// Serve accepts the streams of s until it ends or ctx is done, reads what each
// wants and calls f, in a goroutine of the stream's own. It returns once every f
// has; the error is nil unless accepting failed on a live session, which is closed
// then. f's context is the session's: ctx only stops the accepting.
func Serve(ctx context.Context, s Session, f func(context.Context, *Request)) error {
	wait := StartServing(ctx, s, f)
	select {
	case <-ctx.Done():
	case <-s.Context().Done():
	}
	return wait()
}

// StartServing is Serve that does not wait, and takes no goroutine where the session
// calls for each stream. wait does the waiting, once ctx is done or the session is over;
// it must be called.
func StartServing(ctx context.Context, s Session, f func(context.Context, *Request)) (wait func() error) {
	var (
		wg  sync.WaitGroup
		err error
	)
	serve := func(st Stream) {
		wg.Go(func() {
			if r, rerr := ReadRequest(st); rerr == nil { // else the opener has been told, or is gone
				f(s.Context(), r)
			}
		})
	}
	c, ok := s.(streamCaller)
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
		case ctx.Err() != nil || errors.Is(err, ErrSessionClosed) || errors.Is(err, Lost) || errors.Is(err, syscall.ECONNRESET):
			return nil // the last is what a session ends with whose window is over
		default:
			_ = s.Dismiss(&Goodbye{Code: Internal, Text: err.Error()}) // of no more use
			return fmt.Errorf("accept stream: %w", err)
		}
	}
}

// An Addr is an address that only has meaning on a tunnel, such as
// node-1:10250.
type Addr string

// Network is "hawser".
func (Addr) Network() string { return "hawser" }

func (a Addr) String() string { return string(a) }
