// Files that are followed: read at the start, and again when they have been replaced.

package auth

import (
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
	// recheck is how long what was loaded is believed before the files are looked
	// at again.
	recheck = time.Second
	// maxFollowed bounds a file that is followed, in bytes.
	maxFollowed = 1 << 20
)

// Files are the files that a process follows. Each is read by one reader, however many
// parts of the process ask for it. The zero value is ready for use; a file is looked at
// when its content is asked for, at most once a second, and once a second while Run runs.
type Files struct {
	Log *slog.Logger // nil means discard; set before the first use

	mu    sync.Mutex // guards the following
	pairs map[[2]string]*KeyPair
	lists map[string]*Authorities
	looks []func()
}

// Run looks at all files until ctx is done. It is for files that nobody asks for while
// they change, and for those that Changed has been called for.
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

// A File is what one file says, or several that belong together, and may be replaced at
// any time. While a replacement cannot be read or parsed, what was there before stays in
// use; the fault is logged once, at the second look that finds it: between the first
// and the second one, somebody may have been writing.
type File[T any] struct {
	what  string
	names []string
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

// Follow reads and parses files, whose contents parse gets in the order of names. What
// says, in errors and in the log, what the files are.
func Follow[T any](f *Files, what string, parse func(contents [][]byte) (T, error), names ...string) (*File[T], error) {
	c := &File[T]{what: what, names: names, parse: parse, log: f.Log}
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

// Get returns what the files say now, or said at most a second ago.
func (c *File[T]) Get() T {
	c.mu.Lock()
	current, changed := c.look(time.Now())
	c.mu.Unlock()
	for _, f := range changed {
		(*f)()
	}
	return current
}

// Err is why the files as they are now are not in use; nil if they are.
func (c *File[T]) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Changed has f called after each replacement that is taken into use, until stop is
// called. It must not block.
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

// look returns what to use, and whom to tell if it is new.
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
		data, err := readBounded(name)
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
func readBounded(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && info.Size() > maxFollowed {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", info.Size(), maxFollowed)
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

// A stamp tells two versions of files apart. A replacement of the same size within the
// file system's clock tick is seen one replacement late.
type stamp []version

type version struct {
	size int64
	mod  time.Time
}

func (s stamp) equal(o stamp) bool {
	return slices.EqualFunc(s, o, func(a, b version) bool { return a.size == b.size && a.mod.Equal(b.mod) })
}

func stampOf(files []string) stamp {
	s := make(stamp, len(files))
	for i, f := range files {
		if fi, err := os.Stat(f); err == nil {
			s[i] = version{fi.Size(), fi.ModTime()}
		}
	}
	return s
}
