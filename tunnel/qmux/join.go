// Joining: what is said on a connection before it is a session's.

package qmux

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"io"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// greeting bounds what is said on a connection that is there.
const greeting = 10 * time.Second

// within runs f, which reads and writes c, for as long as ctx and greeting let it, and
// leaves c without deadlines.
func within(ctx context.Context, c *conn, f func() error) error {
	if err := c.tls.SetDeadline(time.Now().Add(greeting)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = c.tls.SetDeadline(time.Unix(1, 0)) // if it fails c is broken, and f notices
	})
	err := f()
	if !stop() {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	return c.tls.SetDeadline(time.Time{})
}

// say1 writes a record of one frame.
func (c *conn) say1(frame []byte) error {
	b := make([]byte, sizeBytes, sizeBytes+len(frame))
	b = append(b, frame...)
	putSize(b, len(frame))
	_, err := c.tls.Write(b)
	return err
}

// hear takes the next frame that comes, and keeps what comes with it for read.
func (c *conn) hear() (frame, error) {
	if len(c.rest) == 0 {
		frames, b, err := c.in.next()
		if err != nil {
			return frame{}, err
		}
		if len(frames) == 0 {
			return frame{}, broken(errProtocol, "record without a frame")
		}
		c.rest, c.restIn = frames, b
	}
	f, rest, err := next(c.rest)
	c.rest = rest
	return f, err
}

// hearParameters takes the peer's parameters, which come first.
func (c *conn) hearParameters() (*parameters, error) {
	f, err := c.hear()
	if err != nil {
		return nil, err
	}
	if f.kind != frameParameters {
		return nil, broken(errParameter, "frame of type %#x before QX_TRANSPORT_PARAMETERS", f.kind)
	}
	return parseParameters(f.data)
}

// ask asks for a session, or to join one, and hears the answer. It is nil if the peer
// does not know the extension.
func (c *conn) ask(ctx context.Context, mine parameters) (theirs *parameters, answer *frame, err error) {
	began := time.Now()
	err = within(ctx, c, func() (err error) {
		if err = c.say1(mine.encode()); err != nil {
			return err
		}
		if theirs, err = c.hearParameters(); err != nil || theirs.session == nil || mine.session == nil {
			return err
		}
		f, err := c.hear()
		answer = &f
		switch {
		case err != nil:
			return err
		case f.kind == frameClose || f.kind == frameApplicationClose:
			return closedBy(f)
		case f.kind != frameSession:
			return broken(errProtocol, "frame of type %#x in place of SESSION", f.kind)
		}
		return nil
	})
	c.trip = max(time.Since(began), 1)
	return theirs, answer, err
}

// joinOn has the session go on on c as well, in place of others. On error c is still
// the caller's.
func (s *Session) joinOn(ctx context.Context, c *conn, insteadOf uint64) error {
	s.mu.Lock()
	r := &s.paths.rejoin
	r.attempt++
	c.number = r.attempt
	mine := s.conf.parameters()
	mine.session = &joining{kind: kindJoin, id: s.id, secret: r.secret, attempt: r.attempt, insteadOf: insteadOf}
	s.mu.Unlock()
	_, answer, err := c.ask(ctx, mine)
	if err != nil {
		return err
	}
	if answer == nil {
		return &Error{Code: tunnel.Lost, Text: "the server does not resume any more"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil && !s.closing {
		return s.over
	}
	_, r.secret, _ = answer.session()
	if s.closing { // nothing is left to carry
		_ = c.say1(closeFrame(errNone, true, ""))
		c.abortLater()
		return nil
	}
	s.startLocked(c, insteadOf)
	return nil
}

// admit has the session go on on c, which a peer brings, if it may. The connections that
// it takes the place of are dropped. The first that c carries is SESSION.
func (s *Session) admit(c *conn, j *joining) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.paths.rejoin
	known := subtle.ConstantTimeCompare(j.secret[:], r.secret[:]) == 1
	newer := r.unconfirmed && subtle.ConstantTimeCompare(j.secret[:], r.fresh[:]) == 1
	left := len(s.conns) - len(s.replacedLocked(j.insteadOf))
	beside := left > 0 && left == len(s.conns)
	switch {
	case s.over != nil:
		return unknown(nil)
	case !known && !newer:
		return unknown(errSecret)
	case j.attempt <= r.attempt:
		return late()
	case left >= s.conf.connections:
		return &Error{Code: tunnel.Busy, Text: fmt.Sprintf("%d connections are the limit", s.conf.connections)}
	case beside && !s.conf.beside.take(1, false): // the last case: it takes something
		return &Error{Code: tunnel.Busy, Text: "too many connections beside the first of each session"}
	}
	if beside {
		s.placed++
	}
	if newer {
		r.secret = r.fresh
	}
	r.attempt, r.unconfirmed = j.attempt, true
	_, _ = rand.Read(r.fresh[:]) // never fails
	c.number = j.attempt
	c.say.session = spellSession(s.id, r.fresh, s.conf.terms)
	s.startLocked(c, j.insteadOf)
	return nil
}

// abortLater closes a connection after its last words, without waiting for that.
func (c *conn) abortLater() {
	go func() {
		c.part()
		_, _ = io.Copy(io.Discard, c.tls) // until it has read them, or its time is over
		c.abort()
	}()
}
