// What is said when a cluster does not come up.

package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node"
)

func TestNotReadyIsOneLine(t *testing.T) {
	cause := errors.New("interrupt signal received")
	for why, want := range map[string]string{
		"":        "2 of 3 nodes are not Ready: interrupt signal received; see LOG",
		"refused": "2 of 3 nodes are not Ready: interrupt signal received; last: refused; see LOG",
	} {
		if err := notReady(2, 3, cause, why, "LOG"); err.Error() != want || !errors.Is(err, cause) {
			t.Errorf("last %q: %q, want %q", why, err, want)
		}
	}
}

// What a node says of itself is told, in one line. What it said before its agent was started
// counts for nothing.
func TestCountReadySaysWhy(t *testing.T) {
	began := time.Now()
	node := func(name string, is corev1.ConditionStatus, message string, at time.Time) (n corev1.Node) {
		n.Name = name
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Message: "no"},
			{Type: corev1.NodeReady, Status: is, Message: message, LastHeartbeatTime: metav1.NewTime(at.Truncate(time.Second))},
		}
		return n
	}
	a, b := node("a", corev1.ConditionTrue, "fine", began), node("b", corev1.ConditionFalse, "no\naddress", began)
	old := node("old", corev1.ConditionTrue, "fine", began.Add(-time.Minute))
	ready, why := countReady([]corev1.Node{a, b, node("c", corev1.ConditionUnknown, "silent", began), {}}, began)
	if ready != 1 || why != "b: no?address" {
		t.Errorf("%d, %q", ready, why)
	}
	if ready, why = countReady([]corev1.Node{a, old}, began); ready != 1 || why != "old: it has not reported since it was started" {
		t.Errorf("of an earlier start: %d, %q", ready, why)
	}
}

// A machine without addresses would wait for its nodes in vain.
func TestUpNeedsAnAddress(t *testing.T) {
	loopback, outside := &net.IPNet{IP: net.IPv4(127, 0, 0, 1)}, &net.IPNet{IP: net.IPv4(192, 0, 2, 1)}
	local := &net.IPNet{IP: net.ParseIP("fe80::1")}
	for _, tt := range []struct {
		name string
		cfg  clusterConfig
		have []net.Addr
		ok   bool
	}{
		{"loopback alone", clusterConfig{nodes: 1}, []net.Addr{loopback, local}, false},
		{"nothing", clusterConfig{nodes: 1}, nil, false},
		{"an address", clusterConfig{nodes: 1}, []net.Addr{loopback, outside}, true},
		{"namespaces", clusterConfig{nodes: 1, netns: true}, nil, true},
		{"no nodes", clusterConfig{}, nil, true},
		{"one that is named", clusterConfig{nodes: 1, agentArgs: []string{"--node-ip=192.0.2.1"}}, nil, true},
	} {
		err := tt.cfg.checkAddress(tt.have)
		if (err == nil) != tt.ok || err != nil && !strings.Contains(err.Error(), "--netns") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestStartAgain: the line by which a child can be started again is one for a shell.
func TestStartAgain(t *testing.T) {
	args := []string{"--eviction-hard", "memory.available<100Mi", "--data-dir", "/a b/it's", "--x=$HOME"}
	gone := &child{name: "node-1", cmd: exec.Command("/bin/true", args...), done: make(chan struct{})}
	close(gone.done)
	in, out := io.Pipe()
	defer in.Close()
	ctx, cancel := context.WithCancel(t.Context())
	c := &cluster{cfg: clusterConfig{out: out}, server: gone, spawner: &spawner{}}
	ended := make(chan error, 1)
	go func() { ended <- c.wait(ctx) }()
	line, err := bufio.NewReader(in).ReadString('\n')
	cancel()
	if err = errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut(strings.TrimSpace(line), "start it again with: ")
	said, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+command).Output()
	if want := strings.Join(append([]string{"/bin/true"}, args...), "\n") + "\n"; err != nil || string(said) != want {
		t.Errorf("%q starts %q, want %q (%v)", command, said, want, err)
	}
}

// What is waited for is told once it takes long, and once.
func TestSlowly(t *testing.T) {
	var out strings.Builder
	s := slowly{out: &out, began: time.Now().Add(time.Hour)}
	s.say("too early")
	s.began = time.Now().Add(-2 * quietStart)
	s.say("one")
	s.say("one")
	s.say("two")
	if out.String() != "one\ntwo\n" {
		t.Errorf("%q", out.String())
	}
}

// A process that is stopped before it minds signals has ended well.
func TestDiedOf(t *testing.T) {
	run := func(script string) error { return exec.CommandContext(t.Context(), "sh", "-c", script).Run() }
	if err := run("kill -TERM $$"); !diedOf(err, syscall.SIGTERM) {
		t.Errorf("of the signal: %v", err)
	}
	for _, err := range []error{run("kill -KILL $$"), run("exit 1"), errors.New("else"), nil} {
		if diedOf(err, syscall.SIGTERM) {
			t.Errorf("not of the signal: %v", err)
		}
	}
}

// Flags that cannot work leave nothing behind, and a directory that is not Hawser's
// stays as it is.
func TestRefusedClusterMakesNothing(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "dir")
	for want, cfg := range map[string]clusterConfig{
		"--nodes -1":                    {dir: dir, nodes: -1, port: 6443},
		"--port 0":                      {dir: dir},
		"--server-arg: unknown flag":    {dir: dir, port: 6443, serverArgs: []string{"--nonsense"}},
		"--server-arg: --detach-window": {dir: dir, port: 6443, serverArgs: []string{"--detach-window=-1s"}},
		"--dir: " + parent + " is open": {dir: parent, port: 6443},
		"--dir: /tmp is open":           {dir: "/tmp", port: 6443},
	} {
		before, err := os.Stat(cfg.dir)
		c, serr := startCluster(t.Context(), cfg)
		if serr == nil || !strings.HasPrefix(serr.Error(), want) {
			t.Errorf("got %v, want %s", serr, want)
		}
		if c != nil {
			t.Errorf("%s: started", want)
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("%s: made %v, %v", want, left, err)
		}
		if err != nil {
			continue
		}
		if after, err := os.Stat(cfg.dir); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%s: mode %v became %v, %v", want, before.Mode(), after.Mode(), err)
		}
	}
}

// The nodes of `up` share the disk of the machine: that it is nearly full is no reason to run
// no pod.
func TestUpKnowsNoDiskPressure(t *testing.T) {
	thresholds, err := node.ParseThresholds(upEviction)
	if err != nil || len(thresholds) == 0 {
		t.Fatalf("%v, %v", thresholds, err)
	}
	for _, h := range thresholds {
		if h.Signal != node.MemoryAvailable {
			t.Errorf("%s counts", h.Signal)
		}
	}
}
