package process

// The table of mounts.

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A mountEntry is a line of /proc/PID/mountinfo, as proc_pid_mountinfo(5) has it.
type mountEntry struct {
	dev   string // names the file system
	root  string // what of the file system is mounted
	point string
	fs    string
	super []string // options of the file system
}

func mounts() ([]mountEntry, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(bytes.NewReader(b))
}

func parseMounts(r io.Reader) ([]mountEntry, error) {
	var ms []mountEntry
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 {
			return nil, fmt.Errorf("mountinfo: malformed line %q", s.Text())
		}
		ms = append(ms, mountEntry{
			dev:   f[2],
			root:  unescape(f[3]),
			point: unescape(f[4]),
			fs:    g[0],
			super: strings.Split(g[2], ","),
		})
	}
	return ms, s.Err()
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// under says whether path is dir or below it. Both are clean.
func under(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// unmountBelow takes away whatever is mounted in dir as this process sees it, and
// fails if something is left: removing the files of a mounted file system is the
// one mistake that could never be put right.
func unmountBelow(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for range 2 {
		ms, err := mounts()
		if err != nil {
			return err
		}
		left := 0
		for i := len(ms) - 1; i >= 0; i-- {
			if under(ms[i].point, dir) {
				left++
				_ = unix.Unmount(ms[i].point, unix.MNT_DETACH)
			}
		}
		if left == 0 {
			return nil
		}
	}
	return fmt.Errorf("something is mounted in %s", dir)
}
