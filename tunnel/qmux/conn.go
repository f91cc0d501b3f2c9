// Conn: one TLS connection of a session, and who reads it.

package qmux

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/quic-go/quic-go/quicvarint"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/carrier"
)

// parting bounds how long a peer that was told goodbye is read from.
const parting = time.Second

// secured is a TLS connection, or what stands for one in tests.
type secured interface {
	net.Conn
	NetConn() net.Conn
	CloseWrite() error
}

// A conn is one connection of a session. One goroutine reads it. Whoever has something
// to send and finds nobody writing writes it; a goroutine takes over when that would
// have to wait, and ends when there is nothing left.
type conn struct {
	s      *Session
	tls    secured
	batch  *batch
	number uint64 // of the attempt that made it; 0 is the session's first
	in     recordReader
	rest   []byte        // frames that came with what was said before it was the session's,
	restIn *block        // and where they lie
	trip   time.Duration // the time that asking for the session took; 0 at the accepting end

	// The session's mutex guards the following.
	gone     bool  // it is none of the session's any more
	closing  bool  // CONNECTION_CLOSE is to be the last that it carries,
	parting  bool  // and was
	draining bool  // another took its place: it is only read
	writing  bool  // somebody writes
	failed   error // why nobody can any more
	little   queue // streams that have little to send
	bulk     queue // streams that have much
	control  []*stream
	done     []uint64 // streams to answer STREAM_DONE for
	say      connSay
	unacked  int // bytes sent that are not acknowledged
	pace     pace

	heard    time.Time // when something last came
	probed   time.Time // when the peer was asked because of the present silence; zero: not yet
	asked    time.Time // since when the peer owes a sign of life; zero if it does not
	excused  bool      // since asked: the peer, for what may not have been read yet
	question uint64    // the number of the QX_PING that has no answer yet; 0: none
	sent     time.Time // when it was sent
	since    time.Time // since when data has come without a long pause,
	came     time.Time // and when it last came
	wrote    time.Time // when something was last sent
	used     time.Time // when it last had a direction of its own
	load     int       // directions of ours that have it for their own
}

// connSay is what a connection has to say by itself.
type connSay struct {
	session    []byte // SESSION, before anything else
	ping, pong bool
	pongNumber uint64
	streams    bool // MAX_STREAMS
	want       int  // WANT_CONNECTIONS
	doubted    []uint64
	close      []byte // a frame, after anything else
}

func (y *connSay) anything() bool {
	return y.session != nil || y.ping || y.pong || y.streams || y.want > 0 || len(y.doubted) > 0 || y.close != nil
}

func newConn(t secured) *conn {
	b, _ := t.NetConn().(*batch) // it always is one
	c := &conn{tls: t, batch: b, in: newRecordReader(t), pace: pace{ahead: firstAhead}}
	c.limitUnsent()
	return c
}

// abort closes the connection below TLS, whose last words could get stuck.
func (c *conn) abort() {
	_ = c.tls.NetConn().Close() // nothing could be done about it
}

// part ends the connection after its last frame. It is read for a moment longer: closed
// with something unread, TCP would drop that frame for a reset.
func (c *conn) part() {
	_ = c.tls.SetDeadline(time.Now().Add(parting)) // none of these matters any more
	_ = c.tls.CloseWrite()
}

// peer is what the connection's handshake has proved.
func (c *conn) peer() tunnel.Peer {
	if t, ok := c.tls.(*tls.Conn); ok {
		return carrier.PeerOf(t, Name)
	}
	return tunnel.Peer{Addr: c.tls.RemoteAddr(), Transport: Name}
}

// idleBuffer is what a connection holds to read to while little comes; a record of at
// most smallRecord bytes is read in it.
const (
	idleBuffer  = 512
	smallRecord = idleBuffer - sizeBytes
)

// A recordReader takes records off a connection. While it waits for one it holds
// idleBuffer bytes.
type recordReader struct {
	r    *bufio.Reader
	b    *block // in which the latest record lies; nil if it was a small one
	size int    // of that record,
	left int    // and how many bytes of it have not come
}

func newRecordReader(r io.Reader) recordReader {
	return recordReader{r: bufio.NewReaderSize(r, idleBuffer)}
}

// next reads one record. Its frames lie in the block, or in memory that is the reader's
// until the next call if that is nil. Whoever wants to keep the block counts it. After an
// error that will pass, such as errNotYet, next goes on where it was.
func (r *recordReader) next() (frames []byte, b *block, err error) {
	if r.left == 0 {
		r.drop()
		var head, size int
		head, size, err = r.peekSize()
		switch {
		case err != nil:
			return nil, nil, err
		case size > maxRecord:
			return nil, nil, broken(errFrameEncoding, "record of %d bytes", size)
		case size <= smallRecord:
			if frames, err = r.r.Peek(head + size); err != nil {
				return nil, nil, err
			}
			_, _ = r.r.Discard(len(frames)) // they are there
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

// peekSize says how large the next record is, and how many bytes say so.
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

// drop gives up the block.
func (r *recordReader) drop() {
	if r.b != nil {
		r.b.free()
		r.b, r.left = nil, 0
	}
}

// read reads the connection until that ends. It waits in await while little comes, and
// after large records in TLS, which saves a copy and takes a deeper stack.
func (c *conn) read() {
	frames, b, err := c.rest, c.restIn, error(nil)
	c.rest, c.restIn = nil, nil
	for err == nil {
		if len(frames) == 0 {
			c.batch.patient(b == nil)
			frames, b, err = c.in.next()
		}
		switch {
		case errors.Is(err, errNotYet):
			err = c.batch.await()
		case err == nil:
			err = c.take(frames, b)
		}
		frames = nil
	}
	c.unread(err)
}

// unread ends the connection, which nobody reads any more because of err.
func (c *conn) unread(err error) {
	c.in.drop()
	var p *ProtocolError
	if errors.As(err, &p) && !p.Remote {
		c.s.mu.Lock()
		c.s.breakLocked(p)
		c.s.mu.Unlock()
		c.batch.patient(false)
		_, _ = io.Copy(io.Discard, c.tls) // until it has read why, or its time is over
	}
	c.batch.in.Free()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("peer closed the connection")
	case c.failed != nil:
		err = c.failed
	}
	c.s.lostLocked(c, fmt.Errorf("%w: %w", tunnel.Lost, err))
}

// take takes the frames of a record.
func (c *conn) take(frames []byte, b *block) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	switch {
	case c.parting: // it is only waited for its end
		return nil
	case c.gone && !c.draining:
		return errors.New("connection is not the session's any more")
	case len(frames) == 0:
		return broken(errProtocol, "record without a frame")
	}
	c.heardLocked()
	for len(frames) > 0 && (!c.gone || c.draining) && c.s.over == nil {
		f, rest, err := next(frames)
		if err == nil {
			err = c.s.frameLocked(c, f, b)
		}
		if err != nil {
			return err
		}
		frames = rest
	}
	return nil
}

// heardLocked notes a sign of life.
func (c *conn) heardLocked() {
	now := time.Now()
	c.heard, c.probed, c.asked, c.excused = now, time.Time{}, time.Time{}, false
	c.s.stats.Heard = now
	if c.unacked > 0 {
		c.asked = now
	}
	if r := &c.s.paths.rejoin; r.unconfirmed && c.number == r.attempt {
		r.secret, r.unconfirmed = r.fresh, false // the peer has the new one
	}
}

// settledLocked notes that n bytes sent need not be acknowledged any more. If those were
// all, a sign of life that was heard meanwhile was that for them, too.
func (c *conn) settledLocked(n int) {
	if c.unacked -= n; c.unacked == 0 && c.asked.Equal(c.heard) {
		c.asked = time.Time{}
	}
}
