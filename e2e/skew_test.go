// Programs of two versions: an upgrade has old agents with new servers, new agents with old
// servers, and servers of both on one store.

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/cmd/lab"
	"github.com/hawser-project/hawser/e2e/await"
)

// previous builds the programs of the commit before the latest, without the race detector,
// as they are not under test, and returns their directory.
func previous(t *testing.T) string {
	t.Helper()
	bin(t)
	git := func(args ...string) ([]byte, error) {
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", ".."}, args...)...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(errs.Bytes()))
		}
		return out.Bytes(), nil
	}
	commit, err := git("rev-parse", "--verify", "HEAD~1^{commit}")
	if err != nil {
		t.Skipf("SKIPPED: the commit before this one is not here (%v): clone with its history", err)
	}
	source, err := git("archive", "--format=tar", strings.TrimSpace(string(commit)))
	must(t, err)
	dir := t.TempDir()
	tar := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
	tar.Stdin = bytes.NewReader(source)
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	began := time.Now()
	must(t, buildFrom(dir, "previous", "./cmd/..."))
	t.Logf("built %s in %v", commit[:7], time.Since(began).Round(time.Second))
	return filepath.Join(programs.dir, "previous")
}

func TestVersionSkew(t *testing.T) {
	old := previous(t) // before the tests that are timed
	t.Parallel()
	st := startStore(t)
	a := startUp(t, st.upArgs("--nodes", "0", "--server-arg=--server-id=new")...)
	b := a.anotherOf(t, old, "old", st)
	// Each agent knows one server, of the other version: the other server reaches it by
	// that one only.
	for _, n := range []struct {
		name, under string
		server      *cluster
	}{{"old-agent", old, a}, {"new-agent", "", b}} {
		relay, err := lab.NewRelay("127.0.0.1:" + strconv.Itoa(n.server.port))
		must(t, err)
		t.Cleanup(relay.Close)
		_, port, _ := net.SplitHostPort(relay.Addr())
		viaRelay := &cluster{}
		viaRelay.port, err = strconv.Atoi(port)
		must(t, err)
		if n.under == "" {
			n.under, _ = bin(t)
		}
		a.agentOf(t, n.under, n.name, []*cluster{viaRelay})
		a.waitNode(t, n.name)
		spec := `,"nodeName":"` + n.name + `"`
		a.podWith(t, n.name, "", spec, "sh", "-c", "echo started; exec sleep 100000")
		echo := await.FreePort(t)
		a.roleInPodWith(t, "echo-"+n.name, "", spec, fmt.Sprintf("echo-server 127.0.0.1:%d", echo))
		for which, s := range map[string]*cluster{"new server": a, "old server": b} {
			t.Run(n.name+" by the "+which, func(t *testing.T) { s.testSkew(t, n.name, echo, relay) })
		}
	}
}

// testSkew wants logs, exec and port-forward to work, and streams to outlive connections.
func (c *cluster) testSkew(t *testing.T, node string, echo int, relay *lab.Relay) {
	eventually(t, node+" is in reach", func() error { return c.reaches(t, node) })
	if logs := c.mustKubectl(t, "", "logs", node); logs != "started\n" {
		t.Errorf("logs: %q", logs)
	}
	conn, err := net.Dial("tcp", c.forward(t, "echo-"+node, echo))
	must(t, err)
	defer conn.Close()
	say := func(line string) {
		t.Helper()
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err := io.WriteString(conn, line)
		got := make([]byte, len(line))
		_, rerr := io.ReadFull(conn, got)
		if must(t, errors.Join(err, rerr)); string(got) != line {
			t.Errorf("%q came back as %q", line, got)
		}
	}
	say("before the cut")
	file := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(file)
	must(t, err)
	defer out.Close()
	const n = 20
	exec := c.startKubectl(t, "exec", node, "--", "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep 0.1; done", n))
	exec.Stdout = out
	must(t, exec.Start())
	eventually(t, "the command writes", func() error {
		if readFile(t, file) == "" {
			return errNotYet
		}
		return nil
	})
	must(t, relay.Cut())
	say("after the cut")
	must(t, exec.Wait())
	var want strings.Builder
	for i := range n {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if got := readFile(t, file); got != want.String() {
		t.Errorf("the command wrote %q", got)
	}
}
