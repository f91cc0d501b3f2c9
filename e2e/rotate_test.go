// Logs that are followed while they are rotated and while the node's link is cut.

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	// calm is how many lines are short, so that whoever follows is there before the
	// first file is full.
	calm = 200
	// rotateAt is how large a file of the log grows: about 50 of the long lines.
	rotateAt = 24 << 10
)

var longLine = strings.Repeat("0123456789", 40)

// rotating counts, and has more to say from a number on.
var rotating = fmt.Sprintf("i=0; while :; do i=$((i+1)); w=; [ $i -gt %d ] && w=' %s'; echo number $i$w; sleep 0.05; done", calm, longLine)

const rotationCuts = `
seed %[1]d
at 1s  cuts 20 between 50ms..600ms kinds rst,blackhole,rebind,move for 50ms..500ms on %[2]s
at 15s cuts 3 between 100ms..1s kinds blackhole for 2s on %[2]s
`

// Who follows a log has every line once and in order, whatever becomes of the files
// and of the link.
func TestRotatedLogs(t *testing.T) {
	t.Parallel()
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	overEach(t, resuming, func(t *testing.T, c *cluster, transport string) {
		logs := loads{startLines(t, c, "", rotating, func(i int64) string {
			if i > calm {
				return fmt.Sprintf("number %d %s", i, longLine)
			}
			return fmt.Sprintf("number %d", i)
		})}
		eventually(t, "the log is rotated", func() error { return c.rotated(1) })
		c.suffer(t, fmt.Sprintf(rotationCuts, slices.Index(resuming, transport)+1, c.node))
		logs.finish(t)
		if err := c.rotated(3); err != nil {
			t.Error(err)
		}
	}, "--netns", fmt.Sprintf("--agent-arg=--container-log-max-size=%d", rotateAt))
}

// rotated wants the log of a container on the node to have been rotated so many times.
func (c *cluster) rotated(times int) error {
	most := 0
	err := filepath.WalkDir(filepath.Join(c.dir, "nodes", c.node), func(path string, _ fs.DirEntry, err error) error {
		// PATH.log.N is the Nth file that was full.
		stem, number, _ := strings.Cut(filepath.Base(path), ".log.")
		if n, nerr := strconv.Atoi(number); stem != "" && nerr == nil {
			most = max(most, n)
		}
		if errors.Is(err, fs.ErrNotExist) { // it has gone meanwhile
			return nil
		}
		return err
	})
	if err == nil && most < times {
		err = fmt.Errorf("%d times so far", most)
	}
	return err
}
