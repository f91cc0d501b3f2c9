// Splice: two connections made one, and the wrappers that it leaves out.

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

// Splice copies both ways until both directions have ended, and owns a and b
// from here on. The end of one direction is passed on as a half-close. If either
// direction fails, or ctx is done, both connections are aborted, so that no cut
// transfer looks complete to anybody. The error is nil if both directions came
// to an orderly end.
//
// A peer that reads no more (EPIPE) may still have something to say: what it is sent is
// thrown away, until its own direction has ended and for half a second after that.
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
	defer onReset(a, fail)()
	defer onReset(b, fail)()
	stop := context.AfterFunc(ctx, func() { fail(context.Cause(ctx)) })
	move := func(dst, src net.Conn, n *int64, over chan<- struct{}, other <-chan struct{}) {
		var err error
		if *n, err = pump(dst, src); errors.Is(err, syscall.EPIPE) {
			err = discard(src, other)
		}
		if err != nil {
			fail(err)
			return
		}
		close(over)
	}
	there, back := make(chan struct{}), make(chan struct{})
	wg.Go(func() { move(a, b, &n.BtoA, back, there) })
	move(b, a, &n.AtoB, there, back)
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

// linger is how long what nobody reads is taken, and lingerBytes how much of it, once
// nothing more can come the other way: TCP resets what is closed before all has been read,
// and the peer loses what it has not read yet (RFC 9112, section 9.6). One that says more
// than that without reading does not end by itself; TCP holds it up for linger, in which it
// may read what it was told last.
const (
	linger      = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// discard throws away what src has, until its end, or for linger and lingerBytes once the
// other direction is over.
func discard(src net.Conn, other <-chan struct{}) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() {
		select {
		case <-other:
			_ = src.SetReadDeadline(time.Now().Add(linger)) // if src is broken, Read says so
		case <-done:
		}
	})
	for b, left := make([]byte, 8<<10), lingerBytes; left > 0; {
		n, err := src.Read(b)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
		select {
		case <-other:
			left -= n
		default:
		}
	}
	time.Sleep(linger)
	return nil
}

// A Resetter is a Stream whose user can be told that the peer has reset it while nobody
// reads it or writes to it.
type Resetter interface {
	// OnReset has f called once the peer has reset the stream, until stop is. The call may
	// be under way when stop returns.
	OnReset(f func(error)) (stop func())
}

func onReset(c net.Conn, f func(error)) (stop func()) {
	if r, ok := c.(Resetter); ok {
		return r.OnReset(f)
	}
	return func() {}
}

// pump moves what src has to dst until src ends, and then ends dst's direction. While it
// waits for something to read it holds as little as ReadBuffer says, or as a Carrier.
func pump(dst, src net.Conn) (n int64, err error) {
	var from, to inside
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
		// If this fails dst is broken, and its other direction will say so.
		_ = CloseWrite(dst)
		return n, nil
	}
	return n, to.failed(from.failed(err))
}

// Copy writes what src has to dst until its end. While it waits for something to read it
// holds as little as ReadBuffer says. moved is called for each n bytes that have been; nil if
// nobody counts. The errors are those of Read, other than io.EOF, and of Write.
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

// A Carrier is a Stream that moves bytes between itself and another connection at a lower
// price than by Read and Write, and that holds no memory while it waits for a socket.
type Carrier interface {
	Stream
	// SpliceTo writes what the peer sends to dst until its end, and SpliceFrom sends what
	// src has until its end. Neither closes anything. moved is called for each n bytes
	// that have been; it must return at once and not call the stream.
	SpliceTo(dst net.Conn, moved func(n int)) error
	SpliceFrom(src net.Conn, moved func(n int)) error
}

const (
	// bulkBuffer is what a Buffer holds while there is much to move. Larger buffers
	// mean fewer and larger frames on the tunnel; 64 KiB is four TLS records.
	bulkBuffer = 64 << 10
	// recordBuffer is the same for connections that take a buffer before they wait:
	// a TLS connection never reads more than one record at a time.
	recordBuffer = 16 << 10
	// littleBuffer is what a Buffer holds while there is little to move.
	littleBuffer = 4 << 10
)

// The pools recycle the memory of Buffers, by its size. They are caches and hold
// nothing that anybody could observe.
var bulkBuffers, recordBuffers, littleBuffers = newPool(bulkBuffer), newPool(recordBuffer), newPool(littleBuffer)

func newPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		p := make([]byte, size)
		return &p
	}}
}

// buffered is how many bytes of memory all Buffers of the process hold.
var buffered atomic.Int64

// Buffered is how many bytes of memory all Splices of the process hold to read to.
func Buffered() int64 { return buffered.Load() }

// A Buffer is where one direction of a Splice reads to. It takes memory from a pool
// when there is something to read, and gives it back once that has been written. The
// zero Buffer holds nothing. It is for one goroutine.
type Buffer struct {
	mem    *[]byte    // nil if it holds none
	pool   *sync.Pool // of mem
	much   bool       // the last read found much
	blind  bool       // the connection takes memory before it waits
	socket SocketReader
}

// Memory is what a SocketReader reads to: a Buffer, or what its user has in place of one.
type Memory interface {
	// Take is called once the socket can be read. It gets memory, and want is 0.
	Take(want int) []byte
	// Free gives it back. There was nothing to read.
	Free()
}

// A BufferReader is a connection that knows when there is something to read, and
// takes memory for it only then.
type BufferReader interface {
	// ReadBuffer is Read into what b.Take returns. It must not wait while b holds
	// memory. The n bytes read are b.Take(n)[:n], until b is freed.
	ReadBuffer(b *Buffer) (n int, err error)
}

// ReadBuffer reads from c into b, which holds nothing. While it waits for something
// to read b holds nothing either if c is a BufferReader, a TCP connection or a unix
// socket. Of any other c, and so of a TLS connection, nobody can know whether
// something has come without reading it: b holds 4 KiB then, or 16 KiB after a read
// that has found much.
func ReadBuffer(c io.Reader, b *Buffer) (n int, err error) {
	if r, ok := c.(BufferReader); ok {
		return r.ReadBuffer(b)
	}
	if b.socket.Open(c) {
		return b.socket.Read(b)
	}
	b.blind = true
	return c.Read(b.Take(0))
}

// Take is the memory that b holds. If b holds none it gets some, with as much room as
// suits want bytes that are known to be there, at most; zero if that is not known.
func (b *Buffer) Take(want int) []byte {
	if b.mem == nil {
		switch {
		case !b.much && want <= littleBuffer:
			b.pool = littleBuffers
		case b.blind:
			b.pool = recordBuffers
		default:
			b.pool = bulkBuffers
		}
		b.mem, _ = b.pool.Get().(*[]byte)
		buffered.Add(int64(len(*b.mem)))
	}
	return *b.mem
}

// Fit notes how much the last read has found, by which the next one gets its memory.
// A read that fills little calls for more. Of a TLS record that it had begun, the
// next read finds the rest.
func (b *Buffer) Fit(n int) {
	enough := littleBuffer
	if b.pool == recordBuffers {
		enough = recordBuffer - littleBuffer
	}
	b.much = n >= enough
}

// Free gives back what b holds.
func (b *Buffer) Free() {
	if b.mem != nil {
		buffered.Add(-int64(len(*b.mem)))
		b.pool.Put(b.mem)
		b.mem, b.pool = nil, nil
	}
}

// Give gives away what b holds. It is not among what is Buffered any more. Whoever has it
// calls free when done with it, or leaves it to the garbage collector.
func (b *Buffer) Give() (free func()) {
	mem, pool := b.mem, b.pool
	buffered.Add(-int64(len(*mem)))
	b.mem, b.pool = nil, nil
	return func() { pool.Put(mem) }
}

// A Wrapper is a connection around another one whose bytes it leaves as they are: it
// counts them, or has something wait. Splice moves bytes past it.
type Wrapper interface {
	net.Conn
	// InnerReader gives what to read from in place of the wrapper, and InnerWriter what
	// to write to. They may wait as Read and Write would. No Conn means that it cannot be
	// left out.
	InnerReader() Inner
	InnerWriter() Inner
}

// An Inner is what is inside a Wrapper, for one direction.
type Inner struct {
	Conn net.Conn
	// Moved is called for each n bytes that have been moved, and must return at once; nil
	// if nobody counts.
	Moved func(n int)
	// Failed is what an error is due to; nil if it says so itself.
	Failed func(error) error
}

// An inside is what lies inside all wrappers of a connection, for one direction.
type inside struct {
	conn     net.Conn
	wrappers []Inner // the outermost first
}

func (i *inside) open(c net.Conn, inner func(Wrapper) Inner) {
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

func (i *inside) moved(n int) {
	for _, w := range i.wrappers {
		if w.Moved != nil {
			w.Moved(n)
		}
	}
}

func (i *inside) failed(err error) error {
	for _, w := range slices.Backward(i.wrappers) {
		if w.Failed != nil {
			err = w.Failed(err)
		}
	}
	return err
}

// A Tap is a Stream around Conn that tells of what happens on it. It is an Aborter. Where
// Conn cannot half-close, CloseWrite closes it.
type Tap struct {
	net.Conn
	// Received and Sent are called for each n bytes that have been; nil if nobody counts.
	Received, Sent func(n int)
	// Failed is what an error of Read or Write is due to, io.EOF among them; nil if it
	// says so itself.
	Failed func(error) error
	// Ended is called once, when Conn has been closed or aborted; nil if nobody asks.
	Ended func(aborted bool)

	over sync.Once
}

func (t *Tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	return t.came(t.Received, n, err)
}

// ReadBuffer implements BufferReader. It waits holding nothing if Conn does.
func (t *Tap) ReadBuffer(b *Buffer) (int, error) {
	n, err := ReadBuffer(t.Conn, b)
	return t.came(t.Received, n, err)
}

func (t *Tap) Write(p []byte) (int, error) {
	n, err := t.Conn.Write(p)
	return t.came(t.Sent, n, err)
}

func (t *Tap) came(count func(int), n int, err error) (int, error) {
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
func (t *Tap) CloseWrite() error {
	if c, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return t.Close()
}

// Close ends both directions.
func (t *Tap) Close() error {
	err := t.Conn.Close()
	t.end(false)
	return err
}

// Abort gives the connection up.
func (t *Tap) Abort() error {
	err := Abort(t.Conn)
	t.end(true)
	return err
}

func (t *Tap) end(aborted bool) {
	if t.Ended != nil {
		t.over.Do(func() { t.Ended(aborted) })
	}
}

var (
	_ Aborter = (*Tap)(nil)
	_ Wrapper = (*Tap)(nil)
)
