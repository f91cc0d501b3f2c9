// Wrappers: connections around others, which Splice leaves out.

package tunnel

import (
	"net"
	"slices"
	"sync"
)

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
	// Ahead has been read from Conn already; nil for writing.
	Ahead []byte
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

// ReadAhead is c, of which p has been read already. The caller gives p away.
func ReadAhead(c net.Conn, p []byte) Stream { return &ahead{Tap: Tap{Conn: c}, read: p} }

type ahead struct {
	Tap
	read []byte // of who reads
}

func (a *ahead) Read(p []byte) (int, error) {
	if len(a.read) == 0 {
		return a.Conn.Read(p)
	}
	n := copy(p, a.read)
	a.read = a.read[n:]
	return n, nil
}

func (a *ahead) InnerReader() Inner {
	p := a.read
	a.read = nil
	return Inner{Conn: a.Conn, Ahead: p}
}

var (
	_ Stream  = (*ahead)(nil)
	_ Aborter = (*ahead)(nil)
	_ Wrapper = (*ahead)(nil)
)
