// kubectl while servers are drained, killed and replaced: what it has open through another one
// goes on, and what it begins is answered.

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A lostServer is one that has ended, and how it is started again.
type lostServer struct {
	*cluster
	args  []string
	ready int // how often it has said that it is
}

// lose has one of the servers end, and waits for that.
func (c *cluster) lose(t *testing.T, how func()) *lostServer {
	t.Helper()
	b, err := os.ReadFile(c.dir + ".pid")
	must(t, err)
	pid, err := strconv.Atoi(string(b))
	must(t, err)
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	must(t, err)
	how()
	eventually(t, "the server has ended", func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return errNotYet
		}
		return nil
	})
	return &lostServer{c, strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"), strings.Count(readFile(t, c.dir+".log"), "msg=ready")}
}

// again starts another process in its place.
func (s *lostServer) again(t *testing.T) {
	t.Helper()
	run(t, s.args, s.dir)
	eventually(t, "the server is ready again", func() error {
		if strings.Count(readFile(t, s.dir+".log"), "msg=ready") <= s.ready {
			return errNotYet
		}
		return nil
	})
}

// drain is hawser server drain.
func (c *cluster) drain(t *testing.T) {
	t.Helper()
	_, client := bin(t)
	out, err := exec.CommandContext(t.Context(), filepath.Join(client, "hawser"), "server", "drain", "--data-dir", c.dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "drained: ") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestKubectlPastServers: kubectl's logs -f, exec -it and port-forward through one of three servers
// lose nothing while the one that has the node as well is drained, the third is killed, and both
// are replaced. Meanwhile each server that runs answers what kubectl begins, and so do the others
// once the first is drained too.
//
// The log of a node that has no session with the first server goes on as well, whichever of its
// servers goes.
func TestKubectlPastServers(t *testing.T) {
	t.Parallel()
	st := startStore(t)
	first := startUp(t, st.upArgs("--nodes=0")...)
	a, b, c := first.another(t, "a", st), first.another(t, "b", st), first.another(t, "c", st)
	first.agent(t, "roamer", []*cluster{a, b, c})
	first.waitNode(t, "roamer")
	first.podWith(t, "target", "", `,"nodeName":"roamer"`, "sleep", "100000")
	for _, s := range []*cluster{a, b, c} {
		eventually(t, "the node is in reach", func() error { return s.reaches(t, "target") })
	}
	first.agent(t, "distant", []*cluster{b, c})
	first.waitNode(t, "distant")
	all, far := startLoadsOn(t, a, "roamer"), loads{startNumbers(t, a, "distant")}
	check := func(when string, servers ...*cluster) {
		t.Helper()
		for _, s := range servers {
			eventually(t, when, func() error { return s.reaches(t, "target") })
		}
		all.goOn(t, when)
	}
	check("at first", a, b, c)
	drained := b.lose(t, func() { b.drain(t) })
	check("after a server was drained", a, c)
	far.goOn(t, "after one of the distant node's servers was drained")
	killed := c.lose(t, func() { c.killServer(t) })
	check("after another was killed", a)
	drained.again(t)
	check("after the drained one was replaced", a, b)
	far.goOn(t, "once the distant node has a server again")
	killed.again(t)
	check("after the killed one was replaced", a, b, c)
	all.finish(t)
	far.finish(t)
	a.lose(t, func() { a.drain(t) })
	for _, s := range []*cluster{b, c} {
		eventually(t, "after the first one was drained", func() error { return s.reaches(t, "target") })
	}
}
