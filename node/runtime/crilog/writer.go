package crilog

// Writing and rotating a log.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Defaults of a Writer.
const (
	DefaultMaxBytes = 10 << 20
	DefaultMaxFiles = 5
)

// lookInterval is how often a Writer looks whether its file is still at its path, as
// often as the kubelet does.
const lookInterval = 10 * time.Second

// A Writer appends to a log. It never blocks its user for longer than a write to
// the file takes, and it never fails: output that cannot be stored, because the
// disk is full for instance, is dropped and counted.
type Writer struct {
	path     string
	maxBytes int64
	maxFiles int

	mu      sync.Mutex // guards the following
	f       *os.File
	size    int64
	seq     int // number of the newest rotated file
	last    time.Time
	looked  time.Time // when f was last seen at path
	out     []byte
	dropped int64
}

// Create opens the log at path for appending; its directory must exist. maxBytes
// bounds one file (0: 10 MiB), files how many there are at a time (0: 5, at most 64).
func Create(path string, maxBytes int64, files int) (*Writer, error) {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	if files <= 0 {
		files = DefaultMaxFiles
	}
	w := &Writer{path: path, maxBytes: maxBytes, maxFiles: min(files, maxFiles)}
	old, err := rotated(path)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if len(old) > 0 {
		w.seq = old[len(old)-1]
	}
	if err := w.openLocked(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return w, nil
}

func (w *Writer) openLocked() error {
	f, err := openRegular(w.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return err
	}
	w.f, w.size, w.looked = f.File, f.info.Size(), time.Now()
	return nil
}

// lookLocked closes a file that somebody else has removed or renamed: nobody would find
// what is written to it.
func (w *Writer) lookLocked() {
	if w.f == nil || w.last.Sub(w.looked) < lookInterval {
		return
	}
	w.looked = w.last
	mine, err := w.f.Stat()
	if err != nil {
		return
	}
	if there, err := os.Stat(w.path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(mine, there) {
		_ = w.f.Close()
		w.f = nil
	}
}

// Dropped is how many bytes of output could not be stored.
func (w *Writer) Dropped() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Close closes the file. Streams must not be written to any more.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return nil
	}
	err := w.f.Close()
	w.f = nil
	return err
}

// A StreamWriter is one stream of a log. One goroutine may write to it.
type StreamWriter struct {
	w    *Writer
	name string
	rest []byte // text without a newline yet, less than MaxText
}

// Stream returns a writer for the stream of that name, Stdout or Stderr.
func (w *Writer) Stream(name string) *StreamWriter { return &StreamWriter{w: w, name: name} }

// Write stores the complete lines of p and keeps the rest for the next call or
// Flush. Its error is always nil.
func (s *StreamWriter) Write(p []byte) (int, error) {
	n := len(p)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	now := time.Now()
	for len(p) > 0 {
		room := MaxText - len(s.rest)
		if i := bytes.IndexByte(p[:min(len(p), room+1)], '\n'); i >= 0 {
			s.addLocked(now, p[:i], false)
			p = p[i+1:]
			continue
		}
		if len(p) <= room {
			s.rest = append(s.rest, p...)
			break
		}
		s.addLocked(now, p[:room], true)
		p = p[room:]
	}
	s.w.storeLocked()
	return n, nil
}

// Flush stores the rest of an output that did not end in a newline.
func (s *StreamWriter) Flush() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if len(s.rest) > 0 {
		s.addLocked(time.Now(), nil, true)
		s.w.storeLocked()
	}
	s.rest = nil
}

func (s *StreamWriter) addLocked(now time.Time, text []byte, partial bool) {
	l := Line{Time: s.w.timeLocked(now), Stream: s.name, Partial: partial, Text: text}
	if len(s.rest) > 0 {
		s.rest = append(s.rest, text...)
		l.Text = s.rest
	}
	s.w.addLocked(l)
	s.rest = s.rest[:0]
}

// clockStep is how far a clock that is set back takes the times of lines with it.
const clockStep = time.Minute

// timeLocked is the time of a line that is written now. It is after those of all earlier lines, since
// readers find a line by its time, unless the clock was set back by a clockStep or more.
func (w *Writer) timeLocked(now time.Time) time.Time {
	if back := w.last.Round(0).Sub(now.Round(0)); back >= 0 && back < clockStep { // by the wall clock
		now = w.last.Add(time.Nanosecond)
	}
	w.last = now
	return now
}

// addLocked puts l into the batch that storeLocked writes. A batch never grows
// beyond one buffer and one line.
func (w *Writer) addLocked(l Line) {
	w.out = l.Append(w.out)
	if len(w.out) >= 32<<10 {
		w.storeLocked()
	}
}

func (w *Writer) storeLocked() {
	if len(w.out) == 0 {
		return
	}
	w.lookLocked()
	if w.f != nil && w.size > 0 && w.size+int64(len(w.out)) > w.maxBytes {
		w.rotateLocked()
	}
	if w.f == nil {
		// It was rotated or removed.
		if err := w.openLocked(); err != nil {
			w.dropped += int64(len(w.out))
			w.out = w.out[:0]
			return
		}
	}
	n, err := w.f.Write(w.out)
	w.size += int64(n)
	if err != nil {
		// A partial line would corrupt the next one too.
		if w.f.Truncate(w.size-int64(n)) == nil {
			w.size -= int64(n)
		}
		w.dropped += int64(len(w.out))
	}
	w.out = w.out[:0]
	if cap(w.out) > 64<<10 {
		w.out = nil
	}
}

// rotateLocked renames the file and opens a new one. A file that cannot be renamed is
// truncated instead, so that the log stays bounded.
func (w *Writer) rotateLocked() {
	if err := os.Rename(w.path, rotatedName(w.path, w.seq+1)); err != nil {
		if w.f.Truncate(0) == nil {
			w.size = 0
		}
		return
	}
	w.seq++
	_ = w.f.Close()
	w.f, w.size = nil, 0
	old, err := rotated(w.path)
	if err != nil {
		return
	}
	for len(old) > w.maxFiles-1 {
		_ = os.Remove(rotatedName(w.path, old[0]))
		old = old[1:]
	}
}
