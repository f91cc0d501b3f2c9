// Unanswered: a stream that is handed to the kubelet API of this process.

package agent

import (
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// An unanswered stream is one whose opener has no answer yet. The first use accepts it, and
// Close before any use rejects it. So the answer is whether the kubelet API took the stream.
// It is a tunnel.Stream and a tunnel.Aborter.
type unanswered struct {
	request *tunnel.Request
	addr    net.Addr // the kubelet API's

	once   sync.Once
	stream tunnel.Stream // nil if the answer failed or was a rejection
	err    error
}

func (c *unanswered) accepted() (tunnel.Stream, error) {
	c.once.Do(func() { c.stream, c.err = c.request.Accept() })
	return c.stream, c.err
}

// rejected rejects the stream if it has no answer yet. It returns the stream if it was
// accepted.
func (c *unanswered) rejected() (tunnel.Stream, error) {
	var err error
	c.once.Do(func() {
		c.err = net.ErrClosed
		err = c.request.Reject(tunnel.Refused, "the kubelet API does not take connections now")
	})
	return c.stream, err
}

func (c *unanswered) Read(p []byte) (int, error) {
	s, err := c.accepted()
	if err != nil {
		return 0, err
	}
	return s.Read(p)
}

// InnerReader implements tunnel.Wrapper.
func (c *unanswered) InnerReader() tunnel.Inner {
	s, err := c.accepted()
	if err != nil {
		return tunnel.Inner{} // Read returns the error
	}
	return tunnel.Inner{Conn: s}
}

// InnerWriter implements tunnel.Wrapper.
func (c *unanswered) InnerWriter() tunnel.Inner { return c.InnerReader() }

func (c *unanswered) Write(p []byte) (int, error) {
	s, err := c.accepted()
	if err != nil {
		return 0, err
	}
	return s.Write(p)
}

func (c *unanswered) CloseWrite() error {
	s, err := c.accepted()
	if err != nil {
		return err
	}
	return s.CloseWrite()
}

func (c *unanswered) Close() error {
	if s, err := c.rejected(); s == nil {
		return err
	}
	return c.stream.Close()
}

func (c *unanswered) Abort() error {
	if s, err := c.rejected(); s == nil {
		return err
	}
	return tunnel.Abort(c.stream)
}

func (c *unanswered) LocalAddr() net.Addr  { return c.addr }
func (c *unanswered) RemoteAddr() net.Addr { return c.request.RemoteAddr() }

func (c *unanswered) SetDeadline(t time.Time) error {
	s, err := c.accepted()
	if err != nil {
		return err
	}
	return s.SetDeadline(t)
}

func (c *unanswered) SetReadDeadline(t time.Time) error {
	s, err := c.accepted()
	if err != nil {
		return err
	}
	return s.SetReadDeadline(t)
}

func (c *unanswered) SetWriteDeadline(t time.Time) error {
	s, err := c.accepted()
	if err != nil {
		return err
	}
	return s.SetWriteDeadline(t)
}

var (
	_ tunnel.Stream  = (*unanswered)(nil)
	_ tunnel.Aborter = (*unanswered)(nil)
	_ tunnel.Wrapper = (*unanswered)(nil)
)
