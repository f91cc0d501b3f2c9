// Stream: an SSH channel as a tunnel.Stream.

package overssh

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// lingerTime bounds how long a closed stream still sends what was written.
const lingerTime = 10 * time.Second

// A stream is what is behind a tunnel.Stream of a session. That one is an end of a pipe in
// memory, which has the bounds and the deadlines. Two goroutines copy between the other end and
// the channel, whose calls cannot be interrupted.
type stream struct {
	far     *memnet.Conn // the other end of the pipe
	session *Session
	ch      ssh.Channel
	sent    chan struct{} // closed when send has ended
	done    chan struct{} // closed when run has ended
}

// channelError translates an error of the channel. The library returns io.EOF for everything
// that the peer does; orderly is the result if the peer has ended only the stream.
func (st *stream) channelError(err, orderly error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return st.session.lost(err)
	case st.session.wire.alive():
		return orderly
	default:
		<-st.session.Alive().Done() // then its cause is known
		return context.Cause(st.session.Alive())
	}
}

// run copies until both directions or the session have ended.
func (st *stream) run(requests <-chan *ssh.Request) {
	defer close(st.done)
	alive := st.session.Alive()
	defer context.AfterFunc(alive, func() {
		st.far.CloseWriteWithError(context.Cause(alive))
		st.far.CloseReadWithError(context.Cause(alive))
	})()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { ssh.DiscardRequests(requests) })
	wg.Go(st.send)
	st.receive()
}

// send copies what was written to the channel, and ends our direction.
func (st *stream) send() {
	defer close(st.sent)
	rerr, werr := tunnel.Copy(st.ch, st.far, nil)
	switch {
	case werr != nil:
		st.far.CloseReadWithError(st.channelError(werr, syscall.EPIPE))
	case rerr == nil: // else it was aborted, or refused
		_ = st.ch.CloseWrite() // fails only if the peer or the session was first
	}
}

// receive copies what the target sends to the pipe, and its end.
func (st *stream) receive() {
	rerr, werr := tunnel.Copy(st.far, st.ch, nil)
	if werr == nil { // else the stream was closed
		st.far.CloseWriteWithError(st.channelError(cmp.Or(rerr, io.EOF), io.EOF))
	}
}

// finish ends both directions once the pipe was closed or aborted. In a goroutine it waits for
// send, closes the channel and releases the place in Opened. After Close what was written is
// still sent, for at most lingerTime. Abort discards it; SSH has no reset, and the target sees an
// orderly end.
func (st *stream) finish(aborted bool) {
	linger := lingerTime
	if aborted {
		linger = 0
	}
	rest := func() {
		select {
		case <-st.sent:
		case <-st.session.Alive().Done():
		case <-time.After(linger):
		}
		_ = st.ch.Close() // fails only if the peer or the session was first
		<-st.done
		<-st.session.Opened
	}
	if !st.session.Go(rest) {
		rest() // the session has ended: this does not block
	}
}
