// Wire: the connection below SSH, and what can be learned from watching it.

package overssh

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/tunnel/carrier"
)

// fewBytes are too few for TCP to acknowledge them without being asked: bulk is
// acknowledged at every second segment anyway.
const fewBytes = 2 << 10

// A wire is the connection that an SSH session runs over.
type wire struct {
	net.Conn
	heard atomic.Int64 // when something last arrived, in Unix nanoseconds

	mu      sync.Mutex // guards the following
	moved   sync.Cond  // one of them has changed; shares mu
	reading bool       // a Read waits for the peer
	over    bool       // closed, or a Read has failed
	err     error      // why the Read failed; nil if it was closed before
}

func newWire(c net.Conn) *wire {
	w := &wire{Conn: c}
	w.moved.L = &w.mu
	w.heard.Store(time.Now().UnixNano())
	return w
}

// Read is for the SSH library, which has one reader a connection. sshd turns Nagle's
// algorithm off only for sessions with a terminal or a command (RFC 896): here its answer to
// an open and the first bytes of the target are two small segments, and unless the first is
// acknowledged at once, the second waits some 40 ms for the kernel's delayed acknowledgement.
func (w *wire) Read(p []byte) (int, error) {
	w.mu.Lock()
	w.reading = true
	w.moved.Broadcast()
	w.mu.Unlock()
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.heard.Store(time.Now().UnixNano())
	}
	if 0 < n && n < fewBytes {
		carrier.QuickAck(w.Conn)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = false
	if err != nil {
		w.endLocked(err)
	}
	return n, err
}

// Close closes the connection.
func (w *wire) Close() error {
	w.mu.Lock()
	w.endLocked(nil)
	w.mu.Unlock()
	return w.Conn.Close()
}

func (w *wire) endLocked(err error) {
	if !w.over {
		w.over, w.err = true, err
		w.moved.Broadcast()
	}
}

// alive says whether the connection was alive when it was called. It is what
// tells an end of a stream from the end of all: before the library shows io.EOF
// because the connection is lost, a Read here has failed, or what was read made
// no sense; and then it never reads again but closes. So a Read that waits, or
// comes, means that the peer ended the stream. (A peer that has authenticated and
// then breaks the channel protocol itself can still pass off a cut as an end. So
// it could anyway.)
//
// It waits no longer than the library takes for what it has read, and not beyond
// Close.
func (w *wire) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.over && !w.reading {
		w.moved.Wait()
	}
	return !w.over
}

// broken is why the connection is of no more use; nil while it is, and if this
// end closed it.
func (w *wire) broken() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// silent is how long nothing has arrived.
func (w *wire) silent() time.Duration {
	return time.Duration(time.Now().UnixNano() - w.heard.Load())
}
