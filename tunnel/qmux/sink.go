// Sink: where a stream's bytes go, written by whoever brings them if that need not
// wait.

package qmux

import (
	"errors"
	"io"
	"net"

	"github.com/hawser-project/hawser/tunnel"
)

// A sink is what a WriteTo writes to.
type sink struct {
	w     io.Writer
	moved func(n int)

	// Whoever has made the stream busy owns the following.
	socket tunnel.SocketWriter // of w, if open
	open   bool
	err    error // of socket
}

// deliverLocked writes data to the sink as far as that takes it without waiting, and
// says how much that was. It unlocks the session meanwhile. Whoever reads a connection
// so wakes nobody up for what it brings.
func (st *stream) deliverLocked(data []byte) int {
	in := &st.in
	k := in.sink
	if !k.open || k.err != nil {
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

// WriteTo is SpliceTo for any writer.
func (st *stream) WriteTo(w io.Writer) (n int64, err error) {
	err = st.deliverAll(w, func(k int) { n += int64(k) })
	return n, err
}

// SpliceTo writes to dst what the peer sends, until its end. While it waits it holds no
// memory. If dst is a socket, what comes is written by whoever brings it, as far as dst
// takes it at once.
func (st *stream) SpliceTo(dst net.Conn, moved func(n int)) error { return st.deliverAll(dst, moved) }

func (st *stream) deliverAll(w io.Writer, moved func(n int)) error {
	st.rmu.Lock()
	defer st.rmu.Unlock()
	k := &sink{w: w, moved: moved}
	k.open = k.socket.Open(w)
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	in := &st.in
	defer func() {
		in.sink = nil
		for in.busy { // whoever writes is about to be done: it does not wait
			st.s.mu.Unlock()
			<-in.wake
			st.s.mu.Lock()
		}
	}()
	for {
		err := st.readableLocked()
		switch {
		case in.busy: // it is known soon whether something is left; the sink is another's
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
		deadline := in.deadline
		st.s.mu.Unlock()
		wait(in.wake, deadline)
		st.s.mu.Lock()
	}
}

// drainLocked writes all pieces to the sink, which may take its time.
func (st *stream) drainLocked(k *sink) error {
	in := &st.in
	pieces := in.pieces
	in.pieces = nil
	in.busy = true
	st.s.mu.Unlock()
	bufs := make(net.Buffers, 0, len(pieces))
	total := 0
	for _, g := range pieces {
		bufs = append(bufs, g.b.buf[g.from:g.to])
		total += g.to - g.from
	}
	var err error
	if len(bufs) == 1 {
		_, err = k.w.Write(bufs[0])
	} else {
		_, err = bufs.WriteTo(k.w)
	}
	st.s.mu.Lock()
	in.busy = false
	for i := range pieces {
		st.releaseLocked(&pieces[i])
	}
	if err == nil {
		k.moved(total)
	}
	if err == nil && !st.closed {
		st.consumedLocked(total)
	}
	return err
}
