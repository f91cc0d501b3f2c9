// Static pods: a node runs what its files say, with and without a server, and the API
// shows it.

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/e2e/await"
)

// A shelf is the directory of a node's manifests, which has one file.
type shelf struct {
	*cluster
	dir  string
	pod  string // in the API
	port int    // of its server
}

// mark is the last argument of the process of that content.
func (s *shelf) mark(content string) string { return filepath.Base(s.cluster.dir) + "-" + content }

// define has the file be of that content, from one moment to the next.
func (s *shelf) define(t *testing.T, content string) {
	t.Helper()
	hidden := filepath.Join(s.dir, ".web.yaml")
	self, err := os.Executable()
	must(t, err)
	must(t, os.WriteFile(hidden, fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  priorityClassName: system-node-critical
  containers:
  - {name: main, image: none, command: [sh, -c, 'trap "exit 0" TERM; echo here is $0; while :; do sleep 0.1; done', %s]}
  - {name: talk, image: none, command: [sh, -c, 'while sleep 0.1; do echo tick; done']}
  - {name: echo, image: none, command: [%s], env: [{name: %s, value: 'echo-server 127.0.0.1:%d'}], volumeMounts: [{name: test, mountPath: /e2e}]}
  volumes: [{name: test, hostPath: {path: %s}}]
`, s.mark(content), "/e2e/"+filepath.Base(self), roleEnv, s.port, filepath.Dir(self)), 0o600))
	must(t, os.Rename(hidden, filepath.Join(s.dir, "web.yaml")))
}

// processes are those of that content.
func (s *shelf) processes(content string) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if err != nil || len(args) != 4 || args[0] != "sh" || args[3] != s.mark(content) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && alive(pid) {
			out = append(out, pid)
		}
	}
	return out
}

// runs waits until there is one process of that content, and returns it.
func (s *shelf) runs(t *testing.T, content string) int {
	t.Helper()
	var pids []int
	eventually(t, "there is a process of "+content, func() error {
		if pids = s.processes(content); len(pids) != 1 {
			return fmt.Errorf("there are %v", pids)
		}
		return nil
	})
	return pids[0]
}

// gone waits until there is none.
func (s *shelf) gone(t *testing.T, content string) {
	t.Helper()
	eventually(t, "there is no process of "+content, func() error {
		if pids := s.processes(content); len(pids) > 0 {
			return fmt.Errorf("there are %v", pids)
		}
		return nil
	})
}

// shown waits until the API shows the pod to run, as another object than those before.
func (s *shelf) shown(t *testing.T, before ...*corev1.Pod) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	eventually(t, "the mirror pod runs", func() (err error) {
		if p, err = s.client.CoreV1().Pods("default").Get(t.Context(), s.pod, metav1.GetOptions{}); err != nil {
			return err
		}
		if p.DeletionTimestamp != nil || podReady(p) != corev1.ConditionTrue || slices.ContainsFunc(before, func(b *corev1.Pod) bool { return b.UID == p.UID }) {
			return fmt.Errorf("it is %s, %v, %v", p.UID, p.DeletionTimestamp, p.Status.Conditions)
		}
		return nil
	})
	return p
}

// hidden waits until the API shows none.
func (s *shelf) hidden(t *testing.T) {
	t.Helper()
	eventually(t, "there is no mirror pod", func() error {
		_, err := s.client.CoreV1().Pods("default").Get(t.Context(), s.pod, metav1.GetOptions{})
		if err == nil {
			return errors.New("there is one")
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// same wants the process of that content to be the one that it was.
func (s *shelf) same(t *testing.T, when, content string, pid int) {
	t.Helper()
	if now := s.runs(t, content); now != pid {
		t.Errorf("%s the process is %d, was %d", when, now, pid)
	}
}

func TestStaticPods(t *testing.T) {
	t.Parallel()
	s := &shelf{dir: t.TempDir(), pod: "web-node-1", port: await.FreePort(t)}
	s.cluster = startUp(t, "--nodes", "1", "--agent-arg=--pod-manifest-path="+s.dir, "--agent-arg=--file-check-frequency=100ms")
	base := filepath.Join(s.cluster.dir, "nodes", "node-1", "agent")

	// A node that starts while there is no server.
	server, agent := s.kill(t, "server"), s.kill(t, "node-1")
	s.define(t, "one")
	run(t, agent, base)
	pid := s.runs(t, "one")
	run(t, server, filepath.Join(s.cluster.dir, "server"))
	first := s.shown(t)
	if o := metav1.GetControllerOf(first); o == nil || o.Kind != "Node" || o.Name != "node-1" || len(first.Labels) > 0 || first.Spec.ServiceAccountName != "" {
		t.Errorf("%+v", first)
	}
	if out := s.mustKubectl(t, "", "get", "pod", "web-node-1"); !strings.Contains(out, "Running") || !strings.Contains(out, "3/3") {
		t.Errorf("kubectl get: %s", out)
	}
	if out := s.mustKubectl(t, "", "logs", "web-node-1", "-c", "main"); out != "here is "+s.mark("one")+"\n" {
		t.Errorf("kubectl logs: %q", out)
	}
	if out := s.mustKubectl(t, "", "exec", "web-node-1", "-c", "main", "--", "echo", "inside"); out != "inside\n" {
		t.Errorf("kubectl exec: %q", out)
	}
	s.streams(t)
	eventually(t, "its events are found", func() error {
		if out := s.mustKubectl(t, "", "describe", "pod", "web-node-1"); !strings.Contains(out, "Started container main") {
			return errors.New(out)
		}
		return nil
	})

	// Nothing that is done to the mirror moves the process.
	s.mustKubectl(t, "", "delete", "pod", "web-node-1")
	second := s.shown(t, first)
	s.same(t, "after kubectl delete", "one", pid)
	s.mustKubectl(t, "", "drain", "node-1")
	s.mustKubectl(t, "", "uncordon", "node-1")
	run(t, s.kill(t, "node-1"), base)
	s.same(t, "after a restart of the agent", "one", pid)
	if now := s.shown(t); now.UID != second.UID {
		t.Errorf("after a drain and a restart the mirror is %s, was %s", now.UID, second.UID)
	}

	// The file does.
	s.define(t, "two")
	s.runs(t, "two")
	s.gone(t, "one")
	s.shown(t, first, second)
	agent = s.kill(t, "node-1")
	must(t, os.Remove(filepath.Join(s.dir, "web.yaml")))
	run(t, agent, base)
	s.gone(t, "two")
	s.hidden(t)
	s.late(t)
}

// late: a machine without a server, and one that has not joined yet, runs its static pods, and
// goes on with them when it is a node.
func (s *shelf) late(t *testing.T) {
	under, client := bin(t)
	join := s.joinCommand(t, filepath.Join(client, "hawser"))
	shelf := &shelf{cluster: s.cluster, dir: t.TempDir(), pod: "web-late", port: await.FreePort(t)}
	server := s.kill(t, "server")
	shelf.define(t, "late")
	dir := filepath.Join(s.cluster.dir, "nodes", "late")
	must(t, os.MkdirAll(dir, 0o700))
	program := filepath.Join(under, "hawser-agent")
	alone := []string{"--node-name=late", "--data-dir=" + dir, "--eviction-hard=", "--pod-manifest-path=" + shelf.dir}
	run(t, append([]string{program}, alone...), filepath.Join(dir, "agent"))
	pid := shelf.runs(t, "late")
	s.kill(t, "late")
	run(t, append(append([]string{program}, join[1:]...), alone...), filepath.Join(dir, "agent"))
	shelf.same(t, "once it has a server", "late", pid)
	run(t, server, filepath.Join(s.cluster.dir, "server"))
	shelf.shown(t)
	shelf.same(t, "once it is a node", "late", pid)
}

// streams: the log of a mirror pod is followed, its container is attached to, and its port
// is forwarded.
func (s *shelf) streams(t *testing.T) {
	s.begin(t, "tick", "logs", "-f", s.pod, "-c", "talk")
	s.begin(t, "tick", "attach", s.pod, "-c", "talk")
	// kubectl ends if the first connection cannot be made.
	eventually(t, "the port answers on its node", func() error { return echoesAt(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))) })
	at := s.forward(t, s.pod, s.port)
	eventually(t, "the forwarded port answers", func() error { return echoesAt(t, at) })
}
