package process

// A pipe to an attached client that may be slow: writing to it never blocks.

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spoolBytes bounds the data on disk for one stream of an attached client that reads
// slower than the command writes.
const spoolBytes = 64 << 20

// spoolsBytes bounds the data on disk for all attached clients of a container together, give or
// take a portion of output for each.
const spoolsBytes = 2 * spoolBytes

var errSlow = errors.New("attached too slow: too much output has not been read; the log has it")

// A sink writes to a pipe. Data that does not fit goes to the spool, a file used as a
// ring, and from there to the pipe when it has room again.
type sink struct {
	pipe *os.File
	dir  string // where the spool is made
	wake chan struct{}
	done chan struct{} // closed when pump has returned

	mu     sync.Mutex // guards the following
	spool  *os.File   // nil until needed
	head   int64      // of what is in the spool, and
	length int64      // how much that is
	size   int64      // of the spool's file
	last   bool       // no more data is added
	err    error
}

// newSink takes over fd, the writing end of a pipe. The caller calls finish.
func newSink(fd int, dir string) (*sink, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	k := &sink{
		pipe: os.NewFile(uintptr(fd), "attached"),
		dir:  dir,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	go k.pump() // joined by finish
	return k, nil
}

// write takes all of b, or the sink fails permanently.
func (k *sink) write(b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil && k.length == 0 {
		b, k.err = k.tryPipeLocked(b)
	}
	if k.err == nil && len(b) > 0 {
		if k.err = k.putLocked(b); k.err != nil {
			k.emptyLocked()
		}
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	return k.err
}

// tryPipeLocked writes what fits into the pipe and returns the rest.
func (k *sink) tryPipeLocked(b []byte) ([]byte, error) {
	rc, err := k.pipe.SyscallConn()
	if err != nil {
		return b, err
	}
	var n int
	var werr error
	err = rc.Write(func(fd uintptr) bool {
		n, werr = unix.Write(int(fd), b)
		return true
	})
	if errors.Is(werr, unix.EAGAIN) || errors.Is(werr, unix.EINTR) {
		n, werr = 0, nil
	}
	if err = errors.Join(err, werr); err != nil {
		return b, err
	}
	return b[n:], nil
}

func (k *sink) putLocked(b []byte) error {
	if k.length+int64(len(b)) > spoolBytes {
		return errSlow
	}
	if k.spool == nil {
		f, err := os.CreateTemp(k.dir, ".spool.*")
		if err != nil {
			return err
		}
		_ = os.Remove(f.Name())
		k.spool = f
	}
	for len(b) > 0 {
		at := (k.head + k.length) % spoolBytes
		n, err := k.spool.WriteAt(b[:min(int64(len(b)), spoolBytes-at)], at)
		k.length += int64(n)
		k.size = max(k.size, at+int64(n))
		b = b[n:]
		if err != nil {
			return err
		}
	}
	return nil
}

// emptyLocked gives back the disk that the spool takes.
func (k *sink) emptyLocked() {
	k.head, k.length = 0, 0
	if k.size > 0 && k.spool.Truncate(0) == nil {
		k.size = 0
	}
}

// spooled returns how much disk the sink takes; zero once it has failed.
func (k *sink) spooled() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return 0
	}
	return k.size
}

// fail drops what has not been written.
func (k *sink) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
		k.emptyLocked()
	}
}

// pump copies from the spool to the pipe.
func (k *sink) pump() {
	defer close(k.done)
	buf := make([]byte, 0)
	for {
		k.mu.Lock()
		n, last, err := min(k.length, spoolBytes-k.head, 32<<10), k.last, k.err
		if n == 0 || err != nil {
			k.mu.Unlock()
			if last || err != nil {
				return
			}
			<-k.wake
			continue
		}
		if int64(len(buf)) < n {
			buf = make([]byte, 32<<10)
		}
		_, err = k.spool.ReadAt(buf[:n], k.head)
		k.mu.Unlock()
		if err == nil {
			// The bytes stay in the spool until they are in the pipe, so that write
			// does not overtake them.
			_, err = k.pipe.Write(buf[:n])
		}
		k.mu.Lock()
		if k.err == nil {
			k.err = err
			k.head, k.length = (k.head+n)%spoolBytes, k.length-n
			if err != nil || k.length == 0 {
				k.emptyLocked()
			}
		}
		k.mu.Unlock()
	}
}

// finish closes the sink once all data is written, or after patience.
func (k *sink) finish(patience time.Duration) {
	k.mu.Lock()
	k.last = true
	k.mu.Unlock()
	_ = k.pipe.SetWriteDeadline(time.Now().Add(patience))
	select {
	case k.wake <- struct{}{}:
	default:
	}
	<-k.done
	_ = k.pipe.Close()
	if k.spool != nil {
		_ = k.spool.Close()
	}
}
