// Ended streams: what is told of each stream into a node once it is over.

package server

import (
	"context"
	"errors"
	"io"
	"os"
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
	return audited(c, e, h.config.Ended)
}

// audited is c of whose end tell is told, with what is not known before it added to e.
func audited(c *conn, e Ended, tell func(Ended)) tunnel.Stream {
	var (
		toNode, fromNode atomic.Uint64
		first            atomic.Pointer[error]
	)
	return &conn{remote: c.remote, Tap: tunnel.Tap{
		Conn:     c,
		Received: func(n int) { fromNode.Add(uint64(n)) },
		Sent:     func(n int) { toNode.Add(uint64(n)) },
		Failed: func(err error) error {
			if failure(err) {
				first.CompareAndSwap(nil, &err)
			}
			return err
		},
		Ended: func(aborted bool) {
			e.Took = time.Since(e.Began)
			e.ToNode, e.FromNode = toNode.Load(), fromNode.Load()
			if failed := first.Load(); failed != nil {
				e.Err = *failed
			} else if aborted {
				e.Err = errGivenUp
			}
			tell(e)
		},
	}}
}

// failure says whether err is one of the stream's: a caller's deadline is none.
func failure(err error) bool {
	if errors.Is(err, io.EOF) {
		return false
	}
	var dial *tunnel.DialError
	return !errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &dial)
}
