// Unanswered: a stream that is handed to the kubelet API of this process.

package agent

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// An unanswered stream is one whose opener has no answer yet. The first use accepts it, and
// Close before any use rejects it. So the answer is whether the kubelet API took the stream.
// It is a tunnel.Stream and a tunnel.Aborter.
type unanswered struct {
	request *tunnel.Request
	addr    net.Addr // the kubelet API's

	once   sync.Once
	stream tunnel.Stream // set by once; one that fails if the answer did, or was a rejection
}

func (c *unanswered) accepted() tunnel.Stream {
	c.once.Do(func() {
		var err error
		if c.stream, err = c.request.Accept(); err != nil {
			c.stream = c.failed(err)
		}
	})
	return c.stream
}

// rejected rejects the stream if it has no answer yet.
func (c *unanswered) rejected() (err error) {
	c.once.Do(func() {
		c.stream = c.failed(net.ErrClosed)
		err = c.request.Reject(tunnel.Refused, "the kubelet API does not take connections now")
	})
	return err
}

// failed is a stream that can neither be read nor written, because of err.
func (c *unanswered) failed(err error) tunnel.Stream {
	near, far := memnet.Pipe(c.LocalAddr(), c.RemoteAddr())
	far.CloseWriteWithError(err)
	far.CloseReadWithError(err)
	return near
}

// InnerReader implements tunnel.Wrapper.
func (c *unanswered) InnerReader() tunnel.Inner { return tunnel.Inner{Conn: c.accepted()} }

// InnerWriter implements tunnel.Wrapper.
func (c *unanswered) InnerWriter() tunnel.Inner { return c.InnerReader() }

func (c *unanswered) Read(p []byte) (int, error)  { return c.accepted().Read(p) }
func (c *unanswered) Write(p []byte) (int, error) { return c.accepted().Write(p) }
func (c *unanswered) CloseWrite() error           { return c.accepted().CloseWrite() }
func (c *unanswered) Close() error                { return errors.Join(c.rejected(), c.stream.Close()) }

func (c *unanswered) Abort() error                       { return errors.Join(c.rejected(), tunnel.Abort(c.stream)) }
func (c *unanswered) LocalAddr() net.Addr                { return c.addr }
func (c *unanswered) RemoteAddr() net.Addr               { return c.request.RemoteAddr() }
func (c *unanswered) SetDeadline(t time.Time) error      { return c.accepted().SetDeadline(t) }
func (c *unanswered) SetReadDeadline(t time.Time) error  { return c.accepted().SetReadDeadline(t) }
func (c *unanswered) SetWriteDeadline(t time.Time) error { return c.accepted().SetWriteDeadline(t) }

var (
	_ tunnel.Stream  = (*unanswered)(nil)
	_ tunnel.Aborter = (*unanswered)(nil)
	_ tunnel.Wrapper = (*unanswered)(nil)
)
