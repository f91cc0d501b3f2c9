// Hello and welcome: how a session begins.

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

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
	// Interval and Timeout are those of the pings, for both ends. Zero means the
	// defaults: 10 s and 30 s, or, for a Resumer, an hour and two and a half.
	Interval, Timeout time.Duration
	Meta              Meta
}

// withDefaults fills in the times and keeps them within reason.
func (w Welcome) withDefaults() Welcome {
	if w.Interval <= 0 {
		w.Interval = DefaultInterval
	}
	if w.Timeout <= 0 {
		w.Timeout = DefaultTimeout
	}
	w.Interval = min(max(w.Interval, 100*time.Millisecond), time.Hour)
	w.Timeout = min(max(w.Timeout, 2*w.Interval), 24*time.Hour)
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
		w := Welcome(*f).withDefaults()
		return newControl(s, st, w.Interval, w.Timeout), w, nil
	case *noteFrame:
		abortQuietly(st)
		return nil, Welcome{}, &Goodbye{Code: f.code, Text: f.text}
	default:
		abortQuietly(st)
		return nil, Welcome{}, fmt.Errorf("greet server: %w: kind %d in place of a welcome", ErrFrame, f.kind())
	}
}

// exchange writes out, if there is something, and reads a frame. On error the
// stream is gone. It leaves st without deadlines.
func exchange(ctx context.Context, st Stream, out frame) (frame, error) {
	stop := context.AfterFunc(ctx, func() { abortQuietly(st) })
	f, err := func() (frame, error) {
		if deadline, ok := ctx.Deadline(); ok {
			if err := st.SetDeadline(deadline); err != nil {
				return nil, err
			}
		}
		if out != nil {
			if err := writeFrame(st, out); err != nil {
				return nil, err
			}
		}
		f, err := readFrame(st)
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: peer hung up", Lost)
		}
		if err != nil {
			return nil, err
		}
		return f, st.SetDeadline(time.Time{})
	}()
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		abortQuietly(st)
		return nil, blame(ctx, err)
	}
	return f, nil
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
	if _, ok := LinkOf(g.session); ok && w.Interval <= 0 && w.Timeout <= 0 {
		w.Interval, w.Timeout = resumerInterval, resumerTimeout
	}
	w = w.withDefaults()
	c := newControl(g.session, g.stream, w.Interval, w.Timeout)
	c.welcome = (*welcomeFrame)(&w)
	return c
}

// Welcome consents to the session. Only the accepting end has it to give, once,
// before Run.
func (c *Control) Welcome() error {
	if err := c.write(c.welcome); err != nil {
		return fmt.Errorf("welcome agent: %w", err)
	}
	return nil
}

// Refuse says why not and closes the session.
func (g *Greeting) Refuse(code Code, text string) error {
	return g.Control(Welcome{}).HangUp(code, text)
}
