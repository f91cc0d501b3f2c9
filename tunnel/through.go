// Through: connections around others, seen through.

package tunnel

import "net"

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

// A Wrapper is a connection around another one whose bytes it leaves as they are: it
// counts them, or has something wait. Splice moves bytes past it.
type Wrapper interface {
	net.Conn
	// ReadThrough gives what to read from in place of the wrapper, and WriteThrough what
	// to write to. They may wait as Read and Write would. No Conn means that it cannot be
	// left out.
	ReadThrough() Inner
	WriteThrough() Inner
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

func (i Inner) moved(n int) {
	if i.Moved != nil {
		i.Moved(n)
	}
}

func (i Inner) failed(err error) error {
	if i.Failed != nil {
		return i.Failed(err)
	}
	return err
}

// through is what lies inside all wrappers of c.
func through(c net.Conn, open func(Wrapper) Inner) Inner {
	all := Inner{Conn: c}
	for {
		w, ok := all.Conn.(Wrapper)
		if !ok {
			return all
		}
		next := open(w)
		if next.Conn == nil {
			return all
		}
		outer := all
		all.Conn = next.Conn
		all.Moved = both(outer.Moved, next.Moved)
		if next.Failed != nil {
			all.Failed = func(err error) error { return outer.failed(next.Failed(err)) }
		}
	}
}

func both(a, b func(int)) func(int) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(n int) {
		a(n)
		b(n)
	}
}
