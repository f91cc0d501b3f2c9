// Early data: a dial whose answer nobody waits for, so that the first bytes to
// the target ride with it.

package tunnel

import (
	"context"
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
		err = within(ctx, st, func() error { return writeFrame(st, d.frame(ctx)) })
	}
	if err != nil {
		err = NewDialError(d.name(), blame(ctx, err))
		answered(err)
		return nil, err
	}
	by, _ := ctx.Deadline() // there is one: see above
	return &early{Stream: st, dial: d, answered: answered, by: by, answer: frameReader{r: st}}, nil
}

// An early stream reads its answer when it is first read from.
type early struct {
	Stream
	dial     Dial
	by       time.Time // when the answer has to be there
	once     sync.Once
	answered func(error) // called through tell

	reading sync.Mutex // guards the following
	answer  frameReader
	settled bool  // the answer, or that there is none, is known,
	failure error // and what it says; nil if the far side is connected
}

func (e *early) Read(p []byte) (int, error) {
	if err := e.await(); err != nil {
		return 0, err
	}
	return e.Stream.Read(p)
}

// InnerReader implements Wrapper.
func (e *early) InnerReader() Inner {
	if e.await() != nil {
		return Inner{} // Read says why
	}
	return Inner{Conn: e.Stream}
}

// InnerWriter implements Wrapper.
func (e *early) InnerWriter() Inner { return Inner{Conn: e.Stream, Failed: e.because} }

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
	e.reading.Lock()
	defer e.reading.Unlock()
	if e.settled {
		return e.failure
	}
	late := time.AfterFunc(max(time.Until(e.by), lateAnswer), func() { abortQuietly(e.Stream) })
	f, err := e.answer.next()
	switch stopped := late.Stop(); {
	case !stopped:
		err = fmt.Errorf("no answer: %w", Timeout)
	case err == nil:
		err = e.dial.answered(f)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errHungUp
	}
	if err != nil {
		e.failure = e.dial.failed(e.Stream, err)
	}
	e.settled = true
	e.tell(e.failure)
	return e.failure
}
