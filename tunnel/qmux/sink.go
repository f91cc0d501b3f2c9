// Sink: the writer that a stream's data goes to. The goroutine that reads the connection
// writes to it directly as long as that does not block.

package qmux

import (
	"errors"
	"io"
	"net"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A sink is the destination of a WriteTo.
type sink struct {
	w     io.Writer
	moved func(n int)

	// Owned by the goroutine that has set busy.
	socket    tunnel.SocketWriter // of w, if hasSocket
	hasSocket bool
	err       error // of socket
}

// deliverLocked writes as much of data to the sink as it takes without blocking, and
// returns how much that was. It unlocks the session meanwhile. No other goroutine needs
// to be woken for data that it writes.
func (st *stream) deliverLocked(data []byte) int {
	in := &st.in
	k := in.sink
	if !k.hasSocket || k.err != nil {
		return 0
	}
	in.busy = true
	st.s.mu.Unlock()
	held := len(data) > record/2 && beginBulk()
	n, err := k.socket.Write(data)
	if held {
		endBulk()
	}
	st.s.mu.Lock()
	in.busy = false
	k.err = err
	if n > 0 {
		k.moved(n)
	}
	if k.err != nil || in.sink == nil || in.state != recvOpen || st.closed {
		notify(in.wake)
	}
	return n
}

// WriteTo is SpliceTo that counts the bytes itself.
func (st *stream) WriteTo(w io.Writer) (n int64, err error) {
	err = st.SpliceTo(w, func(k int) { n += int64(k) })
	return n, err
}

// SpliceTo writes what the peer sends to dst, until its end. While it waits it holds no
// memory. If dst is a socket, the goroutine that reads the connection writes to it as far
// as it takes data at once.
func (st *stream) SpliceTo(dst io.Writer, moved func(n int)) error {
	st.rmu.Lock()
	defer st.rmu.Unlock()
	k := &sink{w: dst, moved: moved}
	k.hasSocket = k.socket.Open(dst)
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	in := &st.in
	defer func() {
		in.sink = nil
		for in.busy { // deliverLocked does not block for long
			st.waitLocked(in.wake, time.Time{})
		}
	}()
	for {
		err := st.readableLocked()
		switch {
		case in.busy: // deliverLocked owns the sink and wakes this goroutine
		case k.err != nil:
			return k.err
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return st.opError("read", err)
		case len(in.pieces) > 0:
			if err := st.drainLocked(k); err != nil {
				return err
			}
			continue
		}
		in.sink = k
		st.waitLocked(in.wake, in.deadline)
	}
}

// drainLocked writes all pieces to the sink, and may block.
func (st *stream) drainLocked(k *sink) error {
	in := &st.in
	pieces := in.pieces
	in.pieces = nil
	in.busy = true
	st.s.mu.Unlock()
	bufs := make(net.Buffers, 0, len(pieces))
	for _, g := range pieces {
		bufs = append(bufs, g.b.buf[g.from:g.to])
	}
	total, err := bufs.WriteTo(k.w)
	st.s.mu.Lock()
	in.busy = false
	for i := range pieces {
		st.releaseLocked(&pieces[i])
	}
	if err == nil {
		k.moved(int(total))
	}
	if err == nil && !st.closed {
		st.consumedLocked(int(total))
	}
	return err
}
