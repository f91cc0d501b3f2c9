// Control: the greeting, and the stream on which both ends say how they fare.

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
	// pingInterval is the time between two pings, which tell the round trip. By
	// resumerInterval sessions are pinged that tell it themselves.
	pingInterval    = 10 * time.Second
	resumerInterval = time.Hour
	// pingTimeout and resumerTimeout are how long what is written may wait to be taken. An
	// end of an older version takes its peer for dead that is silent for so long: whether
	// there still is a peer is for the session to know.
	pingTimeout    = 30 * time.Second
	resumerTimeout = 150 * time.Minute

	// partingTime is how long an end that hangs up waits for the other to do
	// the same, so that the reason gets across before the connection goes.
	partingTime = time.Second
)

// A Goodbye is the peer's reason for ending the session, for not starting one, or for
// not letting it go on on another connection. Whatever the transport, it is what an
// agent that is refused is told: Revoked or Denied if it is not admitted, Replaced if
// another one is preferred, Busy if it is to come back later.
type Goodbye struct {
	Code Code
	// Text says more, for people. The first 1024 bytes of it are sent.
	Text string
	// Retry is how long the peer asks to wait before the next attempt; zero means that
	// it does not say.
	Retry time.Duration
}

// GoodbyeOf is what a peer is told that is sent away because of err.
func GoodbyeOf(err error) *Goodbye {
	retry, _ := RetryAfter(err)
	return &Goodbye{Code: CodeOf(err), Text: err.Error(), Retry: retry}
}

// GoodbyeBy is what an application error code of a Goodbye's ErrorCode says.
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
// at the same time.
type Control struct {
	session  Session
	stream   Stream
	welcome  Welcome
	draining chan struct{}
	answered chan struct{}
	rtt      atomic.Int64  // nanoseconds; 0 before the first pong
	writing  chan struct{} // holds one token while somebody writes to stream

	drained, heard sync.Once // draining and answered are closed once

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

// RTT is the latest round trip, as the session itself tells it or else as it was
// on the control stream; zero before the first.
func (c *Control) RTT() time.Duration {
	if rtt := c.session.Link().RTT; rtt > 0 {
		return rtt
	}
	return time.Duration(c.rtt.Load())
}

// Draining is closed once the peer has said that it is about to leave.
func (c *Control) Draining() <-chan struct{} { return c.draining }

// Answered is closed once the peer has sent a ping or a pong. At the accepting end
// that proves that the peer has read the welcome.
func (c *Control) Answered() <-chan struct{} { return c.answered }

// Drain tells the peer that this end is about to leave: it should open nothing
// new here.
func (c *Control) Drain(code Code, text string) error {
	if err := c.write(&noteFrame{k: kindDrain, code: code, text: clip(text)}); err != nil {
		return fmt.Errorf("announce drain: %w", err)
	}
	return nil
}

// HangUp tells the peer why, gives it a second to hang up first, and closes the
// session.
func (c *Control) HangUp(why *Goodbye) error {
	ctx, cancel := context.WithTimeout(context.Background(), partingTime)
	defer cancel()
	return c.Part(ctx, why)
}

// Part is HangUp with patience: the peer has until ctx is done to hang up first,
// so that it can finish reading what is under way to it.
func (c *Control) Part(ctx context.Context, why *Goodbye) error {
	select {
	case c.writing <- struct{}{}:
		if c.put(&noteFrame{k: kindGoodbye, code: why.Code, retry: why.Retry, text: clip(why.Text)}, partingTime) == nil {
			select {
			case <-c.session.Context().Done():
			case <-ctx.Done():
			}
		}
		<-c.writing
	case <-ctx.Done(): // another write is stuck: this one would be too
	}
	return c.session.Dismiss(why)
}

func (c *Control) write(f frame) error {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	return c.put(f, c.welcome.timeout+c.session.Link().Window) // it may be parked, and full
}

// put writes f; the caller holds the token.
func (c *Control) put(f frame, timeout time.Duration) error {
	if err := c.stream.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	return writeFrame(c.stream, f)
}

// Run answers pings and sends its own, until ctx is done: then it returns nil. Otherwise
// it returns why the session is over: a *Goodbye if the peer said so, an error wrapping
// Dead if it fell silent, an error wrapping Lost if the session broke. It does not close
// the session. Each round trip is told to rtt, unless that is nil.
func (c *Control) Run(ctx context.Context, rtt func(time.Duration)) error {
	stop := context.AfterFunc(ctx, func() { _ = c.stream.SetReadDeadline(time.Unix(1, 0)) }) // which has passed
	defer stop()
	in := frameReader{r: c.stream}
	for {
		if err := c.ping(ctx); err != nil {
			return c.ended(ctx, err)
		}
		f, err := in.next()
		if err == nil {
			err = c.handle(f, rtt)
		} else if ctx.Err() == nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		if err != nil {
			return c.ended(ctx, err)
		}
	}
}

// ping pings if it is time to, and has a read wait until it is again.
func (c *Control) ping(ctx context.Context) error {
	if now := time.Now(); now.Sub(c.sent) >= c.welcome.interval {
		c.number, c.sent = c.number+1, now
		if err := c.write(&beatFrame{k: kindPing, number: c.number}); err != nil {
			return err
		}
	}
	if err := c.stream.SetReadDeadline(c.sent.Add(c.welcome.interval)); err != nil {
		return err
	}
	// The deadline just set may have wiped out the one that ctx's end set.
	return ctx.Err()
}

// handle does what a frame asks for.
func (c *Control) handle(f frame, report func(time.Duration)) error {
	switch f := f.(type) {
	case *beatFrame:
		c.heard.Do(func() { close(c.answered) })
		if f.k == kindPing {
			return c.write(&beatFrame{k: kindPong, number: f.number})
		}
		if f.number == c.number { // a pong of an older ping says nothing
			rtt := time.Since(c.sent)
			c.rtt.Store(int64(rtt))
			if report != nil {
				report(rtt)
			}
		}
		return nil
	case *noteFrame:
		if f.k == kindGoodbye {
			return f.goodbye()
		}
		c.drained.Do(func() { close(c.draining) })
		return nil
	default:
		return fmt.Errorf("%w: kind %d on the control stream", ErrFrame, f.kind())
	}
}

// ended puts the reason for Run's return in its final shape.
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

// A Hello is the dialing end's first word.
type Hello struct {
	// Node is the name that the agent believes to have. The server goes by the
	// certificate; if they differ, it says goodbye.
	Node string
	// Instance is random, one for each life of an agent process. Two live
	// instances with one identity are a cloned machine.
	Instance uint64
	// Sequence counts the sessions of an instance, from 1.
	Sequence uint64
	// Meta says more, such as the agent's version.
	Meta Meta
}

// A Welcome is the accepting end's consent.
type Welcome struct {
	// Session names the session in both ends' logs.
	Session uint64
	Meta    Meta

	interval, timeout time.Duration // see pingInterval and pingTimeout; for both ends
}

// bounded keeps the times of a peer's welcome within reason.
func (w Welcome) bounded() Welcome {
	w.interval = min(max(w.interval, 100*time.Millisecond), time.Hour)
	w.timeout = min(max(w.timeout, 2*w.interval), 24*time.Hour)
	return w
}

// Greet opens the control stream of a session that this end dialed. It fails
// with a *Goodbye if the server does not want the session. ctx bounds the
// greeting only.
func Greet(ctx context.Context, s Session, h Hello) (*Control, Welcome, error) {
	st, err := s.Open(ctx)
	if err != nil {
		return nil, Welcome{}, fmt.Errorf("open control stream: %w", told(err))
	}
	f, err := exchange(ctx, st, (*helloFrame)(&h))
	if err != nil {
		return nil, Welcome{}, fmt.Errorf("greet server: %w", told(err))
	}
	switch f := f.(type) {
	case *welcomeFrame:
		w := Welcome(*f).bounded()
		return newControl(s, st, w), w, nil
	case *noteFrame:
		abortQuietly(st)
		return nil, Welcome{}, f.goodbye()
	default:
		abortQuietly(st)
		return nil, Welcome{}, fmt.Errorf("greet server: %w: kind %d in place of a welcome", ErrFrame, f.kind())
	}
}

// exchange writes out, if there is something, and reads a frame, within the bounds of
// ctx. On error the stream is gone.
func exchange(ctx context.Context, st Stream, out frame) (in frame, err error) {
	err = within(ctx, st, func() error {
		if out != nil {
			if err = writeFrame(st, out); err != nil {
				return err
			}
		}
		if in, err = readFrame(st); errors.Is(err, io.EOF) {
			return errHungUp
		}
		return err
	})
	return in, err
}

// A Greeting is a Hello that waits for its answer. Exactly one of Control and
// Refuse must be called.
type Greeting struct {
	Hello

	session Session
	stream  Stream
}

// Await accepts the control stream of a session that this end did not dial and
// reads the hello. ctx bounds the wait.
func Await(ctx context.Context, s Session) (*Greeting, error) {
	st, err := s.Accept(ctx)
	if err != nil {
		return nil, fmt.Errorf("accept control stream: %w", err)
	}
	f, err := exchange(ctx, st, nil)
	if err != nil {
		return nil, fmt.Errorf("await hello: %w", err)
	}
	h, ok := f.(*helloFrame)
	if !ok {
		abortQuietly(st)
		return nil, fmt.Errorf("await hello: %w: kind %d in place of a hello", ErrFrame, f.kind())
	}
	return &Greeting{Hello: Hello(*h), session: s, stream: st}, nil
}

// Control is this end of the control stream under w. It must be told to Welcome
// or HangUp.
func (g *Greeting) Control(w Welcome) *Control {
	w.interval, w.timeout = pingInterval, pingTimeout
	if g.session.Link().Window > 0 {
		w.interval, w.timeout = resumerInterval, resumerTimeout
	}
	return newControl(g.session, g.stream, w)
}

// Welcome consents to the session. Only the accepting end has it to give, once,
// before Run.
func (c *Control) Welcome() error {
	if err := c.write((*welcomeFrame)(&c.welcome)); err != nil {
		return fmt.Errorf("welcome agent: %w", err)
	}
	return nil
}

// Refuse says why not and closes the session.
func (g *Greeting) Refuse(why *Goodbye) error {
	return g.Control(Welcome{}).HangUp(why)
}
