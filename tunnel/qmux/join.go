// Joining: the handshake on a connection before it belongs to a session.

package qmux

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// helloTimeout bounds that handshake.
const helloTimeout = 10 * time.Second

// within runs f, which reads and writes c, within the bounds of ctx and helloTimeout. It
// leaves c without deadlines.
func within(ctx context.Context, c *conn, f func() error) error {
	if err := c.tls.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = c.tls.SetDeadline(time.Unix(1, 0)) // if it fails c is broken, and f notices
	})
	err := f()
	if !stop() {
		return context.Cause(ctx)
	}
	return cmp.Or(err, c.tls.SetDeadline(time.Time{}))
}

// writeFrame writes a record of one frame.
func (c *conn) writeFrame(frame []byte) error {
	b := make([]byte, sizeBytes, sizeBytes+len(frame))
	b = append(b, frame...)
	putSize(b, len(frame))
	_, err := c.tls.Write(b)
	return err
}

// readFrame reads the next frame, and keeps the rest of its record for read.
func (c *conn) readFrame() (frame, error) {
	if len(c.firstFrames) == 0 {
		frames, b, err := c.in.next()
		if err != nil {
			return frame{}, err
		}
		if len(frames) == 0 {
			return frame{}, protocolError(errProtocol, "record without a frame")
		}
		c.firstFrames, c.firstBlock = frames, b
	}
	f, rest, err := next(c.firstFrames)
	c.firstFrames = rest
	return f, err
}

// exchangeParameters writes this end's parameters and reads the peer's, which are its first frame.
func (c *conn) exchangeParameters(mine parameters) (*parameters, error) {
	if err := c.writeFrame(mine.encode()); err != nil {
		return nil, err
	}
	f, err := c.readFrame()
	if err != nil {
		return nil, err
	}
	if f.kind != frameParameters {
		return nil, protocolError(errProtocol, "frame of type %#x before QX_TRANSPORT_PARAMETERS", f.kind)
	}
	return parseParameters(f.data)
}

// requestSession asks for a session, or to join one, and reads the answer. The answer is
// nil if the peer does not have the extension.
func (c *conn) requestSession(ctx context.Context, mine parameters) (theirs *parameters, answer *frame, err error) {
	began := time.Now()
	err = within(ctx, c, func() (err error) {
		if theirs, err = c.exchangeParameters(mine); err != nil || theirs.session == nil || mine.session == nil {
			return err
		}
		f, err := c.readFrame()
		answer = &f
		switch {
		case err != nil:
			return err
		case f.kind == frameClose || f.kind == frameApplicationClose:
			return closedBy(f)
		case f.kind != frameSession:
			return protocolError(errProtocol, "frame of type %#x in place of SESSION", f.kind)
		}
		return nil
	})
	c.joinRTT = max(time.Since(began), 1)
	return theirs, answer, err
}

// joinOn adds c to the session, in place of the connections that insteadOf names. On error
// the caller still owns c.
func (s *Session) joinOn(ctx context.Context, c *conn, insteadOf uint64) error {
	s.mu.Lock()
	r := &s.paths.rejoin
	r.attempt++
	c.number = r.attempt
	mine := s.conf.parameters()
	mine.session = &joining{kind: kindJoin, id: s.id, secret: r.secret, attempt: r.attempt, insteadOf: insteadOf}
	s.mu.Unlock()
	theirs, answer, err := c.requestSession(ctx, mine)
	if e, ok := errors.AsType[*sessionError](err); ok && theirs != nil {
		if e.server = theirs.server; s.elsewhere(e) {
			return noSessionElsewhere(e.server, s.peer.server)
		}
	}
	if err != nil {
		return err
	}
	if answer == nil {
		return &sessionError{Code: tunnel.Lost, Text: "the server does not resume any more"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil && !s.closing {
		return s.err
	}
	_, r.secret, _ = answer.session()
	if s.closing { // the connection is only used to say so
		c.closeGracefully(closeFrame(errNone, true, ""))
		return nil
	}
	s.attachLocked(c, insteadOf)
	return nil
}

// mayJoin returns why a joining is refused, before the application is asked. admit checks again.
func (s *Session) mayJoin(j *joining) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.mayJoinLocked(j)
	return err
}

// mayJoinLocked returns why a joining is refused. newer reports that it shows the fresh secret.
func (s *Session) mayJoinLocked(j *joining) (newer bool, err error) {
	r := &s.paths.rejoin
	known := subtle.ConstantTimeCompare(j.secret[:], r.secret[:]) == 1
	newer = r.unconfirmed && subtle.ConstantTimeCompare(j.secret[:], r.fresh[:]) == 1
	switch {
	case s.err != nil:
		return false, noSession(nil)
	case !known && !newer:
		return false, noSession(errSecret)
	case j.attempt <= r.attempt:
		return false, superseded()
	}
	return newer, nil
}

// admit adds c, which the peer has dialed, to the session if the joining is valid. The first
// frame on c is SESSION.
func (s *Session) admit(c *conn, j *joining) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.paths.rejoin
	newer, err := s.mayJoinLocked(j)
	left := len(s.conns) - len(s.replacedLocked(j.insteadOf))
	beside := left > 0 && left == len(s.conns)
	switch {
	case err != nil:
		return err
	case left >= s.conf.connections:
		return &sessionError{Code: tunnel.Busy, Text: fmt.Sprintf("%d connections are the limit", s.conf.connections)}
	case beside && !s.conf.beside.take(1, false): // the last case, since it takes a place
		return &sessionError{Code: tunnel.Busy, Text: "too many connections beside the first of each session"}
	}
	if beside {
		s.besideCounted++
	}
	if newer {
		r.secret = r.fresh
	}
	r.attempt, r.unconfirmed = j.attempt, true
	_, _ = rand.Read(r.fresh[:]) // never fails
	c.number = j.attempt
	c.control.session = sessionFrame(s.id, r.fresh, s.conf.terms)
	s.attachLocked(c, j.insteadOf)
	return nil
}

// giveUp closes a connection whose handshake has failed with err. A peer that has violated the
// protocol is told so.
func (c *conn) giveUp(err error) {
	if p, ok := errors.AsType[*violation](err); ok {
		c.closeGracefully(closeFrame(p.Code, false, p.Text))
	} else {
		c.abort()
	}
}

// closeGracefully writes a last frame, and closes the connection once the peer has read it. It
// does not wait for that.
func (c *conn) closeGracefully(frame []byte) {
	_ = c.tls.SetDeadline(time.Now().Add(lingerTimeout)) // an error means that the connection is broken already
	_ = c.writeFrame(frame)                              // likewise
	go func() {
		c.closeWrite()
		_, _ = io.Copy(io.Discard, c.tls) // until the peer closes, or the deadline
		c.abort()
	}()
}
