package crilog

// Reading and following a log.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options say which part of a log to read and how to show it.
type Options struct {
	// Follow, if not nil, makes Read wait for more at the end of the log until the channel
	// is closed: then the last line has been written.
	Follow <-chan struct{}
	// Tail, when not nil, starts that many lines before the end.
	Tail *int64
	// Since leaves out the lines before the first that is not older than this, unless it is
	// zero, and none that is written once Read waits for more: clocks are set back.
	Since time.Time
	// Timestamps puts the time before each line.
	Timestamps bool
	// LimitBytes ends the output after so many bytes; 0 means no limit.
	LimitBytes int64
	// Stream is Stdout or Stderr to see only that one.
	Stream string
}

// Read writes the log at path to w, which gets whole lines, many at a time, and
// is flushed (if flush is not nil) before Read waits for more. It returns nil at
// the end of the log or at its limit, ctx's error when ctx ends, and the error of
// w if there is one. Its memory does not depend on the size of the log. When a
// log that is followed is rotated away faster than it is read, what was removed
// is missing from the output.
func Read(ctx context.Context, path string, o Options, w io.Writer, flush func()) error {
	r := &reader{path: path, o: o, w: w, flush: flush, limit: o.LimitBytes}
	defer r.close()
	if o.Follow != nil {
		// The watch starts before the first read, so that no later change is missed.
		r.watch = newWatch(filepath.Dir(path))
	}
	files, err := openLog(path)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	r.files = files
	if err = r.seek(); err != nil {
		return fmt.Errorf("find the end of the log: %w", err)
	}
	err = r.run(ctx)
	if errors.Is(err, errLimit) {
		err = nil
	}
	return err
}

var errLimit = errors.New("limit reached")

type reader struct {
	path  string
	o     Options
	w     io.Writer
	flush func()
	watch *watch

	files  []openFile // still to be read, the first is being read
	off    int64      // place in files[0]
	rest   []byte     // beginning of a line whose end has not been read
	skip   bool       // dropping an overlong line up to its newline
	out    []byte
	limit  int64
	inLine bool // the output so far ends within a line
}

func (r *reader) close() {
	closeAll(r.files)
	if r.watch != nil {
		r.watch.close()
	}
}

// run reads file after file, and then, if it follows, the added lines.
func (r *reader) run(ctx context.Context) error {
	buf := make([]byte, 64<<10)
	for {
		// Whether the log is complete must be read before its end is reached.
		complete := r.o.Follow == nil
		if !complete {
			select {
			case <-r.o.Follow:
				complete = true
			default:
			}
		}
		if err := r.drain(ctx, buf); err != nil {
			return err
		}
		if len(r.files) > 1 {
			r.advance()
			continue
		}
		if r.o.Follow == nil {
			return nil
		}
		moved, err := r.moved(ctx, buf)
		if err != nil {
			return err
		}
		switch {
		case moved:
			continue
		case complete:
			return nil
		}
		r.o.Since = time.Time{} // what comes is new
		if r.flush != nil {
			r.flush()
		}
		if err := r.watch.wait(ctx, r.o.Follow); err != nil {
			return err
		}
	}
}

func (r *reader) advance() {
	_ = r.files[0].Close()
	r.files = r.files[1:]
	r.off, r.rest, r.skip = 0, r.rest[:0], false
}

// drain reads the first file from the current place to its end.
func (r *reader) drain(ctx context.Context, buf []byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := r.files[0].ReadAt(buf, r.off)
		r.off += int64(n)
		if n > 0 {
			if ferr := r.feed(buf[:n]); ferr != nil {
				return ferr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
}

// moved reports whether the file being read has been rotated. If so it adds the files
// after it to the list.
func (r *reader) moved(ctx context.Context, buf []byte) (bool, error) {
	cur := r.files[0]
	info, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // being rotated, or removed with its pod
	}
	if err != nil {
		return false, fmt.Errorf("look for the log: %w", err)
	}
	if os.SameFile(info, cur.info) {
		if info.Size() < r.off { // emptied by its writer
			r.off, r.rest, r.skip = 0, r.rest[:0], false
			return true, nil
		}
		return false, nil
	}
	// This reads the lines between the last read and the rename.
	if err = r.drain(ctx, buf); err != nil {
		return false, err
	}
	files, err := openLog(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open log: %w", err)
	}
	for i, f := range files {
		if os.SameFile(f.info, cur.info) {
			closeAll(files[:i])
			files = files[i:]
			break
		}
	}
	if os.SameFile(files[0].info, cur.info) {
		_ = files[0].Close()
		r.files = append(r.files[:1:1], files[1:]...)
	} else {
		r.files = append(r.files[:1:1], files...)
	}
	if len(r.files) == 1 {
		return false, nil
	}
	r.advance()
	return true, nil
}

// feed splits bytes of the log into lines and writes them out.
func (r *reader) feed(b []byte) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			if len(r.rest)+len(b) > maxLine {
				r.skip, r.rest = true, r.rest[:0]
			} else if !r.skip {
				r.rest = append(r.rest, b...)
			}
			break
		}
		line := b[:i]
		b = b[i+1:]
		if r.skip {
			r.skip = false
			continue
		}
		if len(r.rest) > 0 {
			r.rest = append(r.rest, line...)
			line = r.rest
		}
		r.show(line)
		r.rest = r.rest[:0]
	}
	return r.emit()
}

// show appends one line to the output, if the options select it. Lines that are not in
// the format, because a crash truncated them, are left out.
func (r *reader) show(b []byte) {
	l, err := Parse(b)
	if err != nil || l.Time.Before(r.o.Since) {
		return
	}
	r.o.Since = time.Time{}
	if r.o.Stream != "" && l.Stream != r.o.Stream {
		return
	}
	if r.o.Timestamps && !r.inLine {
		r.out = l.Time.UTC().AppendFormat(r.out, timeFormat)
		r.out = append(r.out, ' ')
	}
	r.out = append(r.out, l.Text...)
	if !l.Partial {
		r.out = append(r.out, '\n')
	}
	r.inLine = l.Partial
}

func (r *reader) emit() error {
	if len(r.out) == 0 {
		return nil
	}
	out, end := r.out, false
	if r.o.LimitBytes > 0 {
		if int64(len(out)) >= r.limit {
			out, end = out[:r.limit], true
		}
		r.limit -= int64(len(out))
	}
	if _, err := r.w.Write(out); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	r.out = r.out[:0]
	if end {
		return errLimit
	}
	return nil
}

// seek drops the files before the start of the output, and sets the offset of the start
// in the first file.
func (r *reader) seek() error {
	if r.o.Tail != nil {
		if err := r.seekTail(*r.o.Tail); err != nil {
			return err
		}
	}
	// A file that was last written before Since has no line to show, but if a clock was set
	// back. Who follows a log counts on each line.
	for r.o.Follow == nil && !r.o.Since.IsZero() && len(r.files) > 1 && r.files[0].info.ModTime().Before(r.o.Since) {
		r.advance()
	}
	return nil
}

// seekTail goes back n lines from the end of the log.
func (r *reader) seekTail(n int64) error {
	t := tail{left: n, stream: r.o.Stream, open: make(map[string]bool, 2)}
	for i := len(r.files) - 1; i >= 0; i-- {
		off, found, err := t.scan(r.files[i].File)
		if err != nil {
			return err
		}
		if found {
			closeAll(r.files[:i])
			r.files, r.off = r.files[i:], off
			return nil
		}
	}
	return nil
}

// A tail counts lines from the end of a log.
type tail struct {
	left   int64
	stream string
	open   map[string]bool // streams that have had a line
}

// scan reads the lines of f, last first, and returns the offset of the first line of the
// tail, if it is in this file.
func (t *tail) scan(f *os.File) (off int64, found bool, err error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, false, err
	}
	var (
		buf  = make([]byte, 64<<10)
		rest []byte // beginning at end: the rest of a line whose start is before it
	)
	for pos := end; pos > 0; {
		n := min(int64(len(buf)), pos)
		pos -= n
		if _, err := f.ReadAt(buf[:n], pos); err != nil && !errors.Is(err, io.EOF) {
			return 0, false, err
		}
		b := append(buf[:n:n], rest...)
		for {
			i := bytes.LastIndexByte(b, '\n')
			if i < 0 {
				break
			}
			if t.past(b[i+1:]) {
				// The newline that ended the line has been cut off b, except that of
				// a last line that has none yet.
				return min(pos+int64(len(b))+1, end), true, nil
			}
			b = b[:i]
		}
		if len(b) > maxLine {
			b = b[:0] // a malformed line is not counted
		}
		rest = append([]byte(nil), b...)
	}
	if t.past(rest) {
		return min(int64(len(rest))+1, end), true, nil
	}
	return 0, false, nil
}

// past counts a line and reports whether it exceeds the tail.
func (t *tail) past(b []byte) bool {
	l, err := Parse(b)
	if err != nil || (t.stream != "" && l.Stream != t.stream) {
		return false
	}
	// Parts belong to the line that the next full one of their stream ends; the
	// last ones of a stream are a line that has not ended yet.
	if l.Partial && t.open[l.Stream] {
		return false
	}
	t.open[l.Stream] = true
	t.left--
	return t.left < 0
}

// A watch reports possible changes in a directory.
type watch struct {
	w *fsnotify.Watcher // nil if the system has no more inotify instances
}

func newWatch(dir string) *watch {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return &watch{}
	}
	if err := w.Add(dir); err != nil {
		_ = w.Close()
		return &watch{}
	}
	return &watch{w}
}

func (w *watch) close() {
	if w.w != nil {
		_ = w.w.Close()
	}
}

// wait returns nil when there may be more to read: a file in the directory has changed,
// the log is complete, or, because notifications can be lost, some time has passed.
func (w *watch) wait(ctx context.Context, complete <-chan struct{}) error {
	var (
		events chan fsnotify.Event
		errs   chan error
		period = 200 * time.Millisecond
	)
	if w.w != nil {
		events, errs, period = w.w.Events, w.w.Errors, time.Second
	}
	t := time.NewTimer(period)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-complete:
	case <-events:
	case err := <-errs:
		_ = err // a notification may have been lost: read again
	case <-t.C:
	}
	return nil
}
