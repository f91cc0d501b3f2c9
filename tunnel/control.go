// Control: hello and welcome, and the control stream.

package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pingInterval is the time between two pings, which measure the round trip. Sessions
	// that measure it themselves are pinged every resumerInterval.
	pingInterval    = 10 * time.Second
	resumerInterval = time.Hour
	// pingTimeout and resumerTimeout bound a write.
	pingTimeout    = 30 * time.Second
	resumerTimeout = 150 * time.Minute

	// hangUpTime is how long HangUp waits for the peer to close the session first, so that
	// the reason reaches it.
	hangUpTime = time.Second
)

// A Goodbye is the peer's reason for ending a session, for refusing one, or for refusing to
// resume one. An agent that is refused receives one on every transport: Revoked or Denied if
// it is not admitted, Replaced if another session is preferred, Busy if it is to try again
// later.
type Goodbye struct {
	Code Code
	// Text says more, for people. The first 1024 bytes of it are sent.
	Text string
	// Retry is how long to wait before the next attempt; zero means that the peer did not
	// say.
	Retry time.Duration
}

// GoodbyeOf is the Goodbye for err.
func GoodbyeOf(err error) *Goodbye {
	retry, _ := RetryAfter(err)
	return &Goodbye{Code: CodeOf(err), Text: err.Error(), Retry: retry}
}

// GoodbyeBy is the Goodbye with that ErrorCode and text.
func GoodbyeBy(code uint64, text string) *Goodbye {
	retry := time.Duration(min(code>>8, uint64(maxRetryAfter/time.Millisecond))) * time.Millisecond //nolint:gosec // an hour
	return &Goodbye{Code: Code(code & 0xff), Text: text, Retry: retry}                              //nolint:gosec // as it says
}

// ErrorCode is the Goodbye without its text as an application error code of QUIC (RFC
// 9000, 20.2): Code in the low eight bits, above them Retry in milliseconds.
func (g *Goodbye) ErrorCode() uint64 {
	return uint64(millis(min(g.Retry, maxRetryAfter)))<<8 | uint64(g.Code)
}

// Error is the peer's text, or the code's.
func (g *Goodbye) Error() string {
	text := "peer hung up: " + cmp.Or(g.Text, g.Code.String())
	if g.Retry > 0 {
		text += " (retry after " + g.Retry.String() + ")"
	}
	return text
}

// RetryAfter is Retry.
func (g *Goodbye) RetryAfter() time.Duration { return g.Retry }

// Unwrap gives the code.
func (g *Goodbye) Unwrap() error { return g.Code }

// A Control is one end of a session's control stream. All methods may be called
// concurrently.
type Control struct {
	session  Session
	stream   Stream
	welcome  Welcome
	draining chan struct{}
	answered chan struct{}
	rtt      atomic.Int64  // nanoseconds; 0 before the first pong
	writing  chan struct{} // a semaphore of one, for writes to stream

	drainingOnce, answeredOnce sync.Once // draining and answered are closed once

	// Owned by Run.
	number uint64    // of the latest ping
	sent   time.Time // when that was
}

func newControl(s Session, st Stream, w Welcome) *Control {
	return &Control{
		session: s, stream: st, welcome: w,
		draining: make(chan struct{}), answered: make(chan struct{}), writing: make(chan struct{}, 1),
	}
}

// RTT is the latest round trip, measured by the session or else by pings; zero before the
// first.
func (c *Control) RTT() time.Duration {
	if rtt := c.session.Link().RTT; rtt > 0 {
		return rtt
	}
	return time.Duration(c.rtt.Load())
}

// Draining is closed once the peer has sent drain.
func (c *Control) Draining() <-chan struct{} { return c.draining }

// Answered is closed once the peer has sent a ping or a pong. At the accepting end this proves
// that the peer has read the welcome.
func (c *Control) Answered() <-chan struct{} { return c.answered }

// Drain tells the peer that this end is about to stop, and to open no more streams here. A peer
// that grants no window may block it until ctx is done.
func (c *Control) Drain(ctx context.Context, code Code, text string) error {
	timeout := c.writeTimeout()
	if by, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(by))
	}
	if err := c.write(ctx, frame{kind: kindDrain, code: code, text: clip(text)}, timeout); err != nil {
		return fmt.Errorf("announce drain: %w", err)
	}
	return nil
}

// HangUp sends the peer the reason, gives it a second to close the session first, and closes
// the session.
func (c *Control) HangUp(why *Goodbye) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTime)
	defer cancel()
	return c.Part(ctx, why)
}

// Part is HangUp that gives the peer until ctx is done, so that it can read the data that is
// still being sent to it.
func (c *Control) Part(ctx context.Context, why *Goodbye) error {
	if c.write(ctx, frame{kind: kindGoodbye, code: why.Code, retry: why.Retry, text: clip(why.Text)}, hangUpTime) == nil {
		select {
		case <-c.session.Context().Done():
		case <-ctx.Done():
		}
	}
	return c.session.Dismiss(why)
}

// writeTimeout bounds a write. A parked session takes nothing.
func (c *Control) writeTimeout() time.Duration { return c.welcome.timeout + c.session.Link().Window }

// write writes f. While another write is blocked it waits until ctx is done: this one would be
// blocked, too. The timeout bounds its own.
func (c *Control) write(ctx context.Context, f frame, timeout time.Duration) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := c.stream.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	return writeFrame(c.stream, f)
}

// Run answers pings and sends its own, until ctx is done: then it returns nil. Otherwise it
// returns why the session has ended: a *Goodbye if the peer has sent one, an error wrapping
// Dead if the peer fell silent, an error wrapping Lost if the session broke. It does not
// close the session. rtt, unless nil, is called with each round trip.
//
// The goroutine of an idle session waits here. Its stack needs 4 KiB if all its functions use
// less than 1,248 bytes, else 8 KiB, so frames are in other functions.
func (c *Control) Run(ctx context.Context, rtt func(time.Duration)) error {
	defer context.AfterFunc(ctx, func() { _ = c.stream.SetReadDeadline(time.Unix(1, 0)) })() // which has passed
	in := frameReader{r: c.stream}
	for {
		if err := c.ping(ctx); err != nil {
			return c.ended(ctx, err)
		}
		err := in.fill()
		if err == nil {
			err = c.take(ctx, &in, rtt)
		} else if ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		if err != nil {
			return c.ended(ctx, err)
		}
	}
}

// ping pings if that is due, and sets the read deadline to the next time.
func (c *Control) ping(ctx context.Context) error {
	if now := time.Now(); now.Sub(c.sent) >= c.welcome.interval {
		c.number, c.sent = c.number+1, now
		if err := c.write(ctx, frame{kind: kindPing, number: c.number}, c.writeTimeout()); err != nil {
			return err
		}
	}
	if err := c.stream.SetReadDeadline(c.sent.Add(c.welcome.interval)); err != nil {
		return err
	}
	// That may have replaced the deadline which the end of ctx has set.
	return ctx.Err()
}

// take handles the frame that in has read.
func (c *Control) take(ctx context.Context, in *frameReader, report func(time.Duration)) error {
	f, err := in.decode()
	if err != nil {
		return err
	}
	switch f.kind {
	case kindPing, kindPong:
		c.answeredOnce.Do(func() { close(c.answered) })
		if f.kind == kindPing {
			return c.write(ctx, frame{kind: kindPong, number: f.number}, c.writeTimeout())
		}
		if f.number == c.number { // a pong of an older ping says nothing
			rtt := time.Since(c.sent)
			c.rtt.Store(int64(rtt))
			if report != nil {
				report(rtt)
			}
		}
		return nil
	case kindGoodbye:
		return f.goodbye()
	case kindDrain:
		c.drainingOnce.Do(func() { close(c.draining) })
		return nil
	default:
		return fmt.Errorf("%w: kind %d on the control stream", ErrFrame, f.kind)
	}
}

// ended is the error that Run returns for err.
func (c *Control) ended(ctx context.Context, err error) error {
	var bye *Goodbye
	switch {
	case errors.As(err, &bye):
		return bye
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, Dead), errors.Is(err, ErrFrame):
		return err
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w: peer ended the control stream", Lost)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: nothing could be written for %v", Dead, c.welcome.timeout)
	default:
		return fmt.Errorf("%w: %w", Lost, err)
	}
}

// A Hello is the dialing end's first frame.
type Hello struct {
	// Node is the agent's node name. The server uses the name in the certificate, and
	// refuses the session if they differ.
	Node string
	// Instance is a random number for each agent process. Two live instances with one
	// identity mean that a machine was cloned.
	Instance uint64
	// Sequence counts the sessions of an instance, from 1.
	Sequence uint64
	// Meta says more, such as the agent's version.
	Meta Meta
}

// A Welcome is the accepting end's answer if it admits the agent.
type Welcome struct {
	// Session names the session in both ends' logs.
	Session uint64
	Meta    Meta

	// Those of timesOf. They are sent for peers of older versions, which ping by the
	// interval, and give up a session that is silent for the timeout.
	interval, timeout time.Duration
}

// timesOf are the times of the control stream of s: both ends find the same ones.
func timesOf(s Session) (interval, timeout time.Duration) {
	if s.Link().Window > 0 {
		return resumerInterval, resumerTimeout
	}
	return pingInterval, pingTimeout
}

// Greet opens the control stream of a session that this end has dialed, and waits for the
// welcome. It fails with a *Goodbye if the server refuses. ctx bounds only Greet.
func Greet(ctx context.Context, s Session, h Hello) (*Control, Welcome, error) {
	st, err := s.Open(ctx)
	if err != nil {
		return nil, Welcome{}, fmt.Errorf("open control stream: %w", goodbyeIn(err))
	}
	f, err := exchange(ctx, st, &frame{kind: kindHello, hello: h})
	if err != nil {
		return nil, Welcome{}, fmt.Errorf("greet server: %w", goodbyeIn(err))
	}
	switch f.kind {
	case kindWelcome:
		w := f.welcome
		w.interval, w.timeout = timesOf(s)
		return newControl(s, st, w), w, nil
	case kindGoodbye, kindDrain:
		err = f.goodbye()
	default:
		err = fmt.Errorf("greet server: %w: kind %d in place of a welcome", ErrFrame, f.kind)
	}
	abortQuietly(st)
	return nil, Welcome{}, err
}

// exchange writes out, unless that is nil, and reads a frame, within the bounds of ctx. On
// error the stream is aborted.
func exchange(ctx context.Context, st Stream, out *frame) (in frame, err error) {
	err = within(ctx, st, func() error {
		if out != nil {
			if err = writeFrame(st, *out); err != nil {
				return err
			}
		}
		if in, err = readFrame(st); errors.Is(err, io.EOF) {
			return errNoAnswer
		}
		return err
	})
	return in, err
}

// A Greeting is a Hello that has to be answered. Exactly one of Control and Refuse must be
// called.
type Greeting struct {
	Hello

	session Session
	stream  Stream
}

// Await accepts the control stream of a session that the peer has dialed, and reads the hello.
// ctx bounds the wait.
func Await(ctx context.Context, s Session) (*Greeting, error) {
	st, err := s.Accept(ctx)
	if err != nil {
		return nil, fmt.Errorf("accept control stream: %w", err)
	}
	f, err := exchange(ctx, st, nil)
	if err != nil {
		return nil, fmt.Errorf("await hello: %w", err)
	}
	if f.kind != kindHello {
		abortQuietly(st)
		return nil, fmt.Errorf("await hello: %w: kind %d in place of a hello", ErrFrame, f.kind)
	}
	return &Greeting{Hello: f.hello, session: s, stream: st}, nil
}

// Control is this end of the control stream. Its Welcome, which sends w, or HangUp must be
// called.
func (g *Greeting) Control(w Welcome) *Control {
	w.interval, w.timeout = timesOf(g.session)
	return newControl(g.session, g.stream, w)
}

// Welcome sends the welcome. The accepting end calls it once, before Run. A peer that grants no
// window may block it until ctx is done.
func (c *Control) Welcome(ctx context.Context) error {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	err := within(ctx, c.stream, func() error { return writeFrame(c.stream, frame{kind: kindWelcome, welcome: c.welcome}) })
	if err != nil {
		return fmt.Errorf("welcome agent: %w", err)
	}
	return nil
}

// Refuse sends the reason and closes the session.
func (g *Greeting) Refuse(why *Goodbye) error {
	return g.Control(Welcome{}).HangUp(why)
}
