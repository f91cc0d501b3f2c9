package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// written are the lines of the log above level debug, and how many bytes they have.
func (b *testHub) written() (lines []string, size int) {
	for l := range strings.Lines(b.log.String()) {
		if !strings.Contains(l, "level=DEBUG") {
			lines, size = append(lines, l), size+len(l)
		}
	}
	return lines, size
}

// TestLogOfOneNode: a node that connects again and again writes few lines, and what it tells is
// cut. Others have all of theirs, and the lines that were left out are counted.
func TestLogOfOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		for i := range 500 {
			x := b.mustConnect(tunnel.Hello{
				Node: "n1", Instance: uint64(i + 1), Sequence: 1, Meta: tunnel.Meta{"version": "1.2.3" + strings.Repeat("v", 500)},
			})
			_ = x.control.HangUp(&tunnel.Goodbye{Code: tunnel.Internal, Text: "it is over" + strings.Repeat("y", 1000)})
			synctest.Wait()
		}
		lines, size := b.written()
		if len(lines) > 60 || size > 60*500 {
			t.Errorf("%d lines, %d bytes", len(lines), size)
		}
		if !strings.Contains(lines[0], "version=1.2.3vvv") || !strings.Contains(lines[1], "it is overyyy") {
			t.Errorf("the log says\n%s%s", lines[0], lines[1])
		}
		for i := range 50 {
			x := b.mustConnect(one(fmt.Sprintf("other-%d", i)))
			_ = x.control.HangUp(&tunnel.Goodbye{Code: tunnel.Draining, Text: "bye"})
			synctest.Wait()
		}
		after, _ := b.written()
		if n := len(after) - len(lines); n != 100 {
			t.Errorf("%d lines about 50 others", n)
		}
		if others := after[len(lines)]; !strings.Contains(others, "node=other-0") || !strings.Contains(others, "others=960") {
			t.Errorf("the first of them is %s", others)
		}
	})
}

// TestLogOfFenced: an agent that is refused because another one has its identity, is logged a few
// times, also while that one is not connected.
func TestLogOfFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestHub(t, Config{})
		b.mustConnect(tunnel.Hello{Node: "n1", Instance: 1, Sequence: 1})
		x := b.mustConnect(tunnel.Hello{Node: "n1", Instance: 2, Sequence: 1})
		time.Sleep(time.Second) // the bubble's clock
		refused := func(line string) {
			t.Helper()
			for i := range 500 {
				if _, err := b.connect(tunnel.Hello{Node: "n1", Instance: 1, Sequence: uint64(i + 2)}, nil); err == nil {
					t.Fatal("admitted")
				}
			}
			if n := strings.Count(b.log.String(), line); n == 0 || n > 20 {
				t.Errorf("%d times %q", n, line)
			}
		}
		refused("two agents use one node's identity")
		_ = x.session.Close()
		synctest.Wait()
		refused("is not taken back yet")
	})
}
