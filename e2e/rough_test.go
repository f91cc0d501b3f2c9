// Links that do to packets whatever can befall them.

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

// rough are such links.
var rough = []struct {
	name  string
	shape emulator.Shape
}{
	{"1 percent lost", emulator.Shape{Delay: 10 * time.Millisecond, Loss: 0.01, Reorder: 0.05, Duplicate: 0.02, Corrupt: 0.01}},
	{"5 percent lost", emulator.Shape{Delay: 10 * time.Millisecond, Loss: 0.05, Reorder: 0.1, Duplicate: 0.05, Corrupt: 0.02, Hold: 50 * time.Millisecond}},
	{"20 percent lost", emulator.Shape{Delay: 10 * time.Millisecond, Loss: 0.2, Reorder: 0.05, Duplicate: 0.02, Corrupt: 0.01}},
	{"500 ms of jitter", emulator.Shape{Delay: 500 * time.Millisecond, Jitter: 500 * time.Millisecond, Reorder: 0.02, Hold: 200 * time.Millisecond}},
}

// narrowLink is one across a tunnel whose ends say nothing of what does not fit.
var narrowLink = emulator.Shape{Delay: 10 * time.Millisecond, MTU: 1280}

// Whatever packets go through, what they carry comes once, and in order.
func TestRoughLinks(t *testing.T) {
	t.Parallel()
	m := startMixed(t, "--agent-arg=--link-keepalive=5s", "--server-arg=--link-keepalive=5s")
	m.load(t, startNumbers, startEcho, startKeys)
	for i, r := range rough {
		m.links.Seed = uint64(i)
		m.over(t, r.name, r.shape)
	}
	m.over(t, "above 1280 bytes nothing passes any more", narrowLink)
	m.finish(t)

	// A node that joins over such a link does, and is connected as well.
	marks := map[string]*logMark{}
	for _, n := range m.nodes {
		must(t, n.Shape(t.Context(), narrowLink, narrowLink))
		marks[n.Name] = m.mark(t, n.Name)
		m.joinAnew(t, n.Node)
	}
	m.each(t, "a node that joins", func(*testing.T, nodeOver) {}, func(t *testing.T, n nodeOver) {
		marks[n.Name].until(t, patience, "the node has its certificate")
		marks[n.Name].until(t, patience, "msg=connected", "transport="+n.transport)
		pod, _ := on(n.Name, "shell")
		m.execs(t, pod)
		bulk := startDownload(t, m.cluster, n.Name)
		eventually(t, "a megabyte has come", func() error {
			if got := bulk.count(); got < 1<<20 {
				return fmt.Errorf("%d bytes", got)
			}
			return nil
		})
		must(t, bulk.finish())
	})
}

// joinAnew kills a node's agent and runs it again without what it has got by joining.
func (c *cluster) joinAnew(t *testing.T, n *lab.Node) {
	t.Helper()
	args := c.kill(t, n.Name)
	must(t, os.RemoveAll(filepath.Join(c.dir, "nodes", n.Name, "pki")))
	// It comes with another key, and a name belongs to the one that took it.
	c.hawser(t, "node", "allow", n.Name)
	run(t, n.Command(t.Context(), args[0], args[1:]...).Args, filepath.Join(c.dir, "nodes", n.Name, "agent"))
}

// over has the loads go on over links of a shape.
func (m *mixed) over(t *testing.T, name string, s emulator.Shape) {
	t.Helper()
	m.each(t, name, func(t *testing.T, n nodeOver) {
		must(t, n.Shape(t.Context(), s, s))
	}, func(t *testing.T, n nodeOver) {
		for range 3 {
			n.goOn(t, name)
		}
		if s.MTU > 0 {
			m.tooLarge(t, n)
		}
		out, in, _ := n.Shaped()
		must(t, n.Shape(t.Context(), emulator.Shape{}, emulator.Shape{}))
		t.Logf("out %+v, in %+v", out, in)
		for _, c := range []emulator.Counts{out, in} {
			if c.Delivered == 0 || s.Loss > 0 && c.Lost == 0 || s.Reorder > 0 && c.Reordered == 0 {
				t.Errorf("that was no such link: %+v", c)
			}
		}
	})
}

// tooLarge has a node send as much as it can, until a packet was too large for its link:
// an older connection may send small ones only, because of what befell it before.
func (m *mixed) tooLarge(t *testing.T, n nodeOver) {
	t.Helper()
	bulk := startDownload(t, m.cluster, n.Name)
	eventually(t, "a packet is too large", func() error {
		if out, in, _ := n.Shaped(); out.TooLarge+in.TooLarge == 0 {
			return errNotYet
		}
		return nil
	})
	must(t, bulk.finish())
	pod, _ := on(n.Name, "download")
	m.mustKubectl(t, "", "delete", "pod", pod, "--now")
}
