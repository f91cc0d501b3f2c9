// Wire: what lies between yamux and the connection.

package overyamux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// What follows is yamux's framing: version u8, type u8, flags u16, stream u32,
// length u32. Only data frames have a body, of that length.
const (
	frameHeader = 12

	typeData   = 0
	typeWindow = 1
	typePing   = 2

	flagSYN = 1
	flagFIN = 4
	flagRST = 8

	// lastWords is how long a connection that takes nothing more is listened to.
	lastWords = time.Second

	// record is what fits into one TLS record (RFC 8446, 5.1).
	record = 16 << 10
)

var errProtocol = errors.New("peer breaks the protocol")

// A header is a frame's.
type header [frameHeader]byte

func (h *header) kind() byte     { return h[1] }
func (h *header) flags() uint16  { return binary.BigEndian.Uint16(h[2:]) }
func (h *header) stream() uint32 { return binary.BigEndian.Uint32(h[4:]) }

// body is how many bytes follow.
func (h *header) body() int {
	if h.kind() != typeData {
		return 0
	}
	return int(binary.BigEndian.Uint32(h[8:]))
}

func resetHeader(id uint32) (h header) {
	h[1] = typeWindow
	binary.BigEndian.PutUint16(h[2:], flagRST)
	binary.BigEndian.PutUint32(h[4:], id)
	return h
}

// joins recycles the buffers in which a header meets its body: an idle session
// needs none. It is a cache and holds nothing that anybody could observe.
var joins = sync.Pool{New: func() any { return new([record]byte) }}

// A wire passes bytes between yamux and a connection, and knows at each moment
// where in a frame each direction is.
type wire struct {
	net.Conn
	odd bool // this end opens odd streams

	in struct { // owned by yamux's one reader
		head  header
		have  int    // bytes of head
		body  int    // bytes of the body still to come
		extra []byte // of a frame of our own, to be read first
	}

	wmu sync.Mutex // guards the following, and writing
	out struct {
		head header // held back until its body comes
		body int    // bytes of that body; 0 between frames
	}

	mu      sync.Mutex      // guards the following
	ended   map[uint32]bool // by live stream: has the peer ended its direction?
	inward  []uint32        // streams to reset in yamux's eyes
	outward []uint32        // streams to reset in the peer's
	err     error           // why the connection is of no more use

	unread chan struct{} // closed when reading has failed, and err says why

	once    sync.Once
	closing sync.WaitGroup // for the connection, once Close has been called
}

func newWire(c net.Conn, odd bool) *wire {
	return &wire{Conn: c, odd: odd, ended: make(map[uint32]bool), unread: make(chan struct{})}
}

// Close is for yamux, which keeps its streams waiting for it. A connection may
// have last words, and those may take their time: closing.Wait waits for them.
func (w *wire) Close() error {
	w.once.Do(func() {
		w.closing.Go(func() { _ = w.Conn.Close() }) // nothing could be done about it
	})
	return nil
}

// Read is for yamux.
func (w *wire) Read(p []byte) (int, error) {
	for {
		if len(w.in.extra) > 0 {
			n := copy(p, w.in.extra)
			w.in.extra = w.in.extra[n:]
			return n, nil
		}
		room, injected := w.inject(len(p))
		if injected {
			continue
		}
		n, err := w.Conn.Read(p[:room])
		if n > 0 {
			if serr := w.scan(p[:n]); serr != nil {
				return 0, w.readFailed(serr)
			}
			return n, nil
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, w.readFailed(err)
		}
		// Only reset sets a deadline, to get this goroutine's attention.
		w.mu.Lock()
		derr := w.SetReadDeadline(time.Time{})
		w.mu.Unlock()
		if derr != nil {
			return 0, w.readFailed(derr)
		}
	}
}

// inject puts a frame of our own in front of the peer's next one, if there is
// something to put and a frame has just ended; if one has not, it says how much
// may be read for it to end.
func (w *wire) inject(want int) (room int, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.inward) == 0:
		return want, false
	case w.in.body > 0:
		return min(want, w.in.body), false
	case w.in.have > 0:
		return min(want, frameHeader-w.in.have), false
	}
	h := resetHeader(w.inward[0])
	w.inward = w.inward[1:]
	w.in.extra = h[:]
	return 0, true
}

// scan follows the frames in b.
func (w *wire) scan(b []byte) error {
	for len(b) > 0 {
		if w.in.body > 0 {
			n := min(w.in.body, len(b))
			w.in.body -= n
			b = b[n:]
			continue
		}
		n := copy(w.in.head[w.in.have:], b)
		w.in.have += n
		b = b[n:]
		if w.in.have < frameHeader {
			return nil
		}
		w.in.have = 0
		w.in.body = w.in.head.body()
		if err := w.heard(&w.in.head); err != nil {
			return err
		}
	}
	return nil
}

// heard notes what a header from the peer says of its stream.
func (w *wire) heard(h *header) error {
	flags, id := h.flags(), h.stream()
	if h.kind() == typePing {
		return fmt.Errorf("%w: ping", errProtocol)
	}
	if flags&(flagSYN|flagFIN) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if flags&flagSYN != 0 {
		if (id%2 == 1) == w.odd {
			return fmt.Errorf("%w: it opens stream %d, which is ours to open", errProtocol, id)
		}
		w.ended[id] = false
	}
	if _, live := w.ended[id]; live && flags&flagFIN != 0 {
		w.ended[id] = true
	}
	return nil
}

// Write is for yamux, which calls it with a header, and then with its body if it
// has one.
func (w *wire) Write(p []byte) (int, error) {
	w.wmu.Lock()
	n, err := w.writeLocked(p)
	if err == nil {
		err = w.flushLocked()
	}
	w.wmu.Unlock()
	if err != nil {
		return n, w.writeFailed(err)
	}
	return n, w.flush() // what came while the lock was held
}

func (w *wire) writeLocked(p []byte) (int, error) {
	if w.out.body > 0 {
		return w.writeBodyLocked(p)
	}
	if len(p) != frameHeader {
		return 0, errors.New("yamux wrote something that is no header")
	}
	w.out.head = header(p)
	if w.said(&w.out.head); w.out.head.body() > 0 {
		w.out.body = w.out.head.body()
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// writeBodyLocked writes the header that was held back and its body: as much as
// goes into one record in one write, and then the rest.
func (w *wire) writeBodyLocked(p []byte) (int, error) {
	if len(p) != w.out.body {
		return 0, errors.New("yamux wrote a body of another length than its header says")
	}
	w.out.body = 0
	join := joins.Get().(*[record]byte)
	defer joins.Put(join)
	copy(join[:], w.out.head[:])
	n := copy(join[frameHeader:], p)
	if _, err := w.Conn.Write(join[:frameHeader+n]); err != nil {
		return 0, err
	}
	if n == len(p) {
		return n, nil
	}
	m, err := w.Conn.Write(p[n:])
	return n + m, err
}

// said notes what our own header says of its stream.
func (w *wire) said(h *header) {
	if h.flags()&(flagSYN|flagRST) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.flags()&flagSYN != 0 {
		w.ended[h.stream()] = false
	}
	if h.flags()&flagRST != 0 {
		delete(w.ended, h.stream())
	}
}

// hasEnded says whether the peer has ended its direction of a live stream.
func (w *wire) hasEnded(id uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended[id]
}

// forget takes a stream off the books.
func (w *wire) forget(id uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ended, id)
}

// reset ends a stream at once, here and at the peer, and takes it off the books.
// It may wait for the link.
func (w *wire) reset(id uint32) error {
	w.mu.Lock()
	delete(w.ended, id)
	w.inward = append(w.inward, id)
	w.outward = append(w.outward, id)
	err := w.SetReadDeadline(time.Unix(1, 0)) // see Read
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.flush()
}

// flush writes the resets that wait, unless somebody else is about to.
func (w *wire) flush() error {
	for w.waiting() && w.wmu.TryLock() {
		between := w.out.body == 0
		err := w.flushLocked()
		w.wmu.Unlock()
		if err != nil {
			return w.writeFailed(err)
		}
		if !between {
			return nil // the body's writer will
		}
	}
	return nil
}

func (w *wire) waiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.outward) > 0
}

func (w *wire) flushLocked() error {
	if w.out.body > 0 {
		return nil // a frame of ours would fall between a header and its body
	}
	w.mu.Lock()
	ids := w.outward
	w.outward = nil
	w.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	b := make([]byte, 0, len(ids)*frameHeader)
	for _, id := range ids {
		h := resetHeader(id)
		b = append(b, h[:]...)
	}
	_, err := w.Conn.Write(b)
	return err
}

// readFailed remembers why reading failed. Yamux may try again even so.
func (w *wire) readFailed(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	select {
	case <-w.unread:
	default:
		close(w.unread)
	}
	return err
}

// writeFailed remembers why writing failed, unless reading can say it better: a
// peer that hangs up may have said why, and those words lie behind what has been
// read so far. With TLS 1.3 that is how a client learns that the server does not
// accept its certificate. The caller closes the connection only after this.
func (w *wire) writeFailed(err error) error {
	t := time.NewTimer(lastWords)
	defer t.Stop()
	select {
	case <-w.unread:
	case <-t.C:
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	return err
}

// broken is why the connection is of no more use; nil while it is.
func (w *wire) broken() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
