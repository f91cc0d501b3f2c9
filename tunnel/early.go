// Early data: a dial that does not wait for its answer, so that the first bytes to the target
// are sent with it.

package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// minAnswerTime is how long a read waits for the answer at least, however late the read is.
const minAnswerTime = time.Second

// Start is Connect without the wait for the answer: what is written next follows the dial at
// once, and reaches the target once the other end is connected to it. If the dial fails,
// Read, Write and CloseWrite return the *DialError.
//
// ctx bounds the opening of the stream; its deadline, or DefaultDialTimeout, also bounds the
// wait for the answer. answered, unless nil, is called once: with nil or the error, or with
// context.Canceled if the stream is closed before the answer is known. The caller owns the
// stream.
func (d Dial) Start(ctx context.Context, s Session, answered func(error)) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultDialTimeout)
	defer cancel()
	if answered == nil {
		answered = func(error) {}
	}
	st, err := d.open(ctx, s)
	if err == nil {
		err = within(ctx, st, func() error { return writeFrame(st, d.frame(ctx)) })
	}
	if err != nil {
		err = NewDialError(d.name(), cmp.Or(context.Cause(ctx), err))
		answered(err)
		return nil, err
	}
	by, _ := ctx.Deadline() // there is one: see above
	return &early{Stream: st, dial: d, answered: answered, answerBy: by, answer: frameReader{r: st}}, nil
}

// An early stream reads its answer at the first Read.
type early struct {
	Stream
	dial     Dial
	answerBy time.Time // when the answer is due
	once     sync.Once
	answered func(error) // called through report

	reading sync.Mutex // guards the following
	answer  frameReader
	settled bool  // the answer, or its absence, is known,
	failure error // and why the dial failed; nil if it has succeeded
}

func (e *early) Read(p []byte) (int, error) {
	if err := e.awaitAnswer(); err != nil {
		return 0, err
	}
	return e.Stream.Read(p)
}

func (e *early) Write(p []byte) (int, error) {
	n, err := e.Stream.Write(p)
	return n, e.refusalOr(err)
}

// CloseWrite ends our direction.
func (e *early) CloseWrite() error { return e.refusalOr(e.Stream.CloseWrite()) }

// Close ends both directions.
func (e *early) Close() error {
	e.report(context.Canceled)
	return e.Stream.Close()
}

// Abort gives the stream up.
func (e *early) Abort() error {
	e.report(context.Canceled)
	return Abort(e.Stream)
}

// OnReset implements Resetter.
func (e *early) OnReset(f func(error)) (stop func()) { return onReset(e.Stream, f) }

func (e *early) report(err error) { e.once.Do(func() { e.answered(err) }) }

// refusalOr is the peer's refusal if there is one, else err, with which writing has failed.
func (e *early) refusalOr(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if refusal, ok := errors.AsType[*DialError](e.awaitAnswer()); ok && refusal.cause == nil {
		return refusal
	}
	return err
}

// awaitAnswer waits until the answer is known, and returns nil if the dial has succeeded. The
// caller's read deadline ends the wait, and a later call waits again.
func (e *early) awaitAnswer() error {
	e.reading.Lock()
	defer e.reading.Unlock()
	if e.settled {
		return e.failure
	}
	late := time.AfterFunc(max(time.Until(e.answerBy), minAnswerTime), func() { abortQuietly(e.Stream) })
	f, err := e.answer.next()
	switch stopped := late.Stop(); {
	case !stopped:
		err = fmt.Errorf("no answer: %w", Timeout)
	case err == nil:
		err = e.dial.answered(f)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errNoAnswer
	}
	if err != nil {
		e.failure = e.dial.failed(e.Stream, err)
	}
	e.settled = true
	e.report(e.failure)
	return e.failure
}
