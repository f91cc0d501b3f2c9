// Several servers on one store: any of them reaches any node, and nodes outlive servers.

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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/controlplane/servers"
	"github.com/hawser-project/hawser/e2e/await"
)

// reachedWithin is how soon a node must be in reach again after a server that has it was killed.
const reachedWithin = 5 * time.Second

// another starts one more server of c on the same store, and returns what a client of it
// is.
func (c *cluster) another(t *testing.T, id string, st *store, args ...string) *cluster {
	t.Helper()
	under, _ := bin(t)
	return c.anotherOf(t, under, id, st, args...)
}

// anotherOf is another, with the programs in under.
func (c *cluster) anotherOf(t *testing.T, under, id string, st *store, args ...string) *cluster {
	t.Helper()
	o := &cluster{dir: filepath.Join(shortTempDir(t), id), port: await.FreePort(t), out: &lines{}}
	c.keysTo(t, o.dir)
	run(t, append([]string{
		filepath.Join(under, "hawser"), "server", "--data-dir", o.dir, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(o.port),
		"--connect-port", "0", "--server-id", id,
	}, append(st.flags(), args...)...), o.dir)
	t.Cleanup(func() {
		if b, err := os.ReadFile(o.dir + ".log"); err == nil && (t.Failed() || hasRace(string(b))) {
			t.Errorf("--- %s\n%s", id, b)
		}
	})
	eventually(t, id+" is ready", func() error {
		b, err := os.ReadFile(o.dir + ".log")
		if err == nil && !strings.Contains(string(b), "msg=ready") {
			err = errors.New("it has not said so")
		}
		return err
	})
	var err error
	o.rest, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig())
	must(t, err)
	o.rest.QPS, o.rest.Burst = 200, 400
	o.client, err = kubernetes.NewForConfig(o.rest)
	must(t, err)
	return o
}

// keysTo copies the keys to a new data directory.
func (c *cluster) keysTo(t *testing.T, dir string) {
	t.Helper()
	must(t, os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Join(c.dir, "pki"))))
	must(t, os.Chmod(dir, 0o700))
	must(t, os.Chmod(filepath.Join(dir, "pki"), 0o700))
	keys, _ := filepath.Glob(filepath.Join(dir, "pki", "*.key"))
	for _, key := range keys {
		must(t, os.Chmod(key, 0o600))
	}
}

// endsAsCopy checks what becomes of a server with a copy of c's data directory, on its
// store.
func (c *cluster) endsAsCopy(t *testing.T, st *store, args ...string) {
	t.Helper()
	under, _ := bin(t)
	dir := filepath.Join(shortTempDir(t), "copy")
	c.keysTo(t, dir)
	id, err := os.ReadFile(filepath.Join(c.dir, "identity"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "identity"), id, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "server.lock"), nil, 0o600))
	oneLine(t, exec.CommandContext(t.Context(), filepath.Join(under, "hawser"), append([]string{
		"server", "--data-dir", dir, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(await.FreePort(t)), "--connect-port", "0",
	}, append(st.flags(), args...)...)...), "--data-dir "+dir+": another server runs with a copy of this one's data directory, at 127.0.0.1:"+strconv.Itoa(c.port))
}

// killServer kills the process of a server that another has started.
func (c *cluster) killServer(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(c.dir + ".pid")
	must(t, err)
	pid, err := strconv.Atoi(string(b))
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

// agent runs an agent that knows the given servers.
func (c *cluster) agent(t *testing.T, name string, servers []*cluster, args ...string) {
	t.Helper()
	under, _ := bin(t)
	c.agentOf(t, under, name, servers, args...)
}

// agentOf is agent, with the programs in under.
func (c *cluster) agentOf(t *testing.T, under, name string, servers []*cluster, args ...string) {
	t.Helper()
	_, client := bin(t)
	join := c.joinCommand(t, filepath.Join(client, "hawser"))
	var urls []string
	for _, s := range servers {
		urls = append(urls, "https://127.0.0.1:"+strconv.Itoa(s.port))
	}
	for i, word := range join {
		if word == "--server" {
			join[i+1] = strings.Join(urls, ",")
		}
	}
	dir := filepath.Join(c.dir, "nodes", name)
	must(t, os.MkdirAll(dir, 0o700))
	run(t, append(append([]string{filepath.Join(under, "hawser-agent")}, join[1:]...),
		append([]string{"--node-name", name, "--data-dir", dir, "--eviction-hard="}, args...)...), filepath.Join(c.dir, name))
}

// reaches says whether a command runs in a pod by way of this server, asked once.
func (c *cluster) reaches(t *testing.T, pod string) error {
	t.Helper()
	out, errs, code := c.kubectl(t, "", "exec", pod, "--", "echo", "ahoy")
	if code != 0 || strings.TrimSpace(out) != "ahoy" {
		return fmt.Errorf("exit code %d: %s%s", code, out, errs)
	}
	return nil
}

// TestTwoServers: each reaches the nodes of the other, and a node whose server is killed
// is in reach of the other at once.
func TestTwoServers(t *testing.T) {
	bin(t) // before the tests that are timed
	t.Parallel()
	st := startStore(t)
	a := startUp(t, st.upArgs("--nodes=1", "--server-arg=--server-id=a")...)
	b := a.another(t, "b", st)
	eventually(t, "both have told of themselves", func() error {
		all, err := b.client.CoordinationV1().Leases(servers.Namespace).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) != 2 {
			err = fmt.Errorf("%d have", len(all.Items))
		}
		return err
	})
	a.podWith(t, "near", "", `,"nodeName":"node-1"`, "sh", "-c", "echo started; sleep 100000")
	eventually(t, "b reaches the node of a", func() error { return b.reaches(t, "near") })
	if logs := b.mustKubectl(t, "", "logs", "near"); logs != "started\n" {
		t.Errorf("logs through b: %q", logs)
	}
	must(t, a.reaches(t, "near"))
	servesDefinition(t, a, b)
	b.endsAsCopy(t, st, "--server-id", "b")
	b.endsAsCopy(t, st, "--server-id", "another")

	a.agent(t, "roamer", []*cluster{b, a}, "--server-count=1")
	a.waitNode(t, "roamer")
	a.podWith(t, "far", "", `,"nodeName":"roamer"`, "sh", "-c", "echo started; sleep 100000")
	eventually(t, "a reaches the node of b", func() error { return a.reaches(t, "far") })
	b.killServer(t)
	soon(t, time.Now(), "far", a)
}

// servesDefinition: a kind that is defined at one server is served by the other, until it is
// defined no more.
func servesDefinition(t *testing.T, at, other *cluster) {
	t.Helper()
	const definition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buoys.sea.example.com}
spec:
  group: sea.example.com
  scope: Namespaced
  names: {plural: buoys, singular: buoy, kind: Buoy}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {colour: {type: string}}}}}]
`
	const buoy = "apiVersion: sea.example.com/v1\nkind: Buoy\nmetadata: {name: north}\ncolour: red\n"
	at.mustKubectl(t, definition, "create", "-f", "-")
	eventually(t, "the other server has the kind", func() error {
		if out, errs, code := other.kubectl(t, buoy, "apply", "-f", "-"); code != 0 {
			return errors.New(out + errs)
		}
		return nil
	})
	for _, c := range []*cluster{at, other} {
		if out := c.mustKubectl(t, "", "get", "buoy", "north", "-o", "jsonpath={.colour}"); out != "red" {
			t.Errorf("%q", out)
		}
	}
	other.mustKubectl(t, "", "delete", "crd", "buoys.sea.example.com")
	eventually(t, "the first server has the kind no more", func() error {
		if _, _, code := at.kubectl(t, "", "get", "buoys"); code == 0 {
			return errNotYet
		}
		return nil
	})
}

// soon waits until a command runs in a pod by way of a server, and fails if it does not
// before a node must be in reach again.
func soon(t *testing.T, killed time.Time, pod string, server *cluster) {
	t.Helper()
	for {
		err := server.reaches(t, pod)
		took := time.Since(killed)
		if err == nil {
			t.Logf("%s is in reach %v after a server was killed", pod, took)
			return
		}
		if took > reachedWithin {
			t.Fatalf("%s is out of reach for %v: %v", pod, took, err)
		}
	}
}

// TestServerOfThreeKilled: one of three servers is killed while bulk comes from every node.
// All nodes are in reach of the other two.
func TestServerOfThreeKilled(t *testing.T) {
	t.Parallel()
	st := startStore(t)
	a := startUp(t, st.upArgs("--nodes=0", "--server-arg=--server-id=a")...)
	b, c := a.another(t, "b", st), a.another(t, "c", st)
	names := []string{"n-a", "n-b", "n-c"}
	for i, servers := range [][]*cluster{{a, b, c}, {b, c, a}, {c, a, b}} {
		a.agent(t, names[i], servers)
	}
	for _, name := range names {
		a.waitNode(t, name)
		a.podWith(t, name, "", `,"nodeName":"`+name+`"`, "sleep", "100000")
		for _, s := range []*cluster{a, b, c} {
			eventually(t, name+" is in reach", func() error { return s.reaches(t, name) })
		}
		load := a.startKubectl(t, "exec", name, "--", "cat", "/dev/zero")
		must(t, load.Start()) // it ends with the test, or with the server that it goes through
		t.Cleanup(func() { _ = load.Wait() })
	}
	b.killServer(t)
	killed := time.Now()
	for _, name := range names {
		soon(t, killed, name, a)
	}
	killed = time.Now() // each takes a kubectl's time; what c knows is its own
	for _, name := range names {
		soon(t, killed, name, c)
	}
}
