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

const (
	// bulkBuffer is what one direction of a spliced pair holds while there is
	// much to move. Larger buffers mean fewer and larger frames on the tunnel;
	// 64 KiB is four TLS records.
	bulkBuffer = 64 << 10
	// littleBuffer is what it holds while there is not, which for most streams
	// is most of the time.
	littleBuffer = 4 << 10
)

// The pools recycle splice buffers. They are caches and hold nothing that anybody
// could observe.
var (
	bulkBuffers   = sync.Pool{New: func() any { return new([bulkBuffer]byte) }}
	littleBuffers = sync.Pool{New: func() any { return new([littleBuffer]byte) }}
)

// A spliceBuffer is as large as what comes. The zero spliceBuffer is little.
type spliceBuffer struct {
	bulk   *[bulkBuffer]byte // nil while there is little to move
	little *[littleBuffer]byte
}

// bytes is where to read to.
func (b *spliceBuffer) bytes() []byte {
	if b.bulk != nil {
		return b.bulk[:]
	}
	if b.little == nil {
		b.little = littleBuffers.Get().(*[littleBuffer]byte)
	}
	return b.little[:]
}

// fit chooses the size for the next read by what the last one has brought: one
// that fills a little buffer calls for a large one, and one that would have fitted
// calls for a little one again. Nothing read may be in use any more.
func (b *spliceBuffer) fit(read int) {
	switch {
	case b.bulk == nil && read == littleBuffer:
		b.free()
		b.bulk = bulkBuffers.Get().(*[bulkBuffer]byte)
	case b.bulk != nil && read < littleBuffer:
		b.free()
	}
}

// free gives the buffer back.
func (b *spliceBuffer) free() {
	if b.bulk != nil {
		bulkBuffers.Put(b.bulk)
	}
	if b.little != nil {
		littleBuffers.Put(b.little)
	}
	b.bulk, b.little = nil, nil
}

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

// pump copies src to dst until src ends and then ends dst's direction.
func pump(dst, src net.Conn) (n int64, err error) {
	var buf spliceBuffer
	defer buf.free()
	for {
		p := buf.bytes()
		r, rerr := src.Read(p)
		if r > 0 {
			w, werr := dst.Write(p[:r])
			n += int64(w)
			if werr != nil {
				return n, fmt.Errorf("write: %w", werr)
			}
			buf.fit(r)
		}
		switch {
		case rerr == nil:
		case errors.Is(rerr, io.EOF):
			// If this fails dst is broken, and its other direction will say so.
			_ = CloseWrite(dst)
			return n, nil
		default:
			return n, fmt.Errorf("read: %w", rerr)
		}
	}
}
