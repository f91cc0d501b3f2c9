package spdyframes

// Clients of which nothing is read.

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// unreadFor is how long nothing is read from a client before it is written to, and then how often.
const unreadFor = time.Minute

var (
	// spdyNothing is a PING with an identifier of the client's that it has not sent, which it ignores.
	spdyNothing = []byte{0x80, 3, 0, 6, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff}
	// webSocketNothing is a Pong that was not asked for, which is not answered (RFC 6455, 5.5.3).
	webSocketNothing = []byte{0x80 | pongOpcode, 0}
)

// An Unread is a connection to a client. While no Read is under way it has a frame without a meaning
// written once a minute: while what a client has sent is not read, its end is not noticed, but a
// write to one that is gone fails. One goroutine may read, and another write.
type Unread struct {
	net.Conn
	from  io.Reader
	frame []byte
	whole func(written []byte) bool // whether a frame ends with it
	gone  func()
	timer *time.Timer
	over  atomic.Bool

	mu      sync.Mutex // held by writers; guards the following
	between bool       // frames
}

// NewUnread makes one that writes SPDY frames to conn, from the first on, and reads from. When nothing
// can be written it closes conn and calls gone.
func NewUnread(conn net.Conn, from io.Reader, gone func()) *Unread {
	var frames Frames
	lost := false
	return newUnread(conn, from, gone, spdyNothing, func(p []byte) bool {
		for len(p) > 0 && !lost {
			var err error
			_, _, p, err = frames.Next(p)
			lost = err != nil
		}
		return !lost && frames.have == 0
	})
}

// newWebSocketUnread makes one to which the header of an HTTP answer is written first, at once.
func newWebSocketUnread(conn net.Conn, from io.Reader, gone func()) *Unread {
	var frames webSocket
	answered := false
	return newUnread(conn, from, gone, webSocketNothing, func(p []byte) bool {
		if !answered {
			answered = bytes.HasSuffix(p, []byte("\r\n\r\n"))
			return answered
		}
		if frames.err == nil {
			frames.err = frames.take(p)
		}
		return frames.err == nil && frames.left == 0 && frames.have == 0
	})
}

func newUnread(conn net.Conn, from io.Reader, gone func(), frame []byte, whole func([]byte) bool) *Unread {
	u := &Unread{Conn: conn, from: from, frame: frame, whole: whole, gone: gone}
	u.mu.Lock() // try waits for the timer
	defer u.mu.Unlock()
	u.timer = time.AfterFunc(unreadFor, u.try)
	return u
}

// Read implements io.Reader.
func (u *Unread) Read(p []byte) (int, error) {
	u.timer.Stop()
	n, err := u.from.Read(p)
	if err == nil {
		u.timer.Reset(unreadFor)
	}
	return n, err
}

// Write implements io.Writer.
func (u *Unread) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, err := u.Conn.Write(p)
	if err != nil {
		u.lost()
	}
	u.between = u.whole(p[:n])
	return n, err
}

// Close implements io.Closer.
func (u *Unread) Close() error {
	u.over.Store(true)
	u.timer.Stop()
	return u.Conn.Close()
}

// lost ends the connection to a client that is gone, once.
func (u *Unread) lost() {
	if !u.over.Swap(true) {
		u.timer.Stop()
		_ = u.Conn.Close()
		u.gone()
	}
}

// try writes the frame, if it can be between others.
func (u *Unread) try() {
	if u.over.Load() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.between {
		if _, err := u.Conn.Write(u.frame); err != nil {
			u.lost()
			return
		}
	}
	u.timer.Reset(unreadFor)
}
