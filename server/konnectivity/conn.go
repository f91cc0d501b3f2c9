// A connection: one dial of a call, and the data in both directions.

package konnectivity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/hawser-project/hawser/tunnel"
)

// A conn is owned by the goroutine of run.
type conn struct {
	call   *call
	random int64
	id     int64           // guarded by call.mu; 0 until it is open
	ctx    context.Context // when it is done the dial or the target is aborted
	cancel context.CancelCauseFunc
	target net.Conn // set before the conn is open

	in           *queue // data from the client
	received     chan struct{}
	markReceived func()      // closes received
	closing      atomic.Bool // the client has sent CLOSE_REQ
}

func newConn(c *call, random int64) *conn {
	k := &conn{call: c, random: random, in: newQueue(), received: make(chan struct{})}
	k.ctx, k.cancel = context.WithCancelCause(c.ctx)
	k.markReceived = sync.OnceFunc(func() { close(k.received) })
	return k
}

// refuse sends the error of a dial that is not made.
func (k *conn) refuse(err error) {
	defer k.call.done()
	defer k.cancel(nil)
	k.call.forget(k)
	_ = k.call.answer(k.random, 0, err) // it fails if the client is gone
}

// run dials addr, answers, and copies between target and client. It counts as one of the
// Server's connections until it returns.
func (k *conn) run(addr string) {
	defer k.call.done()
	defer k.cancel(nil)
	defer k.call.conns.Add(-1)
	err := k.dial(addr)
	if err == nil && !k.call.opened(k) {
		_ = tunnel.Abort(k.target)
		err = context.Cause(k.ctx)
	}
	if err != nil {
		k.call.cfg.Log.Debug("dial failed", "client", k.call.client, "target", clip(addr), "err", err)
		k.call.forget(k)
		if k.ctx.Err() == nil { // else the client waits for no answer
			_ = k.call.answer(k.random, 0, err)
		}
		return
	}
	open := k.call.metrics.Open
	open.Inc()
	defer open.Dec()
	if err = k.call.answer(k.random, k.id, nil); err != nil {
		k.cancel(errGone)
	}
	if err = k.join(); err != nil {
		k.call.cfg.Log.Debug("connection ended early", "client", k.call.client, "target", clip(addr), "err", err)
	}
	k.call.forget(k)
	_ = k.call.over(k.id, err)
}

func (k *conn) dial(addr string) (err error) {
	ctx, cancel := context.WithTimeout(k.ctx, k.call.cfg.DialTimeout)
	defer cancel()
	began := time.Now()
	k.target, err = k.call.cfg.Dial(ctx, "tcp", addr)
	k.call.metrics.Dialed(tunnel.CodeOf(err), time.Since(began))
	return err
}

// join copies in both directions until the connection ends, and closes the target. The
// error is nil if one end has closed the connection.
func (k *conn) join() error {
	abort := context.AfterFunc(k.ctx, func() { _ = tunnel.Abort(k.target) })
	var taken, given int64
	var writing sync.WaitGroup
	writing.Go(func() {
		var err error
		if taken, err = k.toTarget(); err != nil {
			k.cancel(fmt.Errorf("write to target: %w", err))
		}
	})
	given, err := k.toClient()
	switch {
	case err == nil: // the rest is written to the target, within drainTimeout
		k.in.end()
		k.limit()
	case k.closing.Load() && k.ctx.Err() == nil: // it was closed here
		err = nil
	default:
		k.cancel(err)
	}
	writing.Wait()
	k.call.metrics.Moved(taken, given)
	if !abort() {
		return context.Cause(k.ctx)
	}
	_ = k.target.Close()
	return err
}

// finish ends the connection on behalf of the client: the rest is written to the target,
// within drainTimeout, and the target is closed.
func (k *conn) finish() {
	if k.closing.Swap(true) {
		return
	}
	k.markReceived()
	k.in.end()
	k.limit()
}

// limit bounds the time for the rest of a connection that one end has ended.
func (k *conn) limit() {
	t := time.AfterFunc(drainTimeout, func() { k.cancel(errNotTaken) })
	context.AfterFunc(k.ctx, func() { t.Stop() })
}

// toTarget writes the client's data to the target until its end. Then it closes the
// target if the client has sent CLOSE_REQ. A target that reads no more (EPIPE) may still
// send: data for it is dropped.
func (k *conn) toTarget() (n int64, err error) {
	for {
		parts, ok := k.in.take(k.ctx)
		if !ok {
			break
		}
		for len(parts) > 0 {
			w, took, err := k.write(parts)
			n += int64(w)
			if err != nil && !errors.Is(err, syscall.EPIPE) {
				return n, err
			}
			k.in.written(parts[:took])
			parts = parts[took:]
		}
	}
	if k.closing.Load() && k.ctx.Err() == nil {
		_ = k.target.Close()
	}
	return n, nil
}

// gather is how many bytes are written to a target in one call: as many as a tunnel sends
// at a time.
const gather = 64 << 10

// write writes the n bytes of parts to the target. took is how many were written.
func (k *conn) write(parts mem.BufferSlice) (n, took int, err error) {
	first := parts[0].ReadOnlyData()
	if len(parts) == 1 || len(first) >= gather {
		n, err = k.target.Write(first)
		return n, 1, err
	}
	var buf tunnel.Buffer
	defer buf.Free()
	all := buf.Take(min(parts.Len(), gather))[:0]
	for _, p := range parts {
		if len(all)+p.Len() > cap(all) {
			break
		}
		all = append(all, p.ReadOnlyData()...)
		took++
	}
	n, err = k.target.Write(all)
	return n, took, err
}

// toClient sends the target's data to the client until its end.
func (k *conn) toClient() (n int64, err error) {
	if !k.patient() {
		return 0, context.Cause(k.ctx)
	}
	var buf tunnel.Buffer
	defer buf.Free()
	for {
		r, rerr := tunnel.ReadBuffer(k.target, &buf)
		if r > 0 {
			buf.Fit(r)
			if err := k.call.send(k.ctx, &data{k.id, mem.BufferSlice{given(&buf, r)}}); err != nil {
				return n, fmt.Errorf("send: %w", err)
			}
			n += int64(r)
		}
		buf.Free()
		switch {
		case rerr == nil:
		case errors.Is(rerr, io.EOF):
			return n, nil
		default:
			return n, fmt.Errorf("read from target: %w", rerr)
		}
	}
}

// patient waits until the client has had time to read the answer to its dial; false if
// the connection ends before.
func (k *conn) patient() bool {
	select {
	case <-k.received:
	case <-time.After(k.call.hold):
	case <-k.ctx.Done():
		return false
	}
	return true
}
