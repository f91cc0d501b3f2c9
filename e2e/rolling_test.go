// Upgrades without a lost request: each server and each agent is restarted in turn, under
// a load that fails at the first reset, 5xx or stream that breaks.

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// rollingFlags are those of the help topic servers for an upgrade without a lost request.
var rollingFlags = []string{"--shutdown-delay-duration=2s", "--shutdown-send-retry-after", "--graceful-shutdown-timeout=30s"}

// between is how long the load goes on between two restarts.
const between = 2 * time.Second

// A member is a process of the cluster that is restarted.
type rollingMember struct {
	name, base string // base.log and base.pid are its
	ready      string // what it logs when it is; empty if it is not waited for
	leaving    string // what it logs when it has told the others that it leaves; likewise
	meanwhile  func() // called then, and when it has ended
}

// agentSessions is how many an agent has, with a server each.
const agentSessions = 2

func TestRollingRestart(t *testing.T) {
	st := startStore(t)
	var args []string
	for _, f := range rollingFlags {
		args = append(args, "--server-arg="+f)
	}
	a := startUp(t, st.upArgs(append(args, "--nodes", "0", "--server-arg=--server-id=a")...)...)
	b, c := a.another(t, "b", st, rollingFlags...), a.another(t, "c", st, rollingFlags...)
	servers := []*cluster{a, b, c}
	r := &rolling{cluster: a, backends: watchBackends(t, servers)}
	for i, name := range []string{"n-a", "n-b", "n-c"} {
		a.agent(t, name, []*cluster{servers[i], servers[(i+1)%3], servers[(i+2)%3]})
		r.addNode(t, name)
	}
	for _, n := range r.nodes {
		for _, s := range servers {
			eventually(t, n.name+" is in reach", func() error { return s.reaches(t, n.name) })
		}
	}
	r.start(t)
	for i, base := range []string{filepath.Join(a.dir, "server"), b.dir, c.dir} {
		m := rollingMember{name: "server " + string("abc"[i]), base: base, ready: "msg=ready"}
		r.pass(between)
		r.restart(t, m)
		r.check(t, m.name)
	}
	for _, n := range r.nodes {
		r.pass(between)
		n.replacing.Lock() // what is open to it when it is told to stop ends with it; what begins after that does not
		var streams sync.WaitGroup
		open := sync.OnceFunc(n.replacing.Unlock)
		r.restart(t, rollingMember{
			name: "agent of " + n.name, base: filepath.Join(a.dir, n.name), leaving: "msg=leaving",
			meanwhile: func() { open(); r.each(&streams, n) },
		})
		a.waitNode(t, n.name)
		streams.Wait()
		r.check(t, "the agent of "+n.name)
	}
	r.pass(between)
	r.finish(t)
}

// restart has a process end by SIGTERM and starts it again by its own command line.
func (r *rolling) restart(t *testing.T, m rollingMember) {
	t.Helper()
	began := time.Now()
	b, err := os.ReadFile(m.base + ".pid")
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(t, err)
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	must(t, err)
	already := func(line string) int { return strings.Count(readFile(t, m.base+".log"), line) }
	ready, leaving := already(m.ready), already(m.leaving)
	must(t, syscall.Kill(pid, syscall.SIGTERM))
	if m.leaving != "" {
		eventually(t, m.name+" has said that it leaves", func() error {
			if already(m.leaving) < leaving+agentSessions {
				return errNotYet
			}
			return nil
		})
		m.meanwhile()
	}
	eventually(t, m.name+" has ended", func() error {
		if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return errNotYet
		}
		return nil
	})
	ended := time.Since(began)
	if m.meanwhile != nil {
		m.meanwhile()
	}
	run(t, strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"), m.base)
	if m.ready != "" {
		eventually(t, m.name+" is ready", func() error {
			if already(m.ready) <= ready {
				return errNotYet
			}
			return nil
		})
	}
	t.Logf("%s: ended after %v, back after %v", m.name, ended.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return string(b)
}
