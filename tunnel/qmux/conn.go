// Conn: one TLS connection of a session, and the goroutine that reads it.

package qmux

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/quic-go/quic-go/quicvarint"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// lingerTimeout bounds how long a connection is read after CONNECTION_CLOSE was sent on it.
const lingerTimeout = time.Second

// secured is a *tls.Conn, or a test's replacement of one.
type secured interface {
	net.Conn
	NetConn() net.Conn
	CloseWrite() error
}

// A conn is one connection of a session. One goroutine reads it. A caller that has
// something to send writes it directly if no write is in progress. When the socket is
// full, a goroutine takes over the writing and ends once nothing is left to write.
type conn struct {
	s           *Session
	tls         secured
	batch       *batch
	number      uint64 // of the attempt that made it; 0 is the session's first connection
	in          recordReader
	firstFrames []byte        // frames received together with the handshake's,
	firstBlock  *block        // and the block that holds them
	joinRTT     time.Duration // round trip of the handshake; 0 at the accepting end

	// The session's mutex guards the following.
	detached       bool      // no longer one of the session's connections
	closing        bool      // CONNECTION_CLOSE will be the last frame sent
	closeSent      bool      // CONNECTION_CLOSE has been sent
	draining       bool      // replaced by another connection: only read from now on
	writing        bool      // a write is in progress
	full           bool      // the socket did not take all of the latest turn
	writeErr       error     // why writing has failed; nil if it has not
	small          []*stream // streams with at most smallWrite bytes to send, in the order of their turns
	bulk           []*stream // streams with more, likewise
	controlStreams []*stream
	streamDone     []uint64 // ids of streams to send STREAM_DONE for
	control        connControl
	inFlight       int // bytes sent and not acknowledged
	bulkInFlight   int // of them, of bulk
	trusted        int // of bulk, how many may be in flight if it is the first; 0: as many as the socket takes
	pace           pace

	lastReceived time.Time // when a record was last received
	probedAt     time.Time // when a ping was sent because of the present silence; zero: not yet
	owedSince    time.Time // since when the peer has owed an answer; zero if it owes none
	slowSince    time.Time // since when it has, although TCP acknowledges what is sent; zero: it is not slow
	owedReset    bool      // owedSince was moved once because this process had been stopped
	pingNumber   uint64    // of the unanswered QX_PING; 0: none
	pingSent     time.Time // when that ping was sent
	movingSince  time.Time // since when data has moved without a long pause
	lastMoved    time.Time // when stream data or a STREAM_ACK was last received
	lastSent     time.Time // when a turn was last written
	lastSmall    uint64    // ID of the stream whose small data was written last
	lastOwned    time.Time // when a stream last used it as its own
	owners       int       // sending streams that use it as their own
}

// connControl is the pending control frames of the connection itself.
type connControl struct {
	session    []byte // SESSION, sent before any other frame
	ping, pong bool
	nextPing   uint64 // the lowest number that the peer's next QX_PING may have
	maxStreams bool   // MAX_STREAMS
	wantConns  int    // WANT_CONNECTIONS
	doubted    []uint64
	closeFrame []byte // CONNECTION_CLOSE, sent after all other frames
}

func (y *connControl) pending() bool {
	return y.session != nil || y.ping || y.pong || y.maxStreams || y.wantConns > 0 || len(y.doubted) > 0 || y.closeFrame != nil
}

func newConn(t secured) *conn {
	b, _ := t.NetConn().(*batch) // it always is a batch
	c := &conn{tls: t, batch: b, in: newRecordReader(t), pace: pace{ahead: firstAhead}}
	c.limitUnsent()
	return c
}

// abort closes the TCP connection. Closing TLS would send close_notify, which can block. What is
// unsent is dropped, but for CONNECTION_CLOSE: the rest is sent again on another connection. If
// there is nothing the connection is closed in order: a lost reset is not sent again.
func (c *conn) abort() {
	if c.s != nil && !c.closeSent && (c.draining || c.writing || c.inFlight > 0) {
		carrier.DropUnsent(c.tls)
	}
	_ = c.tls.NetConn().Close() // the connection is given up either way
}

// closeWrite ends our direction after the last frame. The connection is read for
// lingerTimeout: TCP resets a connection that is closed with unread data, and the peer
// would lose that frame.
func (c *conn) closeWrite() {
	_ = c.tls.SetDeadline(time.Now().Add(lingerTimeout)) // an error means that the connection is broken already
	_ = c.tls.CloseWrite()
	_, _ = c.batch.flush(true) // an error is as good as the end
}

// peer is what the connection's TLS handshake has proved.
func (c *conn) peer() tunnel.Peer {
	if t, ok := c.tls.(*tls.Conn); ok {
		return carrier.PeerOf(t, Name)
	}
	return tunnel.Peer{Addr: c.tls.RemoteAddr(), Transport: Name}
}

// idleBuffer is the read buffer, in bytes, that a connection always holds. A record that fits
// into it is parsed in it.
const idleBuffer = 512

// A recordReader reads QMux records. While it waits for one it holds idleBuffer bytes.
type recordReader struct {
	r    *bufio.Reader
	b    *block // that holds the latest record; nil if it was a small one
	size int    // of that record
	left int    // bytes of it that have not been received
}

func newRecordReader(r io.Reader) recordReader {
	return recordReader{r: bufio.NewReaderSize(r, idleBuffer)}
}

// next reads one record. Its frames lie in the block; if that is nil they lie in the read
// buffer, and are valid until the next call. A caller that keeps the block adds a
// reference. After a temporary error, such as errWouldBlock, next continues where it was.
func (r *recordReader) next() (frames []byte, b *block, err error) {
	if r.left == 0 {
		r.drop()
		var head, size int
		head, size, err = r.peekSize()
		switch {
		case err != nil:
			return nil, nil, err
		case size > maxRecord:
			return nil, nil, protocolError(errFrameEncoding, "record of %d bytes", size)
		case head+size <= idleBuffer: // Size may have 8 bytes
			if frames, err = r.r.Peek(head + size); err != nil {
				return nil, nil, err
			}
			_, _ = r.r.Discard(len(frames)) // Peek has buffered them
			return frames[head:], nil, nil
		}
		_, _ = r.r.Discard(head)
		r.b, r.left, r.size = newBlock(mediumBlock), size, size
	}
	n, err := io.ReadFull(r.r, r.b.buf[r.size-r.left:r.size])
	if r.left -= n; err != nil {
		return nil, nil, err
	}
	return r.b.buf[:r.size], r.b, nil
}

// peekSize is the size of the next record, and the length of its Size field.
func (r *recordReader) peekSize() (head, size int, err error) {
	p, err := r.r.Peek(1)
	if err != nil {
		return 0, 0, err
	}
	if p, err = r.r.Peek(1 << (p[0] >> 6)); err != nil {
		return 0, 0, err
	}
	n, head, err := quicvarint.Parse(p)
	return head, int(min(n, maxRecord+1)), err
}

// drop releases the block.
func (r *recordReader) drop() {
	if r.b != nil {
		r.b.free()
		r.b, r.left = nil, 0
	}
}

// read reads the connection until it ends. After a small record it waits in waitRead, on a
// shallow stack; after a large one it waits in TLS, which saves a copy.
func (c *conn) read() {
	frames, b, err := c.firstFrames, c.firstBlock, error(nil)
	c.firstFrames, c.firstBlock = nil, nil
	for err == nil {
		if len(frames) == 0 {
			c.batch.setNonblocking(b == nil)
			frames, b, err = c.in.next()
		}
		switch {
		case errors.Is(err, errWouldBlock):
			err = c.batch.waitRead()
		case err == nil:
			err = c.handleRecord(frames, b)
		}
		frames = nil
	}
	c.readEnded(err)
}

// readEnded ends the connection after read has failed with err.
func (c *conn) readEnded(err error) {
	c.in.drop()
	if p, ok := errors.AsType[*violation](err); ok {
		c.s.mu.Lock()
		c.s.protocolErrorLocked(p)
		c.s.mu.Unlock()
		c.batch.setNonblocking(false)
		_, _ = io.Copy(io.Discard, c.tls) // until the peer has read the reason, or the deadline
	}
	c.batch.in.Free()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("peer closed the connection")
	case c.writeErr != nil:
		err = c.writeErr
	}
	c.s.lostLocked(c, c.endedLocked(err))
}

// handleRecord handles the frames of a record.
func (c *conn) handleRecord(frames []byte, b *block) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case c.closeSent: // only its end is waited for
		return nil
	case c.detached && !c.draining:
		return errors.New("connection is not the session's any more")
	case len(frames) == 0:
		return protocolError(errProtocol, "record without a frame")
	}
	c.receivedLocked()
	for len(frames) > 0 && (!c.detached || c.draining) && c.s.err == nil {
		f, rest, err := next(frames)
		if err == nil {
			err = c.s.frameLocked(c, f, b)
		}
		if err != nil {
			return err
		}
		frames = rest
	}
	c.s.sendAllLocked()
	return nil
}

// sendAllLocked has the streams send that waited for MAX_DATA, once for all frames of a record.
func (s *Session) sendAllLocked() {
	if !s.dataRaised {
		return
	}
	s.dataRaised = false
	for _, st := range s.streams {
		s.sendLocked(st)
	}
}

// receivedLocked notes that the peer is alive.
func (c *conn) receivedLocked() {
	now := time.Now()
	c.lastReceived, c.probedAt, c.owedSince, c.slowSince, c.owedReset = now, time.Time{}, time.Time{}, time.Time{}, false
	c.s.stats.Heard = now
	if c.inFlight > 0 {
		c.owedSince = now
	}
	if r := &c.s.paths.rejoin; r.unconfirmed && c.number == r.attempt {
		r.secret, r.unconfirmed = r.fresh, false // the peer has the new secret
	}
}

// ackedLocked notes that n bytes in flight have been acknowledged, or need not be. If they
// were the last ones, the record received meanwhile has answered for them.
func (c *conn) ackedLocked(n int) {
	if c.inFlight -= n; c.inFlight == 0 && c.owedSince.Equal(c.lastReceived) {
		c.owedSince = time.Time{}
	}
}
