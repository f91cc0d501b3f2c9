// Early data: a dial whose answer nobody waits for, so that the first bytes to
// the target ride with it.

package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// lateAnswer is what a read waits for the answer at least, however late the read
// comes.
const lateAnswer = time.Second

// Start is Connect without the wait for the answer: what is written next follows
// the dial at once, and reaches the target if and when the far side is connected
// to it. If the far side is not, the *DialError is what Read, Write and
// CloseWrite return. Whoever needs to know before the first byte of an answer
// uses Connect.
//
// ctx bounds the opening of the stream; its deadline, or DefaultDialTimeout, also
// bounds the wait for the answer. answered, unless nil, is called once: with nil,
// or with what went wrong; context.Canceled if the stream is closed before
// anybody knows. The caller owns the stream.
func (d Dial) Start(ctx context.Context, s Session, answered func(error)) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultDialTimeout)
	defer cancel()
	if answered == nil {
		answered = func(error) {}
	}
	st, err := s.Open(ctx)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { abortQuietly(st) })
		err = d.send(ctx, st)
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			err = st.SetDeadline(time.Time{})
		}
		if err != nil {
			abortQuietly(st)
		}
	}
	if err != nil {
		err = d.failed(ctx, err)
		answered(err)
		return nil, err
	}
	by, _ := ctx.Deadline() // there is one: see above
	return &early{Stream: st, dial: d, answered: answered, by: by, settled: make(chan struct{})}, nil
}

// An early stream reads its answer when it is first read from.
type early struct {
	Stream
	dial     Dial
	once     sync.Once
	answered func(error)   // called through tell
	settled  chan struct{} // closed once the answer, or that there is none, is known
	failure  error         // set before that; nil if the far side is connected

	reading sync.Mutex // guards the following
	in      []byte     // the part of the answer that has been read

	mu       sync.Mutex // guards the following
	by       time.Time  // when the answer has to be there
	deadline time.Time  // the caller's, for reading
}

func (e *early) Read(p []byte) (int, error) {
	if err := e.await(); err != nil {
		return 0, err
	}
	return e.Stream.Read(p)
}

// ReadBuffer is for Splice.
func (e *early) ReadBuffer(b *Buffer) (int, error) {
	if err := e.await(); err != nil {
		return 0, err
	}
	return ReadBuffer(e.Stream, b)
}

// ReadThrough and WriteThrough implement Wrapper.
func (e *early) ReadThrough() Inner {
	if e.await() != nil {
		return Inner{} // Read says why
	}
	return Inner{Conn: e.Stream}
}

// WriteThrough is ReadThrough for writing, which waits for nothing.
func (e *early) WriteThrough() Inner { return Inner{Conn: e.Stream, Failed: e.because} }

func (e *early) Write(p []byte) (int, error) {
	n, err := e.Stream.Write(p)
	return n, e.because(err)
}

// CloseWrite ends our direction.
func (e *early) CloseWrite() error { return e.because(e.Stream.CloseWrite()) }

// Close ends both directions.
func (e *early) Close() error {
	e.tell(context.Canceled)
	return e.Stream.Close()
}

// Abort gives the stream up.
func (e *early) Abort() error {
	e.tell(context.Canceled)
	return Abort(e.Stream)
}

func (e *early) tell(err error) { e.once.Do(func() { e.answered(err) }) }

// because is why writing failed with err: the far side's refusal if there is one
// to be read.
func (e *early) because(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	var refusal *DialError
	if errors.As(e.await(), &refusal) && refusal.cause == nil {
		return refusal
	}
	return err
}

// await returns once the answer is known: nil if the far side is connected. The
// caller's deadline ends a wait and decides nothing.
func (e *early) await() error {
	select {
	case <-e.settled:
		return e.failure
	default:
	}
	e.reading.Lock()
	defer e.reading.Unlock()
	select {
	case <-e.settled:
		return e.failure
	default:
	}
	e.extend()
	for {
		want, err := e.missing()
		if err == nil && want == 0 {
			return e.settle(e.decode())
		}
		n := 0
		if err == nil {
			e.in = append(e.in, make([]byte, want)...)
			n, err = e.Stream.Read(e.in[len(e.in)-want:])
			e.in = e.in[:len(e.in)-want+n]
		}
		switch {
		case err == nil || n > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			if callers, late := e.expired(); callers {
				return err
			} else if late {
				return e.settle(fmt.Errorf("no answer: %w", Timeout))
			}
		case errors.Is(err, io.EOF):
			return e.settle(fmt.Errorf("stream ended before the answer: %w", Lost))
		default:
			return e.settle(err)
		}
	}
}

// missing is how many bytes to read next; zero if the answer is complete.
func (e *early) missing() (int, error) {
	if len(e.in) < headerSize {
		return headerSize - len(e.in), nil
	}
	if _, _, err := parseHeader(e.in); err != nil {
		return 0, err
	}
	return headerSize + int(binary.BigEndian.Uint16(e.in[2:])) - len(e.in), nil
}

// decode makes of a complete answer nil or what is wrong.
func (e *early) decode() error {
	f, _, err := decodeFrame(e.in)
	if err != nil {
		return err
	}
	a, ok := f.(*answerFrame)
	switch {
	case !ok:
		return fmt.Errorf("%w: kind %d in place of an answer", ErrFrame, f.kind())
	case a.code != 0:
		return &DialError{Addr: e.dial.name(), Code: a.code, Text: a.text}
	default:
		return nil
	}
}

// settle notes what has become of the dial and returns that.
func (e *early) settle(err error) error {
	var refusal *DialError
	switch {
	case errors.As(err, &refusal):
		_ = e.Stream.Close() // the far side has said its last word
	case err != nil:
		abortQuietly(e.Stream)
		err = NewDialError(e.dial.name(), err)
	}
	e.mu.Lock()
	e.failure, e.in = err, nil
	close(e.settled)
	if err == nil {
		if err = e.Stream.SetReadDeadline(e.deadline); err != nil {
			e.failure = err
		}
	}
	e.mu.Unlock()
	e.tell(e.failure)
	return e.failure
}

// extend gives the answer some time from now, however late that is, and sets the
// stream's deadline.
func (e *early) extend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if by := time.Now().Add(lateAnswer); by.After(e.by) {
		e.by = by
	}
	// A broken stream says so when it is read from.
	_ = e.Stream.SetReadDeadline(e.soonerLocked())
}

func (e *early) soonerLocked() time.Time {
	if !e.deadline.IsZero() && e.deadline.Before(e.by) {
		return e.deadline
	}
	return e.by
}

// expired says whose time is up: the caller's, or the answer's.
func (e *early) expired() (callers, late bool) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	callers = !e.deadline.IsZero() && !now.Before(e.deadline)
	return callers, !now.Before(e.by)
}

// SetReadDeadline sets the caller's deadline.
func (e *early) SetReadDeadline(t time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deadline = t
	select {
	case <-e.settled:
		return e.Stream.SetReadDeadline(t)
	default:
		return e.Stream.SetReadDeadline(e.soonerLocked())
	}
}

// SetDeadline sets both of the caller's deadlines.
func (e *early) SetDeadline(t time.Time) error {
	return errors.Join(e.SetReadDeadline(t), e.SetWriteDeadline(t))
}
