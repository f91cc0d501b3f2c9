// Ended streams: the record of each finished stream into a node.

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

// An Ended is a finished stream into a node, or a failed dial.
type Ended struct {
	Began  time.Time
	Took   time.Duration
	Caller string // empty if unknown
	// Node is the node that was dialed; empty if no node has the target. Transport is its
	// transport, as in metrics.
	Node, Transport string
	Target          string // as the caller wrote it
	// ToNode and FromNode are the bytes of payload.
	ToNode, FromNode uint64
	// Err is why the dial failed, or the first failure of the stream; nil if it was closed
	// normally.
	Err error
}

// errGivenUp is the error of a stream that was aborted at this end.
var errGivenUp = &tunnel.DialError{Code: tunnel.Canceled, Text: "cut off by the caller or the server"}

// audit reports c, or the dial's err, to Config.Ended. Dials of the server itself are not
// reported.
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

// audited wraps c so that tell is called when it ends, with e completed.
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

// failure reports whether err is a failure of the stream. A caller's deadline is not.
func failure(err error) bool {
	if errors.Is(err, io.EOF) {
		return false
	}
	var dial *tunnel.DialError
	return !errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &dial)
}
