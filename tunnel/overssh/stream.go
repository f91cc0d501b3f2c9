// Stream: an SSH channel as tunnel wants it.

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

// lingerTime is how long a closed stream tries to send what was written before it gives
// up.
const lingerTime = 10 * time.Second

// A stream is a tunnel.Stream and a tunnel.Aborter: one end of a connection in
// memory, which has the bounds and the deadlines. Two goroutines copy between the
// other end and the channel, whose calls cannot be interrupted.
type stream struct {
	*memnet.Conn
	far     *memnet.Conn // the other end
	session *Session
	ch      ssh.Channel
	sent    chan struct{} // closed when all was sent that could be
	over    chan struct{} // closed when nothing moves any more
	closing sync.Once
}

func newStream(s *Session, ch ssh.Channel, t target) *stream {
	near, far := memnet.Pipe(s.wire.LocalAddr(), tunnel.Addr(t.addr))
	return &stream{Conn: near, far: far, session: s, ch: ch, sent: make(chan struct{}), over: make(chan struct{})}
}

// meaning is what an error of the channel's stands for. It has io.EOF for all that
// the peer does; orderly is what that is if the peer ended no more than the stream.
func (st *stream) meaning(err, orderly error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return st.session.lost(err)
	case st.session.wire.alive():
		return orderly
	default:
		<-st.session.Alive().Done() // then it is known why
		return context.Cause(st.session.Alive())
	}
}

// run moves bytes until both directions have ended, or the session has.
func (st *stream) run(requests <-chan *ssh.Request) {
	defer close(st.over)
	alive := st.session.Alive()
	defer context.AfterFunc(alive, func() {
		st.far.CloseWriteWithError(context.Cause(alive))
		st.far.CloseReadWithError(context.Cause(alive))
	})()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { ssh.DiscardRequests(requests) })
	wg.Go(st.up)
	st.down()
}

// up sends what was written, and our end.
func (st *stream) up() {
	defer close(st.sent)
	rerr, werr := tunnel.Copy(st.ch, st.far, nil)
	switch {
	case werr != nil:
		st.far.CloseReadWithError(st.meaning(werr, syscall.EPIPE))
	case rerr == nil: // else it was aborted, or refused
		_ = st.ch.CloseWrite() // fails only if the peer or the session was first
	}
}

// down fetches what the target sends, and its end.
func (st *stream) down() {
	rerr, werr := tunnel.Copy(st.far, st.ch, nil)
	if werr == nil { // else nobody wants it
		st.far.CloseWriteWithError(st.meaning(cmp.Or(rerr, io.EOF), io.EOF))
	}
}

// Close ends both directions. What was written before is still sent, for as long
// as ten seconds.
func (st *stream) Close() error {
	st.finish(st.Conn.Close, lingerTime)
	return nil
}

// Abort ends both directions at once and throws away what was not sent. SSH
// cannot say that to the target, which sees an orderly end.
func (st *stream) Abort() error {
	st.finish(st.Conn.Abort, 0)
	return nil
}

// finish closes the connection in memory and then, beside the caller, lets up send
// what is left, closes the channel and gives back what the stream held.
func (st *stream) finish(closed func() error, linger time.Duration) {
	st.closing.Do(func() {
		_ = closed() // never fails
		rest := func() {
			select {
			case <-st.sent:
			case <-st.session.Alive().Done():
			case <-time.After(linger):
			}
			_ = st.ch.Close() // fails only if the peer or the session was first
			<-st.over
			<-st.session.tokens
		}
		if !st.session.Go(rest) {
			rest() // the session is over: nothing in it waits
		}
	})
}

var _ tunnel.Aborter = (*stream)(nil)
