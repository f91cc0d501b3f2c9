package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/e2e/await"
)

// joinPatience is what each node adds to patience while a fleet joins.
const joinPatience = 50 * time.Millisecond

// A site is a running hawser server.
type site struct {
	pid   int
	data  string // its directory
	admin *rest.Config
	api   kubernetes.Interface
	idle  func() // closes api's connections
}

func startServer(t testing.TB, args ...string) *site {
	t.Helper()
	built = true
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	port := strconv.Itoa(await.FreePort(t))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, append([]string{
		"server", "--data-dir", filepath.Join(dir, "data"), "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
		"--secure-port", port, "--connect-port", "0",
	}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { ended <- cmd.Wait() })
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		wg.Wait()
		if err := <-ended; err != nil || t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("server: %v\n%s", err, b[max(0, len(b)-3000):])
		}
		_ = log.Close()
	})
	s := &site{pid: cmd.Process.Pid, data: filepath.Join(dir, "data")}
	s.await(t, filepath.Join(s.data, "admin.kubeconfig"), log.Name(), ended)
	return s
}

// await waits until the server says that it is ready.
func (s *site) await(t testing.TB, kubeconfig, log string, ended chan error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("msg=ready")) {
			break
		}
		if len(ended) > 0 || time.Now().After(deadline) {
			t.Fatalf("the server is not ready:\n%s", b)
		}
		<-tick.C
	}
	var err error
	if s.admin, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		t.Fatal(err)
	}
	s.admin.QPS, s.admin.Burst = 500, 1000
	if s.api, s.idle, err = newClient(s.admin); err != nil {
		t.Fatal(err)
	}
}

// startFleet runs a fleet until the test ends, or until stop is called, which waits
// for it.
func (s *site) startFleet(t testing.TB, c Config) (f *Fleet, stop func()) {
	t.Helper()
	c.Admin = s.admin
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	if c.Transport.Dial == nil {
		c.Transport = transports()["yamux"]
	}
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	bound, done := context.WithTimeout(t.Context(), patience+time.Duration(c.Nodes)*joinPatience)
	defer done()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Error(err)
			done() // there is nothing to wait for
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	if err := f.WaitReady(bound); err != nil {
		t.Fatalf("all are Ready: %v", err)
	}
	return f, stop
}

func (f *Fleet) until(t testing.TB, what string, done func(Counts) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.Wait(ctx, done); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// eventually repeats check until it returns nil.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	await.Until(t, patience, what, check)
}

// one is a step that begins or ends a fault of the kind on all nodes given.
func one(kind Kind, begin bool, nodes ...int) Step {
	return Step{Fault: Fault{Kind: kind, For: time.Hour}, Begin: begin, Nodes: nodes}
}

// quick are heartbeats fast enough for a test.
func quick(nodes int, w Weight) Config {
	return Config{Nodes: nodes, Zones: 4, Weight: w, StatusUpdate: 300 * time.Millisecond, LeaseDuration: 4 * time.Second}
}

// TestFleet takes a small fleet through all there is to one: joining, pods, each
// kind of fault and its end, a clean stop, starting again as the same nodes, and
// being deleted.
func TestFleet(t *testing.T) {
	s := startServer(t)
	for w, transport := range map[Weight]string{Light: "quic", Full: "qmux"} {
		t.Run(string(w), func(t *testing.T) {
			leaks := goleak.IgnoreCurrent()
			c := quick(12, w)
			c.Transport = transports()[transport]
			c.Prefix, c.Dir = string(w)+"-", t.TempDir()
			f, stop := s.startFleet(t, c)
			testNodes(t, s, f)
			testLeases(t, s, f)
			testPods(t, s, f)
			testFaults(t, s, f)
			uid := s.node(t, f.Names()[0]).UID
			stop()
			f, stop = s.startFleet(t, c)
			if now := s.node(t, f.Names()[0]); now.UID != uid {
				t.Error("a fleet that starts again is made of other nodes")
			}
			stop()
			if n, err := f.Delete(t.Context()); err != nil || n != c.Nodes {
				t.Fatalf("%d nodes are deleted, %v", n, err)
			}
			testGone(t, s, c.Dir)
			s.idle()
			await.Until(t, patience, "all goroutines end", func() error { return goleak.Find(leaks) })
		})
	}
}

func (s *site) node(t testing.TB, name string) *corev1.Node {
	t.Helper()
	n, err := s.api.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// testNodes looks at what nodes say of themselves: they are nodes of their own.
func testNodes(t *testing.T, s *site, f *Fleet) {
	t.Helper()
	seen := map[string]bool{}
	for i, name := range f.Names() {
		n := s.node(t, name)
		if got, want := n.Labels[corev1.LabelTopologyZone], fmt.Sprintf("zone-%d", i%4+1); got != want {
			t.Errorf("%s is in %s, want %s", name, got, want)
		}
		if n.Labels[corev1.LabelHostname] != name || n.Status.NodeInfo.ContainerRuntimeVersion != "fake://1" {
			t.Errorf("%s: labels %v, info %+v", name, n.Labels, n.Status.NodeInfo)
		}
		for _, a := range n.Status.Addresses {
			if seen[a.Address] {
				t.Errorf("two nodes have the address %s", a.Address)
			}
			seen[a.Address] = true
		}
	}
	if len(seen) != 2*len(f.Names()) {
		t.Errorf("addresses: %v", seen)
	}
}

// testLeases finds Leases that are their nodes' and without a record of their fields,
// once they have been renewed.
func testLeases(t *testing.T, s *site, f *Fleet) {
	t.Helper()
	for _, name := range f.Names() {
		uid := s.node(t, name).UID
		eventually(t, "the lease of "+name+" is as it should be", func() error {
			l, err := s.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && (len(l.ManagedFields) != 0 || len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != uid) {
				err = fmt.Errorf("%d managers of fields, owners %v", len(l.ManagedFields), l.OwnerReferences)
			}
			return err
		})
	}
}

// testPods runs pods: one that serves, one that ends, and their logs.
func testPods(t *testing.T, s *site, f *Fleet) {
	t.Helper()
	api := s.api.CoreV1().Pods("default")
	make := func(name string, command ...string) {
		t.Helper()
		if _, err := api.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false),
				TerminationGracePeriodSeconds: new(int64(1)),
				Containers:                    []corev1.Container{{Name: "c", Image: "image", Command: command}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	phase := func(name string, want corev1.PodPhase) *corev1.Pod {
		t.Helper()
		var pod *corev1.Pod
		eventually(t, name+" is "+string(want), func() (err error) {
			if pod, err = api.Get(t.Context(), name, metav1.GetOptions{}); err == nil && pod.Status.Phase != want {
				err = fmt.Errorf("it is %s on %q", pod.Status.Phase, pod.Spec.NodeName)
			}
			return err
		})
		return pod
	}
	const servers = 10
	for i := range servers {
		make(fmt.Sprintf("web-%d", i), "server", "--port=80")
	}
	make("job", "sh", "-c", "echo worked; exit 3")
	if job := phase("job", corev1.PodFailed); job.Status.ContainerStatuses[0].State.Terminated.ExitCode != 3 {
		t.Errorf("job: %+v", job.Status.ContainerStatuses)
	}
	for i := range servers {
		pod := phase(fmt.Sprintf("web-%d", i), corev1.PodRunning)
		if !slices.Contains(f.Names(), pod.Spec.NodeName) || !pod.Status.ContainerStatuses[0].Ready {
			t.Errorf("%s on %s: %+v", pod.Name, pod.Spec.NodeName, pod.Status)
		}
	}
	for name, want := range map[string]string{"job": "worked\n", "web-0": "pretending to run [\"server\" \"--port=80\"]"} {
		eventually(t, "log of "+name, func() error {
			log, err := api.GetLogs(name, &corev1.PodLogOptions{}).DoRaw(t.Context())
			if err == nil && !strings.Contains(string(log), want) {
				err = fmt.Errorf("%q", log)
			}
			return err
		})
	}
	if err := api.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pods are gone", func() error {
		left, err := api.List(t.Context(), metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d are left", len(left.Items))
		}
		return err
	})
	for _, m := range f.members {
		if left, err := m.runtime.Containers(t.Context()); err != nil || len(left) > 0 {
			// The object is deleted before the last of the containers' traces.
			eventually(t, "no container is left on "+m.name, func() error {
				if left, err = m.runtime.Containers(t.Context()); err == nil && len(left) > 0 {
					err = fmt.Errorf("%+v", left)
				}
				return err
			})
		}
		if err := m.runtime.Violations(); err != nil {
			t.Error(err)
		}
	}
}

// testFaults has each kind of fault begin and end.
func testFaults(t *testing.T, s *site, f *Fleet) {
	t.Helper()
	all := len(f.members)
	connected := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d nodes are connected", n), func() error {
			if c := f.Connected(); c != n {
				return fmt.Errorf("%d are", c)
			}
			return nil
		})
	}
	f.Apply(one(Sick, true, 0, 1))
	f.until(t, "two are sick", func(n Counts) bool { return n.NotReady == 2 && n.Ready == all-2 })
	f.Apply(one(Sick, false, 0, 1))
	f.until(t, "all are well", func(n Counts) bool { return n.Ready == all })

	before := f.members[2].agent.Load()
	f.Apply(Step{Fault: Fault{Kind: Restart}, Begin: true, Nodes: []int{2}})
	eventually(t, "a restarted agent is another one", func() error {
		if now := f.members[2].agent.Load(); now == before || now == nil {
			return errors.New("not yet")
		}
		return nil
	})
	connected(all)

	var wires int
	for _, m := range f.members {
		wires += m.wire.cut()
	}
	if wires < all {
		t.Errorf("%d connections were cut", wires)
	}
	connected(all)

	f.Apply(one(Kill, true, 3, 4))
	f.Apply(one(Kill, true, 4, 5)) // twice for one of them
	connected(all - 3)
	s.still(t, f, 3, 4, 5)
	f.Apply(one(Kill, false, 3, 4))
	connected(all - 2)
	f.Apply(one(Kill, false, 4, 5))
	connected(all)
	s.goesOn(t, f, 3, 4, 5)

	f.Apply(one(Mute, true, 6))
	f.Apply(one(Flap, true, 7))
	s.still(t, f, 6, 7)
	if !f.members[6].agent.Load().State().Connected {
		t.Error("a mute node has no session")
	}
	f.Apply(one(Mute, false, 6))
	f.Apply(one(Flap, false, 7))
	s.goesOn(t, f, 6, 7)
	connected(all)
	f.until(t, "all are Ready again", func(n Counts) bool { return n.Ready == all })
}

// renewed is when a node last renewed its lease.
func (s *site) renewed(t testing.TB, name string) time.Time {
	t.Helper()
	l, err := s.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Spec.RenewTime.Time
}

// advances waits until a node has renewed its lease.
func (s *site) advances(t testing.TB, name string) {
	t.Helper()
	before := s.renewed(t, name)
	eventually(t, name+" renews its lease", func() error {
		if now := s.renewed(t, name); !now.After(before) {
			return fmt.Errorf("it did so at %s", now)
		}
		return nil
	})
}

// still checks that some nodes do not renew their leases while the first node does
// so twice. A renewal may have been under way.
func (s *site) still(t testing.TB, f *Fleet, nodes ...int) {
	t.Helper()
	observer := f.members[0].name
	s.advances(t, observer)
	at := map[string]time.Time{}
	for _, i := range nodes {
		at[f.members[i].name] = s.renewed(t, f.members[i].name)
	}
	s.advances(t, observer)
	s.advances(t, observer)
	for name, then := range at {
		if now := s.renewed(t, name); !now.Equal(then) {
			t.Errorf("%s renewed its lease at %s", name, now)
		}
	}
}

func (s *site) goesOn(t testing.TB, f *Fleet, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		s.advances(t, f.members[i].name)
	}
}

// testGone looks for what a deleted fleet might have left.
func testGone(t *testing.T, s *site, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	nodes, err := s.api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) > 0 {
		t.Errorf("%d nodes are left, %v", len(nodes.Items), err)
	}
	leases, err := s.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(leases.Items) > 0 {
		t.Errorf("%d leases are left, %v", len(leases.Items), err)
	}
	secrets, err := s.api.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token"})
	if err != nil || len(secrets.Items) > 0 {
		t.Errorf("%d join tokens are left, %v", len(secrets.Items), err)
	}
}

// A fleet that cannot be says so, in a line that names what is wrong.
func TestBadConfig(t *testing.T) {
	good := Config{Admin: &rest.Config{Host: "https://127.0.0.1:1"}, Dir: t.TempDir(), Nodes: 4, Transport: transports()["yamux"]}
	for want, change := range map[string]func(*Config){
		"Config.Admin":                  func(c *Config) { c.Admin = nil },
		"Dir":                           func(c *Config) { c.Dir = "" },
		"Transport":                     func(c *Config) { c.Transport.Dial = nil },
		"0 nodes":                       func(c *Config) { c.Nodes = 0 },
		"100001 nodes":                  func(c *Config) { c.Nodes = MaxNodes + 1 },
		"5 zones":                       func(c *Config) { c.Zones = 5 },
		`weight "heavy"`:                func(c *Config) { c.Weight = "heavy" },
		"lease duration 1ms":            func(c *Config) { c.LeaseDuration = time.Millisecond },
		`prefix "zone-a-"`:              func(c *Config) { c.Prefix = "zone-a-" },
		`prefix "12"`:                   func(c *Config) { c.Prefix = "12" },
		"no certificate-authority-data": func(*Config) {},
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
