// Where a directory is visible by mounts.

package runtime

import (
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Under reports whether path is dir or below it. Both are clean.
func Under(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// Aliases lists path, which has no symbolic link in it, and all other paths at which
// the directory, or a part of it, is mounted.
func Aliases(path string, ms []*mountinfo.Info) []string {
	all := []string{path}
	var on *mountinfo.Info
	for _, m := range ms { // a later mount covers an earlier one
		if Under(path, m.Mountpoint) && (on == nil || len(m.Mountpoint) >= len(on.Mountpoint)) {
			on = m
		}
	}
	if on == nil {
		return all
	}
	inFS := filepath.Join(on.Root, strings.TrimPrefix(path, on.Mountpoint))
	for _, m := range ms {
		at := ""
		switch {
		case m.Major != on.Major || m.Minor != on.Minor:
		case Under(inFS, m.Root):
			at = filepath.Join(m.Mountpoint, strings.TrimPrefix(inFS, m.Root))
		case Under(m.Root, inFS):
			at = m.Mountpoint
		}
		if at != "" && !Under(at, path) {
			all = append(all, at)
		}
	}
	return all
}
