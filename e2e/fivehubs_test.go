// Five hubs beside one cluster, of which two are lost at once: every node is in reach through
// every hub that is left.

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// A fiveHubs is five hubs, and as many nodes with sessions at two of them: node-i first at
// hub-i and the one after it.
type fiveHubs struct {
	*besideHub
	hubs  []*besideHub
	nodes []string
}

// startFive starts them, and returns when each node answers through each hub.
func startFive(t *testing.T) *fiveHubs {
	t.Helper()
	f := &fiveHubs{besideHub: startBeside(t)}
	for i := range 5 {
		id := fmt.Sprintf("hub-%d", i)
		h := f.besides(t, id)
		h.start(t, "--server-id", id, "--konnectivity-uds", h.grpcSocket())
		f.hubs = append(f.hubs, h)
	}
	for i, h := range f.hubs {
		var others []*besideHub
		for k := 1; k < len(f.hubs); k++ {
			others = append(others, f.hubs[(i+k)%len(f.hubs)])
		}
		f.nodes = append(f.nodes, fmt.Sprintf("node-%d", i))
		h.joins(t, f.nodes[i], others...)
	}
	for i, name := range f.nodes {
		f.waitNode(t, name)
		f.isAtBoth(t, i)
	}
	f.allInReach(t)
	return f
}

// allInReach waits until each node answers through each hub.
func (f *fiveHubs) allInReach(t *testing.T) {
	t.Helper()
	for _, name := range f.nodes {
		for _, h := range f.hubs {
			eventually(t, name+" is in reach", func() error { return h.reachesBoth(t.Context(), name) })
		}
	}
}

// isAtBoth waits until node i has a session with each of its first two hubs.
func (f *fiveHubs) isAtBoth(t *testing.T, i int) {
	t.Helper()
	eventually(t, f.nodes[i]+" has both of its sessions", func() error {
		for _, at := range []int{i, (i + 1) % len(f.hubs)} {
			connected := false
			for line := range strings.Lines(readFile(t, f.hubs[at].data+".log")) {
				connected = connected || strings.Contains(line, `msg="node connected"`) && strings.Contains(line, " node="+f.nodes[i]+" ")
			}
			if !connected {
				return fmt.Errorf("hub-%d has not said so", at)
			}
		}
		return nil
	})
}

// signal has a hub and the next one get a signal, and returns the others.
func (f *fiveHubs) signal(t *testing.T, s syscall.Signal, first int) (others []*besideHub) {
	t.Helper()
	for _, h := range f.hubs[first : first+2] {
		b, err := os.ReadFile(h.data + ".pid")
		must(t, err)
		pid, err := strconv.Atoi(string(b))
		must(t, err)
		must(t, syscall.Kill(pid, s))
		if s == syscall.SIGSTOP {
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		}
	}
	return slices.Concat(f.hubs[:first], f.hubs[first+2:])
}

// within wants nodes to answer through both front ends of each hub by then. A request that was
// begun through a hub in the instant in which that fell silent waits for it, so each is given up
// after two seconds.
func (f *fiveHubs) within(t *testing.T, lost time.Time, bound time.Duration, left []*besideHub, names ...string) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), lost.Add(bound))
	defer cancel()
	var all sync.WaitGroup
	for _, h := range left {
		for _, name := range names {
			all.Go(func() {
				for {
					one, cancel := context.WithTimeout(ctx, 2*time.Second)
					err := h.reachesBoth(one, name)
					cancel()
					if err == nil {
						t.Logf("%s is in reach through %s after %v", name, filepath.Base(h.data), time.Since(lost))
						return
					}
					if ctx.Err() != nil {
						t.Errorf("%s is out of reach through %s for %v: %v", name, filepath.Base(h.data), time.Since(lost), err)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// TestTwoOfFive: two of five hubs stand still, and their systems go on acknowledging. The node that
// has sessions with these two alone is in reach once its agent has noticed. They go on, and two
// others are killed, among them both that one of the nodes has sessions with.
func TestTwoOfFive(t *testing.T) {
	f := startFive(t)
	left := f.signal(t, syscall.SIGSTOP, 0)
	lost := time.Now()
	f.within(t, lost, reachedWithin, left, f.nodes[1:]...)
	f.within(t, lost, 3*tunnel.DefaultKeepalive+late, left, f.nodes[0])

	f.signal(t, syscall.SIGCONT, 0)
	f.allInReach(t)
	left = f.signal(t, syscall.SIGKILL, 2)
	f.within(t, time.Now(), reachedWithin, left, f.nodes...)
}
