// Splice: two connections made one.

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Counts are bytes moved by a Splice of a and b.
type Counts struct{ AtoB, BtoA int64 }

// Splice copies both ways until both directions have ended, and owns a and b
// from here on. The end of one direction is passed on as a half-close. If either
// direction fails, or ctx is done, both connections are aborted, so that no cut
// transfer looks complete to anybody. The error is nil if both directions came
// to an orderly end.
//
// An end without CloseWrite is closed when its direction ends.
func Splice(ctx context.Context, a, b net.Conn) (Counts, error) {
	var (
		n      Counts
		once   sync.Once
		failed error
		wg     sync.WaitGroup
	)
	fail := func(err error) {
		once.Do(func() {
			failed = err
			abortQuietly(a)
			abortQuietly(b)
		})
	}
	stop := context.AfterFunc(ctx, func() { fail(context.Cause(ctx)) })
	wg.Go(func() {
		var err error
		if n.BtoA, err = pump(a, b); err != nil {
			fail(err)
		}
	})
	var err error
	if n.AtoB, err = pump(b, a); err != nil {
		fail(err)
	}
	wg.Wait()
	stop()
	// Whoever comes last through once closes; a fail still on its way then
	// finds nothing to do.
	once.Do(func() {
		_ = a.Close() // both directions have ended already
		_ = b.Close()
	})
	return n, failed
}

// pump moves what src has to dst until src ends, and then ends dst's direction. While it
// waits for something to read it holds as little as ReadBuffer says, or as a Carrier.
func pump(dst, src net.Conn) (n int64, err error) {
	from, to := through(src, Wrapper.ReadThrough), through(dst, Wrapper.WriteThrough)
	count := func(k int) {
		n += int64(k)
		from.moved(k)
		to.moved(k)
	}
	if c, ok := from.Conn.(Carrier); ok {
		err = c.SpliceTo(to.Conn, count)
	} else if c, ok := to.Conn.(Carrier); ok {
		err = c.SpliceFrom(from.Conn, count)
	} else {
		n, err = copyBuffered(dst, src)
	}
	if err == nil {
		// If this fails dst is broken, and its other direction will say so.
		_ = CloseWrite(dst)
		return n, nil
	}
	return n, to.failed(from.failed(err))
}

func copyBuffered(dst, src net.Conn) (n int64, err error) {
	var buf Buffer
	defer buf.Free()
	for {
		r, rerr := ReadBuffer(src, &buf)
		if r > 0 {
			w, werr := dst.Write(buf.Take(r)[:r])
			n += int64(w)
			if werr != nil {
				return n, fmt.Errorf("write: %w", werr)
			}
			buf.fit(r)
		}
		buf.Free()
		switch {
		case rerr == nil:
		case errors.Is(rerr, io.EOF):
			return n, nil
		default:
			return n, fmt.Errorf("read: %w", rerr)
		}
	}
}
