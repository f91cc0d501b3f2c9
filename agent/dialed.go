// Dialed: a connection to an address that is tried before the others of its name if it answers, and
// after them if it does not.

package agent

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

const (
	// answerTimeout is how long an address may take to answer if its name has others. Package
	// carrier makes a second connection after 3 seconds, which may take as long: both end long
	// before the node's grace period of 40 seconds.
	answerTimeout = 8 * time.Second
	// answerFactor times as long as the way there took to connect may be longer. TCP sends a lost
	// segment again after three round trips.
	answerFactor = 5
)

// A reached connection is not used yet.
type reached struct {
	net.Conn
	took   time.Duration // to connect
	others bool          // its name has other addresses
}

// A dialed connection records whether its address answers. Until it has, Close puts the address
// after the other ones of its name: a stopped server, or a balancer without one, accepts
// connections and never answers. If there are others it does not wait for an answer longer than
// answerTimeout.
type dialed struct {
	net.Conn
	dialer   *dialer
	addr     string          // HOST:PORT
	silence  unansweredError // the error if there is no answer
	canceled func() bool     // reports whether the connection is not needed any more
	timeout  *time.Timer     // nil if the name has no other address

	settled  atomic.Bool // the wait for an answer has ended
	answered atomic.Bool
	late     atomic.Bool // timeout has passed before an answer
}

// await returns c, the connection inside r, as one that waits for an answer. addr is what was
// dialed. The way to the peer took took to connect.
func (d *dialer) await(ctx context.Context, r *reached, c net.Conn, addr string, silence unansweredError, took time.Duration) *dialed {
	w := &dialed{
		Conn: c, dialer: d, addr: addr, silence: silence,
		canceled: func() bool { return errors.Is(ctx.Err(), context.Canceled) },
	}
	if r.others {
		w.timeout = time.AfterFunc(max(answerTimeout, answerFactor*took), w.giveUp)
	}
	return w
}

// giveUp ends the wait for an answer, and with it Read.
func (c *dialed) giveUp() {
	if !c.settled.Swap(true) {
		c.late.Store(true)
		c.dialer.reorder(c.addr, c.RemoteAddr(), false)
		_ = c.SetDeadline(time.Unix(1, 0)) // it fails only if c is closed
	}
}

// Read implements net.Conn. What it reads is an answer.
func (c *dialed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.Settled(true)
	}
	if err != nil && c.late.Load() {
		err = c.Unanswered()
	}
	return n, err
}

// Settled ends the wait for an answer: it was received, or it is not needed any more. Package
// carrier calls it, which reads past this connection.
func (c *dialed) Settled(answered bool) {
	if c.settled.Swap(true) {
		return
	}
	if c.timeout != nil {
		c.timeout.Stop()
	}
	if answered {
		c.answered.Store(true)
		c.dialer.reorder(c.addr, c.RemoteAddr(), true)
	}
}

// Unanswered is the error of a handshake that did not end in time; nil if there was an answer.
// Package carrier calls it.
func (c *dialed) Unanswered() error {
	if c.answered.Load() {
		return nil
	}
	return c.silence
}

// Close implements net.Conn. TLS calls it when a handshake is canceled.
func (c *dialed) Close() error {
	if c.canceled() {
		c.Settled(false)
	}
	if !c.settled.Swap(true) {
		if c.timeout != nil {
			c.timeout.Stop()
		}
		c.dialer.reorder(c.addr, c.RemoteAddr(), false)
	}
	return c.Conn.Close()
}

// NetConn is the connection itself.
func (c *dialed) NetConn() net.Conn { return c.Conn }

// An unansweredError says that a connection was made, and that there was no answer on it. It has no
// duration: the log repeats no failure whose text is the same.
type unansweredError string

// Error names the address.
func (e unansweredError) Error() string { return string(e) }

// Unwrap says that it is a timeout.
func (e unansweredError) Unwrap() error { return context.DeadlineExceeded }
