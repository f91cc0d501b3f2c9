// Links that are silent in one direction only, and processes that stand still:
// each end finds out for itself, and when all is well again nothing was lost.

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
)

// Signs of what an end of a tunnel has noticed.
const (
	agentParked  = `msg="connection lost, the session waits for another"`
	agentFenced  = "another agent is this node"
	windowIsOver = "detach window is over"
)

// silences are the ways in which a link can be silent.
var silences = []struct {
	name string
	way  lab.Direction
}{
	{"nothing reaches the server", lab.Out},
	{"nothing reaches the agent", lab.In},
	{"nothing reaches anybody", lab.Both},
}

// Whichever direction is dead, both ends stop to rely on the connection, and
// streams go on when it is back; past the detach window both give up and say so.
func TestSilence(t *testing.T) {
	t.Parallel()
	// While one node is looked at the others stay cut: the window has room for that
	// on a slow machine.
	m := startMixed(t, "--agent-arg=--link-keepalive=1s", "--server-arg=--link-keepalive=1s",
		"--agent-arg=--detach-window=5m", "--server-arg=--detach-window=5m")
	m.load(t, startNumbers, startEcho, startKeys)
	marks := map[string]*logMark{}
	for _, d := range silences {
		m.each(t, d.name, func(t *testing.T, n nodeOver) {
			marks[n.Name] = m.mark(t, n.Name)
			must(t, n.CutOneWay(t.Context(), d.way))
		}, func(t *testing.T, n nodeOver) {
			m.serverParked(t, n)
			marks[n.Name].until(t, late, agentParked)
			must(t, n.Heal(t.Context()))
			n.goOn(t, "once the link is whole")
			n.goOn(t, "later on")
		})
	}
	resume := map[string]func(){}
	m.each(t, "agent stands still", func(t *testing.T, n nodeOver) {
		resume[n.Name] = stop(t, m.pid(t, n.Name))
	}, func(t *testing.T, n nodeOver) {
		m.serverParked(t, n)
		resume[n.Name]()
		n.goOn(t, "once the agent goes on")
		n.goOn(t, "later on")
	})
	t.Run("server stands still", func(t *testing.T) {
		var parked []*logMark
		for _, n := range m.nodes {
			parked = append(parked, m.mark(t, n.Name))
		}
		resume := stop(t, m.pid(t, "server"))
		for _, p := range parked {
			p.until(t, late, agentParked)
		}
		resume()
		for _, n := range m.nodes {
			n.goOn(t, "once the server goes on")
			n.goOn(t, "later on")
		}
	})
	m.finish(t)
	m.restart(t, "--detach-window=3s")
	m.beside(t, "past the window", m.testOneWayTooLong)
	m.restart(t, "--detach-window=60s")
	m.beside(t, "superseded while it stands still", m.testSupersededWhileStopped)
}

// serverParked waits until the server knows that a node's tunnel leads nowhere.
func (m *mixed) serverParked(t *testing.T, n nodeOver) {
	t.Helper()
	parked := fmt.Sprintf("hawser_hub_sessions_parked{transport=%q}", n.transport)
	before(t, late, "the server notices", func() error {
		if got := m.metric(t, parked); got != 1 {
			return fmt.Errorf("%s %v", parked, got)
		}
		return nil
	})
}

// testOneWayTooLong ends streams by a silence in one direction that is longer than
// the detach window.
func (m *mixed) testOneWayTooLong(t *testing.T, n nodeOver) {
	pod, spec := on(n.Name, "late")
	m.podWith(t, pod, "", spec, "sh", "-c", "i=0; while :; do i=$((i+1)); echo number $i; sleep 0.05; done")
	for _, d := range silences[:2] {
		t.Run(d.name, func(t *testing.T) {
			m.execs(t, pod)
			follow := loads{followLines(t, m.cluster, pod, numberLine)}
			follow.goOn(t, "at first")
			endless := m.begin(t, "line 5", "exec", pod, "--", "sh", "-c", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done")
			agent, server := m.mark(t, n.Name), m.mark(t, "server")
			must(t, n.CutOneWay(t.Context(), d.way))
			endless.mustFail(t)
			agent.until(t, patience, windowIsOver)
			server.until(t, patience, "node="+n.Name+" ", windowIsOver)
			must(t, n.Heal(t.Context()))
			m.execs(t, pod)
			follow.goOn(t, "once there is another session")
			follow.finish(t)
		})
	}
}

// execs waits until exec into a pod answers.
func (c *cluster) execs(t *testing.T, pod string) {
	t.Helper()
	eventually(t, "exec works", func() error { return c.reaches(t, pod) })
}

// stop makes a process stand still until resume, or the end of the test.
func stop(t *testing.T, pid int) (resume func()) {
	t.Helper()
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	resume = func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // it may have gone on, and ended
	return resume
}

// before is eventually with another bound.
func before(t *testing.T, bound time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(bound)
	eventually(t, what, func() error {
		err := check()
		if err != nil && time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, bound, err)
		}
		return err
	})
}

// A logMark is a place in a log.
type logMark struct {
	file string
	from int64
}

// mark is where the log of the server ("server"), or of a node's agent, ends now.
func (c *cluster) mark(t *testing.T, of string) *logMark {
	t.Helper()
	file := filepath.Join(c.dir, "server.log")
	if of != "server" {
		file = filepath.Join(c.dir, "nodes", of, "agent.log")
	}
	fi, err := os.Stat(file)
	must(t, err)
	return &logMark{file, fi.Size()}
}

// until waits for a line beyond the mark that has all these words.
func (l *logMark) until(t *testing.T, bound time.Duration, words ...string) {
	t.Helper()
	before(t, bound, fmt.Sprintf("%s says %q", l.file, words), func() error {
		b, err := os.ReadFile(l.file)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(b[min(l.from, int64(len(b))):]) {
			found := 0
			for _, w := range words {
				if strings.Contains(string(line), w) {
					found++
				}
			}
			if found == len(words) {
				return nil
			}
		}
		return errNotYet
	})
}
