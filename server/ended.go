// Ended streams: what is told of each stream into a node once it is over.

package server

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/tunnel"
)

// An Ended is a stream into a node that is over, or a dial that came to nothing.
type Ended struct {
	Began  time.Time
	Took   time.Duration
	Caller string // empty if nobody said
	// Node is where it led; empty if the target leads to none. Transport is the way
	// there, as metrics call it.
	Node, Transport string
	Target          string // as the caller wrote it
	// ToNode and FromNode are the bytes of payload.
	ToNode, FromNode uint64
	// Err is why the dial failed, or the first failure of the stream; nil if it was
	// closed in good order.
	Err error
}

// errGivenUp is the end of a stream that was aborted here.
var errGivenUp = &tunnel.DialError{Code: tunnel.Canceled, Text: "cut off by the caller or the server"}

// An audited conn is told of when it ends.
type audited struct {
	*conn
	tell             func(Ended)
	ended            Ended // but for what is not known before the end
	toNode, fromNode atomic.Uint64
	failed           atomic.Pointer[error] // the first failure
	over             sync.Once
}

// audit has Config.Ended told of c or, if the dial failed, of err. Dials of the server
// itself are nobody's business.
func (h *Hub) audit(ctx context.Context, addr string, w way, began time.Time, c *conn, err error) tunnel.Stream {
	who := auth.CallerOf(ctx)
	if who.Own {
		return c
	}
	e := Ended{Began: began, Caller: who.Name, Node: w.node, Transport: w.transport, Target: addr, Err: err}
	if err != nil {
		e.Took = time.Since(began)
		h.config.Ended(e)
		return nil
	}
	return &audited{conn: c, tell: h.config.Ended, ended: e}
}

func (a *audited) Read(p []byte) (int, error) {
	n, err := a.conn.Read(p)
	a.fromNode.Add(uint64(n))
	return n, a.note(err)
}

// ReadBuffer is for tunnel.Splice.
func (a *audited) ReadBuffer(b *tunnel.Buffer) (int, error) {
	n, err := a.conn.ReadBuffer(b)
	a.fromNode.Add(uint64(n))
	return n, a.note(err)
}

func (a *audited) Write(p []byte) (int, error) {
	n, err := a.conn.Write(p)
	a.toNode.Add(uint64(n))
	return n, a.note(err)
}

// ReadThrough and WriteThrough implement tunnel.Wrapper.
func (a *audited) ReadThrough() tunnel.Inner {
	return tunnel.Inner{Conn: a.conn, Moved: func(n int) { a.fromNode.Add(uint64(n)) }, Failed: a.note}
}

// WriteThrough is ReadThrough for writing.
func (a *audited) WriteThrough() tunnel.Inner {
	return tunnel.Inner{Conn: a.conn, Moved: func(n int) { a.toNode.Add(uint64(n)) }, Failed: a.note}
}

// note keeps the first failure. A caller's deadline is
// none.
func (a *audited) note(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	first := err
	if dial := (*tunnel.DialError)(nil); !errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &dial) {
		a.failed.CompareAndSwap(nil, &first)
	}
	return err
}

func (a *audited) Close() error {
	a.end(nil)
	return a.conn.Close()
}

// Abort gives the stream up.
func (a *audited) Abort() error {
	a.end(errGivenUp)
	return a.conn.Abort()
}

// end tells of the stream, once. Why is the reason if nothing failed before.
func (a *audited) end(why error) {
	a.over.Do(func() {
		e := a.ended
		e.Took, e.Err = time.Since(e.Began), why
		e.ToNode, e.FromNode = a.toNode.Load(), a.fromNode.Load()
		if failed := a.failed.Load(); failed != nil {
			e.Err = *failed
		}
		a.tell(e)
	})
}
