// Splice: copies between two connections, past their wrappers.

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Counts are bytes moved by a Splice of a and b.
type Counts struct{ AtoB, BtoA int64 }

// Splice copies both ways until both directions have ended. It owns a and b. The end of one
// direction is passed on as a half-close. If either direction fails, or ctx is done, both
// connections are aborted, so that a transfer that was cut never looks complete. The error is
// nil if both directions have ended in order.
//
// A peer that reads no more (EPIPE, or ECONNRESET of a TCP connection) may still have sent: data for
// it is discarded until its own direction has ended, and for half a second after that. What was read
// of a TCP connection before its peer reset it has a second to arrive before the abort.
//
// A connection without CloseWrite is closed when its direction ends.
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
	defer onReset(a, fail)()
	defer onReset(b, fail)()
	stop := context.AfterFunc(ctx, func() { fail(context.Cause(ctx)) })
	move := func(dst, src *end, n *int64, over func(), other context.Context) {
		var err error
		*n, err = pump(dst.Conn, src.Conn)
		dst.wrote(err)
		switch {
		case err == nil && src.wasReset():
			err = fmt.Errorf("read: %w", syscall.ECONNRESET)
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET) && dst.socket != nil && src.socket == nil:
			if err = discard(other, src); err == nil {
				over()
				return
			}
		}
		if errors.Is(err, syscall.ECONNRESET) && src.socket != nil && *n > 0 {
			select {
			case <-time.After(resetTime):
			case <-ctx.Done():
			}
		}
		if err != nil {
			fail(err)
			return
		}
		dst.closeWrite()
		over()
	}
	there, thereOver := context.WithCancel(context.Background())
	back, backOver := context.WithCancel(context.Background())
	first, second := newEnd(a), newEnd(b)
	wg.Go(func() { move(first, second, &n.BtoA, backOver, there) })
	move(second, first, &n.AtoB, thereOver, back)
	wg.Wait()
	stop()
	// A fail that is still running has no effect after this.
	once.Do(func() {
		_ = a.Close() // both directions have ended already
		_ = b.Close()
	})
	return n, failed
}

// Once the other direction has ended, discard reads for discardTime at most, and discardBytes
// at most: TCP resets a connection that is closed with unread data, and the peer would lose
// what it has not read yet (RFC 9112, section 9.6). A peer that sends more than that without
// reading is blocked by TCP for discardTime, in which it can read.
const (
	discardTime  = 500 * time.Millisecond
	discardBytes = 256 << 10
)

// discard reads and discards src until its end, or within the bounds above once the other
// direction has ended: then other is done.
func discard(other context.Context, src net.Conn) error {
	defer context.AfterFunc(other, func() {
		_ = src.SetReadDeadline(time.Now().Add(discardTime)) // if src is broken, Read says so
	})()
	for b, left := make([]byte, 8<<10), discardBytes; left > 0; {
		n, err := src.Read(b)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
		if other.Err() != nil {
			left -= n
		}
	}
	time.Sleep(discardTime)
	return nil
}

// A Resetter is a Stream that reports a reset by the peer while it is neither read nor written.
type Resetter interface {
	// OnReset makes f be called when the peer resets the stream, until stop is called. A call
	// of f may still be running when stop returns.
	OnReset(f func(error)) (stop func())
}

func onReset(c net.Conn, f func(error)) (stop func()) {
	if r, ok := c.(Resetter); ok {
		return r.OnReset(f)
	}
	return func() {}
}

// pump copies src to dst until the end of src. While it waits it holds as little memory as
// ReadBuffer or a Carrier does.
func pump(dst, src net.Conn) (n int64, err error) {
	var from, to innermost
	from.open(src, Wrapper.InnerReader)
	to.open(dst, Wrapper.InnerWriter)
	count := func(k int) {
		n += int64(k)
		from.moved(k)
		to.moved(k)
	}
	if c, ok := from.conn.(Carrier); ok {
		err = c.SpliceTo(to.conn, count)
	} else if c, ok := to.conn.(Carrier); ok {
		err = c.SpliceFrom(from.conn, count)
	} else if rerr, werr := Copy(to.conn, from.conn, count); rerr != nil {
		err = fmt.Errorf("read: %w", rerr)
	} else if werr != nil {
		err = fmt.Errorf("write: %w", werr)
	}
	if err == nil {
		return n, nil
	}
	return n, to.failed(from.failed(err))
}

// Copy copies src to dst until the end of src. While it waits it holds as little memory as
// ReadBuffer does. moved, unless nil, is called with the size of each write. The errors are
// those of Read, other than io.EOF, and of Write.
func Copy(dst io.Writer, src io.Reader, moved func(n int)) (read, write error) {
	var buf Buffer
	defer buf.Free()
	for {
		r, rerr := ReadBuffer(src, &buf)
		if r > 0 {
			w, werr := dst.Write(buf.Take(r)[:r])
			if moved != nil {
				moved(w)
			}
			if werr != nil {
				return nil, werr
			}
			buf.Fit(r)
		}
		buf.Free()
		switch {
		case rerr == nil:
		case errors.Is(rerr, io.EOF):
			return nil, nil
		default:
			return rerr, nil
		}
	}
}

// A Carrier is a Stream that copies between itself and another connection at a lower cost than
// with Read and Write, and that holds no memory while it waits for a socket.
type Carrier interface {
	Stream
	// SpliceTo copies what the peer sends to dst until its end, and SpliceFrom sends src
	// until its end. Neither closes anything. moved is called with the number of bytes of
	// each step; it must return at once and not call the stream.
	SpliceTo(dst io.Writer, moved func(n int)) error
	SpliceFrom(src io.Reader, moved func(n int)) error
}

const (
	// largeBuffer is the size of a Buffer after a large read: four TLS records.
	largeBuffer = 64 << 10
	// recordBuffer is the same for connections that need the buffer while they wait: a TLS
	// connection returns at most one record.
	recordBuffer = 16 << 10
	// smallBuffer is the size of a Buffer after a small read.
	smallBuffer = 4 << 10
)

// The pools recycle the memory of Buffers, by size. They are caches without observable state.
var largeBuffers, recordBuffers, smallBuffers = newPool(largeBuffer), newPool(recordBuffer), newPool(smallBuffer)

func newPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		p := make([]byte, size)
		return &p
	}}
}

// buffered is how many bytes all Buffers of the process hold.
var buffered atomic.Int64

// Buffered is how many bytes of memory all Buffers of the process hold, those of Splice
// among them.
func Buffered() int64 { return buffered.Load() }

// A Buffer is pooled memory to read into. It takes memory when there is something to read,
// and returns it once that was written. The zero Buffer holds none. It is for one goroutine.
type Buffer struct {
	mem       *[]byte    // nil if it holds none
	pool      *sync.Pool // of mem
	lastLarge bool       // the last read was large
	blocking  bool       // the connection needs memory while it waits
	socket    SocketReader
}

// Memory is what a SocketReader reads into, such as a Buffer.
type Memory interface {
	// Take returns memory. It is called, with 0, once the socket is readable.
	Take(want int) []byte
	// Free returns the memory to its pool. It is called if there was nothing to read after
	// all.
	Free()
}

// A BufferReader is a connection that takes memory only when there is something to read.
type BufferReader interface {
	// ReadBuffer is Read into what b.Take returns. It must not wait while b holds memory.
	// The n bytes read are b.Take(n)[:n], until b is freed.
	ReadBuffer(b *Buffer) (n int, err error)
}

// ReadBuffer reads from c into b, which holds nothing. If c is a BufferReader, a TCP
// connection or a unix socket, b holds nothing either while it waits. Any other c, such as a
// TLS connection, has to be read to learn whether there is data: then b holds 4 KiB, or
// 16 KiB after a large read.
func ReadBuffer(c io.Reader, b *Buffer) (n int, err error) {
	if r, ok := c.(BufferReader); ok {
		return r.ReadBuffer(b)
	}
	if b.socket.Open(c) {
		return b.socket.Read(b)
	}
	b.blocking = true
	return c.Read(b.Take(0))
}

// Take is the memory that b holds. If b holds none it gets some, of a size that suits want
// bytes; zero means that it is unknown how many bytes there are.
func (b *Buffer) Take(want int) []byte {
	if b.mem == nil {
		switch {
		case !b.lastLarge && want <= smallBuffer:
			b.pool = smallBuffers
		case b.blocking:
			b.pool = recordBuffers
		default:
			b.pool = largeBuffers
		}
		b.mem, _ = b.pool.Get().(*[]byte)
		buffered.Add(int64(len(*b.mem)))
	}
	return *b.mem
}

// Fit notes how many bytes the last read has returned, which decides on the size for the next
// one. After a read that has filled a small buffer it is large.
func (b *Buffer) Fit(n int) {
	enough := smallBuffer
	if b.pool == recordBuffers {
		enough = recordBuffer - smallBuffer
	}
	b.lastLarge = n >= enough
}

// Free returns the memory that b holds to its pool.
func (b *Buffer) Free() {
	if b.mem != nil {
		buffered.Add(-int64(len(*b.mem)))
		b.pool.Put(b.mem)
		b.mem, b.pool = nil, nil
	}
}

// Give transfers the memory that b holds to the caller; Buffered does not count it any more.
// The caller calls free once, or leaves the memory to the garbage collector.
func (b *Buffer) Give() (free func()) {
	mem, pool := b.mem, b.pool
	buffered.Add(-int64(len(*mem)))
	b.mem, b.pool = nil, nil
	return func() { pool.Put(mem) }
}

// A Wrapper is a connection around another one that passes its bytes on unchanged. Splice
// copies past it.
type Wrapper interface {
	net.Conn
	// InnerReader is what to read in place of the wrapper, and InnerWriter what to write to.
	// They may wait as Read and Write would. No Conn means that the wrapper is needed.
	InnerReader() Inner
	InnerWriter() Inner
}

// An Inner is the connection inside a Wrapper, for one direction.
type Inner struct {
	Conn net.Conn
	// Moved is called with the number of bytes of each step, and must return at once; it may
	// be nil.
	Moved func(n int)
	// Failed translates an error; it may be nil.
	Failed func(error) error
}

// An innermost is the connection inside all wrappers of a connection, for one direction.
type innermost struct {
	conn     net.Conn
	wrappers []Inner // the outermost first
}

func (i *innermost) open(c net.Conn, inner func(Wrapper) Inner) {
	for i.conn = c; ; {
		w, ok := i.conn.(Wrapper)
		if !ok {
			return
		}
		next := inner(w)
		if next.Conn == nil {
			return
		}
		i.conn, i.wrappers = next.Conn, append(i.wrappers, next)
	}
}

func (i *innermost) moved(n int) {
	for _, w := range i.wrappers {
		if w.Moved != nil {
			w.Moved(n)
		}
	}
}

func (i *innermost) failed(err error) error {
	for _, w := range slices.Backward(i.wrappers) {
		if w.Failed != nil {
			err = w.Failed(err)
		}
	}
	return err
}

// A Tap is a Stream around Conn that reports what happens on it. It is an Aborter. If Conn has
// no CloseWrite, CloseWrite closes it.
type Tap struct {
	net.Conn
	// Received and Sent are called with the number of bytes of each read and write; they may
	// be nil.
	Received, Sent func(n int)
	// Failed translates errors of Read, io.EOF among them, and of Write; it may be nil.
	Failed func(error) error
	// Ended is called once, after Conn was closed or aborted; it may be nil.
	Ended func(aborted bool)

	endedOnce sync.Once
}

func (t *Tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	return t.counted(t.Received, n, err)
}

// ReadBuffer implements BufferReader. While it waits it holds nothing if Conn does not.
func (t *Tap) ReadBuffer(b *Buffer) (int, error) {
	n, err := ReadBuffer(t.Conn, b)
	return t.counted(t.Received, n, err)
}

func (t *Tap) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	return t.counted(t.Sent, n, err)
}

func (t *Tap) counted(count func(int), n int, err error) (int, error) {
	if count != nil {
		count(n)
	}
	if err != nil && t.Failed != nil {
		err = t.Failed(err)
	}
	return n, err
}

// InnerReader implements Wrapper.
func (t *Tap) InnerReader() Inner { return Inner{Conn: t.Conn, Moved: t.Received, Failed: t.Failed} }

// InnerWriter implements Wrapper.
func (t *Tap) InnerWriter() Inner { return Inner{Conn: t.Conn, Moved: t.Sent, Failed: t.Failed} }

// OnReset implements Resetter, if Conn does.
func (t *Tap) OnReset(f func(error)) (stop func()) {
	return onReset(t.Conn, func(err error) {
		if t.Failed != nil {
			err = t.Failed(err)
		}
		f(err)
	})
}

// CloseWrite ends our direction.
func (t *Tap) CloseWrite() error { return CloseWrite(t.Conn) }

// Close ends both directions.
func (t *Tap) Close() error {
	err := t.Conn.Close()
	t.ended(false)
	return err
}

// Abort gives the connection up.
func (t *Tap) Abort() error {
	err := Abort(t.Conn)
	t.ended(true)
	return err
}

func (t *Tap) ended(aborted bool) {
	if t.Ended != nil {
		t.endedOnce.Do(func() { t.Ended(aborted) })
	}
}
