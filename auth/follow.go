// Followed files: they are read at the start, and again after they were replaced.

package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// recheck is how long loaded content is used before the files are checked again.
	recheck = time.Second
	// maxFollowed is Files.Most by default.
	maxFollowed = 1 << 20
)

// Files are the followed files of a process. Each has one reader for all of its users.
// The zero value is ready for use. A file is checked when its content is read, at most
// once a second, and once a second while Run runs.
type Files struct {
	// Set these before the first use.
	Log  *slog.Logger // nil means discard
	Most int64        // bytes that one file may have; zero means 1 MiB

	mu    sync.Mutex // guards the following
	pairs map[[2]string]*KeyPair
	lists map[listed]*Authorities
	looks []func()
}

// A listed is a file of authorities, and whether they are independent.
type listed struct {
	file   string
	bundle bool
}

// Run checks all files until ctx is done. It is needed for files that are not read
// regularly, and for those with a func of Changed.
func (f *Files) Run(ctx context.Context) error {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.mu.Lock()
			looks := slices.Clone(f.looks)
			f.mu.Unlock()
			for _, look := range looks {
				look()
			}
		}
	}
}

// A File is the parsed content of one file, or of several that belong together. They may
// be replaced at any time. While a replacement cannot be read or parsed, the former
// content stays in use. The error is logged once, when a second check finds it too: at
// the first one the file may have been incomplete.
type File[T any] struct {
	what  string
	names []string
	most  int64 // bytes of each
	parse func(contents [][]byte) (T, error)
	log   *slog.Logger

	mu      sync.Mutex // guards the following
	current T
	stamp   stamp
	next    time.Time
	err     error  // why the latest replacement is not in use
	told    string // the fault that has been logged
	changed []*func()
}

// Follow reads and parses files. parse gets their contents in the order of names. what
// describes the files in errors and in the log.
func Follow[T any](f *Files, what string, parse func(contents [][]byte) (T, error), names ...string) (*File[T], error) {
	c := &File[T]{what: what, names: names, most: cmp.Or(f.Most, maxFollowed), parse: parse, log: f.Log}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.stamp, c.next = stampOf(names), time.Now().Add(recheck)
	var err error
	if c.current, err = c.read(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks = append(f.looks, func() { c.Get() })
	return c, nil
}

// Get returns the content of the files, which is at most a second old.
func (c *File[T]) Get() T {
	c.mu.Lock()
	current, changed := c.look(time.Now())
	c.mu.Unlock()
	for _, f := range changed {
		(*f)()
	}
	return current
}

// Err is why the present files are not in use; nil if they are.
func (c *File[T]) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Changed registers f to be called after each replacement that is taken into use, until
// stop is called. f must not block.
func (c *File[T]) Changed(f func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, &f)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed = slices.DeleteFunc(c.changed, func(g *func()) bool { return g == &f })
	}
}

// look returns the content to use, and the funcs to call if it is new.
func (c *File[T]) look(now time.Time) (T, []*func()) {
	if now.Before(c.next) {
		return c.current, nil
	}
	c.next = now.Add(recheck)
	at := stampOf(c.names)
	if at.equal(c.stamp) && c.err == nil {
		return c.current, nil
	}
	fresh, err := c.read()
	if err != nil {
		if text := err.Error(); c.err != nil && c.err.Error() == text && c.told != text {
			c.told = text
			c.log.Warn("what was read before stays in use", "what", c.what, "err", err)
		}
		c.err = err
		return c.current, nil
	}
	c.current, c.stamp, c.err, c.told = fresh, at, nil, ""
	c.log.Info("a file that is followed has changed", "what", c.what, "file", strings.Join(c.names, " "))
	return c.current, slices.Clone(c.changed)
}

func (c *File[T]) read() (T, error) {
	var none T
	contents := make([][]byte, len(c.names))
	for i, name := range c.names {
		data, err := readBounded(name, c.most)
		if err != nil {
			return none, fmt.Errorf("%s %s: %w", c.what, name, err)
		}
		contents[i] = data
	}
	parsed, err := c.parse(contents)
	if err != nil {
		return none, fmt.Errorf("%s %s: %w", c.what, strings.Join(slices.Compact(slices.Clone(c.names)), " and "), err)
	}
	return parsed, nil
}

// readBounded reads a file. Its errors do not repeat the name.
func readBounded(name string, most int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && info.Size() > most {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", info.Size(), most)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(name)
	}
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	return data, err
}

// A stamp distinguishes two versions of files: by their sizes and times, and by which files
// they are, as times may be kept when a file is replaced. What is written into a file, in the
// same size and within the file system's clock tick, is not detected until the next one.
type stamp []fs.FileInfo // nil for one that is not there

func (s stamp) equal(o stamp) bool {
	return slices.EqualFunc(s, o, func(a, b fs.FileInfo) bool {
		if a == nil || b == nil {
			return a == nil && b == nil
		}
		return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
	})
}

func stampOf(files []string) stamp {
	s := make(stamp, len(files))
	for i, f := range files {
		if fi, err := os.Stat(f); err == nil {
			s[i] = fi
		}
	}
	return s
}
