// This file measures what files take on disk, while a container changes them. It decides how
// many there are and how deep.

package pods

import (
	"bytes"
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

const (
	// maxOpenDirs bounds the directories that a tally has open, next to the one it reads.
	maxOpenDirs = 64
	// maxLinked bounds the files with several hard links that a tally remembers. Once it has
	// as many, each further link counts whole.
	maxLinked = 1 << 17

	openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// A measurement is of the storage of one pod. It goes in rounds through the directories of the
// pod. A round takes as many portions as are needed, so that files which are reached late
// count as well.
type measurement struct {
	round map[string]*tally // by directory, of the last portion
	now   map[string]*tally // of this portion
}

// begin starts a portion, and a new round if the last one is at its end.
func (m *measurement) begin() {
	m.round, m.now = m.now, map[string]*tally{}
	for _, t := range m.round {
		if !t.done {
			return
		}
	}
	m.round = nil
}

// usage returns the bytes on disk that this round has found below dir. It reads on until ctx
// is done.
func (m *measurement) usage(ctx context.Context, dir string) int64 {
	t := m.round[dir]
	if t == nil {
		t = &tally{}
	}
	m.now[dir] = t
	t.run(ctx, dir)
	return t.sum
}

// A tally adds up the bytes on disk of the files below a directory and on its file system. It
// follows no symbolic links, and leaves out what it cannot read.
type tally struct {
	sum  int64
	done bool

	dev    uint64              // the file system
	levels []level             // the directory, and those below it on the way to what is read
	linked map[uint64]struct{} // the inodes with several links that have been counted
}

// A level is a directory that has been read in part.
type level struct {
	name string
	ino  uint64
	next int64 // the kernel's position of the first entry that has not been looked at
	open *reading
}

// A reading is an open directory.
type reading struct {
	fd   int
	rest []byte // the entries that were read and not looked at
	buf  [8 << 10]byte
}

// run walks below dir until it has seen everything or ctx is done. The next call goes on from
// there. Between calls nothing is open, because what is open cannot be unmounted.
func (t *tally) run(ctx context.Context, dir string) {
	if t.done || ctx.Err() != nil {
		return
	}
	if t.levels == nil {
		t.enter(unix.AT_FDCWD, dir)
	} else {
		t.reopen()
	}
	for len(t.levels) > 0 {
		if ctx.Err() != nil {
			for i := range t.levels {
				t.levels[i].shut()
			}
			return
		}
		top := &t.levels[len(t.levels)-1]
		if name, ok := top.entry(); ok {
			t.add(top.open.fd, name)
		} else {
			t.leave()
		}
	}
	t.done = true
	t.levels, t.linked = nil, nil
}

// add counts an entry of the directory at.
func (t *tally) add(at int, name string) {
	var st unix.Stat_t
	switch {
	case unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != t.dev:
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		t.enter(at, name)
	case st.Nlink <= 1 || t.first(st.Ino):
		t.sum += st.Blocks * 512
	}
}

// first reports whether a file with several links has not been counted yet.
func (t *tally) first(ino uint64) bool {
	if _, ok := t.linked[ino]; ok {
		return false
	}
	if t.linked == nil {
		t.linked = map[uint64]struct{}{}
	}
	if len(t.linked) < maxLinked {
		t.linked[ino] = struct{}{}
	}
	return true
}

// enter counts a directory and makes it the deepest level.
func (t *tally) enter(at int, name string) {
	fd, err := unix.Openat(at, name, openDir, 0)
	if err != nil {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || len(t.levels) > 0 && st.Dev != t.dev {
		_ = unix.Close(fd)
		return
	}
	t.dev = st.Dev
	t.sum += st.Blocks * 512
	if n := len(t.levels); n > maxOpenDirs {
		t.levels[n-1].shut()
	}
	t.levels = append(t.levels, level{name: name, ino: st.Ino, open: &reading{fd: fd}})
}

// leave goes up by one level.
func (t *tally) leave() {
	n := len(t.levels) - 1
	below := t.levels[n]
	defer below.shut()
	t.levels = t.levels[:n]
	if n > 0 && t.levels[n-1].open == nil && !t.levels[n-1].attach(below.open.fd, "..", t.dev) {
		t.reopen() // it has been moved
	}
}

// reopen opens by their names the levels that are to be open: the first ones and the deepest.
// It drops the levels from the first one that is no longer there.
func (t *tally) reopen() {
	at := unix.AT_FDCWD
	for i := range t.levels {
		l := &t.levels[i]
		if l.open == nil && !l.attach(at, l.name, t.dev) {
			t.levels = t.levels[:i]
			return
		}
		at = l.open.fd
		if i > maxOpenDirs {
			t.levels[i-1].shut()
		}
	}
}

// attach opens the level's directory by a name of it in the directory at, unless that is
// another directory by now.
func (l *level) attach(at int, name string, dev uint64) bool {
	fd, err := unix.Openat(at, name, openDir, 0)
	if err != nil {
		return false
	}
	var st unix.Stat_t
	_, serr := unix.Seek(fd, l.next, unix.SEEK_SET)
	if unix.Fstat(fd, &st) != nil || serr != nil || st.Dev != dev || st.Ino != l.ino {
		_ = unix.Close(fd)
		return false
	}
	l.open = &reading{fd: fd}
	return true
}

func (l *level) shut() {
	if l.open != nil {
		_ = unix.Close(l.open.fd)
		l.open = nil
	}
}

// entry returns the next name; false if there is none or it cannot be read.
func (l *level) entry() (string, bool) {
	for {
		d := l.open
		if len(d.rest) == 0 {
			n, err := unix.Getdents(d.fd, d.buf[:])
			if err != nil || n <= 0 {
				return "", false
			}
			d.rest = d.buf[:n]
		}
		// A struct linux_dirent64: the inode, the position of the next entry, the length of
		// this one, its type and its name with a zero byte; see getdents64(2).
		length := binary.NativeEndian.Uint16(d.rest[16:])
		l.next = int64(binary.NativeEndian.Uint64(d.rest[8:])) //nolint:gosec // it is signed
		name, _, _ := bytes.Cut(d.rest[19:length], []byte{0})
		d.rest = d.rest[length:]
		if s := string(name); s != "." && s != ".." {
			return s, true
		}
	}
}
