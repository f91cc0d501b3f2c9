// Five hubs beside one cluster, of which two are lost at once: every node is in reach through
// every hub that is left.

package e2e

import (
	"context"
	"fmt"
	"os"
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
		for _, h := range f.hubs {
			eventually(t, name+" is in reach", func() error { return h.reachesBoth(t.Context(), name) })
		}
	}
	return f
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

// lose has two hubs get a signal, and returns the ones that are left.
func (f *fiveHubs) lose(t *testing.T, s syscall.Signal) []*besideHub {
	t.Helper()
	for _, h := range f.hubs[:2] {
		b, err := os.ReadFile(h.data + ".pid")
		must(t, err)
		pid, err := strconv.Atoi(string(b))
		must(t, err)
		must(t, syscall.Kill(pid, s))
		if s == syscall.SIGSTOP {
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		}
	}
	return f.hubs[2:]
}

// within wants nodes to answer through both front ends of each hub by then. A request that was
// begun through a hub in the instant in which that fell silent waits for it, so each is given up
// after two seconds.
func (f *fiveHubs) within(t *testing.T, lost time.Time, bound time.Duration, left []*besideHub, names ...string) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), lost.Add(bound))
	defer cancel()
	var all sync.WaitGroup
	for i, h := range left {
		for _, name := range names {
			all.Go(func() {
				for {
					one, cancel := context.WithTimeout(ctx, 2*time.Second)
					err := h.reachesBoth(one, name)
					cancel()
					if err == nil {
						t.Logf("%s is in reach through hub-%d after %v", name, i+2, time.Since(lost))
						return
					}
					if ctx.Err() != nil {
						t.Errorf("%s is out of reach through hub-%d for %v: %v", name, i+2, time.Since(lost), err)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// TestTwoOfFiveKilled: two of five hubs are killed, among them both that one of the nodes has
// sessions with.
func TestTwoOfFiveKilled(t *testing.T) {
	f := startFive(t)
	left := f.lose(t, syscall.SIGKILL)
	f.within(t, time.Now(), reachedWithin, left, f.nodes...)
}

// TestTwoOfFiveStopped: two of five hubs stand still, and their systems go on acknowledging. The
// node that has sessions with these two alone is in reach once its agent has noticed.
func TestTwoOfFiveStopped(t *testing.T) {
	f := startFive(t)
	left := f.lose(t, syscall.SIGSTOP)
	lost := time.Now()
	f.within(t, lost, reachedWithin, left, f.nodes[1:]...)
	f.within(t, lost, 3*tunnel.DefaultKeepalive+late, left, f.nodes[0])
}
