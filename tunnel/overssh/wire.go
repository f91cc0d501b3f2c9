// Wire: the connection below SSH, observed to learn what the library does not report.

package overssh

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel/carrier"
)

// smallRead is a read after which TCP may delay the acknowledgement: it acknowledges bulk at
// every second segment.
const smallRead = 2 << 10

// A wire is the connection that an SSH session runs over.
type wire struct {
	net.Conn
	began    time.Time
	lastRead atomic.Int64 // when data was last read, in nanoseconds since began

	mu      sync.Mutex // guards the following
	changed sync.Cond  // one of the following has changed; uses mu
	reading bool       // a Read waits for the peer
	ended   bool       // Close was called, or a Read has failed
	err     error      // why the Read has failed; nil if Close was called before
}

func newWire(c net.Conn) *wire {
	w := &wire{Conn: c, began: time.Now()}
	w.changed.L = &w.mu
	return w
}

// Read is for the SSH library, which has one reader a connection. sshd turns Nagle's
// algorithm off only for sessions with a terminal or a command (RFC 896): here its answer to
// an open and the first bytes of the target are two small segments, and unless the first is
// acknowledged at once, the second waits some 40 ms for the kernel's delayed acknowledgement.
func (w *wire) Read(p []byte) (int, error) {
	w.mu.Lock()
	w.reading = true
	w.changed.Broadcast()
	w.mu.Unlock()
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.lastRead.Store(int64(time.Since(w.began)))
	}
	if 0 < n && n < smallRead {
		carrier.QuickAck(w.Conn)
	}
	err = sourceless(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = false
	if err != nil {
		w.endLocked(err)
	}
	return n, err
}

// Write is for the SSH library.
func (w *wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	return n, sourceless(err)
}

// sourceless is an error of the connection without the address of this end, whose port differs
// each time: the log repeats no failure whose text is the same.
func sourceless(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		remote := *op
		remote.Source = nil
		return &remote
	}
	return err
}

// Close closes the connection.
func (w *wire) Close() error {
	w.mu.Lock()
	w.endLocked(nil)
	w.mu.Unlock()
	return w.Conn.Close()
}

func (w *wire) endLocked(err error) {
	if !w.ended {
		w.ended, w.err = true, err
		w.changed.Broadcast()
	}
}

// alive says whether the connection works. It distinguishes the end of a stream from the end
// of the session, for both of which the library returns io.EOF: after the end of the session
// it never calls Read again. So a Read that waits, or is called, means that the peer has ended
// only the stream. (An authenticated peer that violates the channel protocol can make a cut
// look like an end. It can do that in other ways, too.)
//
// alive waits until the library has processed what it has read, or until Close.
func (w *wire) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.ended && !w.reading {
		w.changed.Wait()
	}
	return !w.ended
}

// failure is why a Read has failed; nil if none has, or Close was called first.
func (w *wire) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// times are now, and when data was last read, since the connection was made.
func (w *wire) times() (now, lastRead time.Duration) {
	lastRead = time.Duration(w.lastRead.Load())
	return time.Since(w.began), lastRead
}
