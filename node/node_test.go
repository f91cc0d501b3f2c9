package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/auth/apiclient/apiclienttest"
	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestMain(m *testing.M) {
	// One of them sleeps for as long as its clock, that of no bubble, says.
	utilruntime.ErrorHandlers = nil
	goleak.VerifyTestMain(m)
}

// A world is an API in memory and what is asked of it.
type world struct {
	t   *testing.T
	api *fake.Clientset
	rt  *memory.Runtime
	cfg Config
	n   *Node

	root string
	stop func() // ends n

	mu     sync.Mutex
	fail   func(verb, resource string) error
	calls  []call
	events []string
	closes int
	nodes  int // made so far
}

type call struct {
	what string // "patch nodes/status"
	at   time.Time
	obj  any
}

// inWorld runs f in a bubble with a Node that runs, after change has changed its
// world.
func inWorld(t *testing.T, change func(w *world), f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, rt: memory.New(memory.Options{})}
		w.api = fake.NewSimpleClientset()
		w.api.PrependReactor("*", "*", w.react)
		w.root = fakeRoot(t)
		w.cfg = Config{
			Name: "node-1", API: apiclienttest.From(w.api), Runtime: w.rt, DataDir: t.TempDir(), Version: "v1.37.2+hawser",
			Thresholds: Thresholds{Hard: []Threshold{{Signal: MemoryAvailable, Amount: 100 << 20}, {Signal: PIDAvailable, Percent: 5}}}, // not of the test machine's own disk
			CloseConnections: func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.closes++
			},
		}
		if change != nil {
			change(w)
		}
		w.start()
		f(w)
		w.stop()
	})
}

// closed is how often the connections were closed.
func (w *world) closed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closes
}

// start starts a Node, as an agent that starts does.
func (w *world) start() {
	w.t.Helper()
	n, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	n.machine.root = w.root
	n.resolve = func(context.Context) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.7")}, nil
	}
	w.n = n
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	}
	synctest.Wait()
}

// fakeRoot is a machine with 16 GiB.
func fakeRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/meminfo":                   "MemTotal:       16777216 kB\nMemFree: 100 kB\nMemAvailable:    8388608 kB\nSwapTotal:       1024 kB\n",
		"proc/loadavg":                   "0.00 0.01 0.05 1/500 4242\n",
		"proc/sys/kernel/pid_max":        "4194304\n",
		"proc/sys/kernel/threads-max":    "100000\n",
		"proc/sys/kernel/osrelease":      "6.18.0\n",
		"proc/sys/kernel/random/boot_id": "boot-1\n",
		"etc/machine-id":                 "machine\n",
		"etc/os-release":                 "NAME=x\nPRETTY_NAME=\"Example Linux 1\"\n",
		"sys/class/dmi/id/product_uuid":  "ABCD-EF\n",

		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "512\n",
		"sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
	} {
		write(t, filepath.Join(root, name), text)
	}
	return root
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *world) react(a k8stesting.Action) (bool, apiruntime.Object, error) {
	what := a.GetVerb() + " " + a.GetResource().Resource
	if s := a.GetSubresource(); s != "" {
		what += "/" + s
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := call{what: what, at: time.Now()}
	// Creating and updating have the same method, so the type does not tell them apart.
	switch a := a.(type) {
	case k8stesting.CreateAction:
		c.obj = a.GetObject()
		if e, ok := c.obj.(*corev1.Event); ok {
			w.events = append(w.events, e.Type+" "+e.Reason+" "+e.Message)
		}
		// The fake gives no uids.
		if n, ok := c.obj.(*corev1.Node); ok && n.UID == "" {
			w.nodes++
			n.UID = types.UID("node-uid" + strings.Repeat("'", w.nodes-1))
		}
	case k8stesting.PatchAction:
		c.obj = string(a.GetPatch())
	}
	if w.fail != nil {
		if err := w.fail(a.GetVerb(), a.GetResource().Resource); err != nil {
			c.what += " failed"
			w.calls = append(w.calls, c)
			return true, nil, err
		}
	}
	w.calls = append(w.calls, c)
	return false, nil, nil
}

// times lists when calls beginning with what were made, in seconds.
func (w *world) times(what string) []float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []float64
	for _, c := range w.calls {
		if strings.HasPrefix(c.what, what) {
			list = append(list, c.at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Seconds())
		}
	}
	return list
}

func (w *world) setFail(f func(verb, resource string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = f
}

func (w *world) node() *corev1.Node {
	w.t.Helper()
	obj, err := w.api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", "node-1")
	if err != nil {
		w.t.Fatal(err)
	}
	return obj.(*corev1.Node)
}

func (w *world) sawEvent(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e string) bool { return strings.Contains(e, text) })
}

func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func condition(n *corev1.Node, t corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// TestQuietNode counts what an idle node costs the server.
func TestQuietNode(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		advance(5 * time.Minute)
		before := len(w.calls)
		patches, leases := len(w.times("patch nodes/status")), len(w.times("update leases"))
		advance(50 * time.Minute)
		patches, leases = len(w.times("patch nodes/status"))-patches, len(w.times("update leases"))-leases
		if patches < 9 || patches > 11 {
			t.Errorf("%d status writes in 50 min, want one in 5 min", patches)
		}
		if leases < 280 || leases > 300 {
			t.Errorf("%d lease renewals in 50 min, want one in 10 s", leases)
		}
		if n := len(w.calls) - before; n != patches+leases {
			t.Errorf("%d calls, %d of them unaccounted for", n, n-patches-leases)
		}
	})
}

// TestFirstReportIsSpread: after a change the next report without one comes at a
// random time.
func TestFirstReportIsSpread(t *testing.T) {
	seen := map[float64]bool{}
	for range 5 {
		inWorld(t, nil, func(w *world) {
			advance(8 * time.Minute)
			got := w.times("patch nodes/status")
			if len(got) == 0 || got[0] < 145 || got[0] > 460 {
				t.Errorf("first report at %v", got)
				return
			}
			seen[got[0]] = true
		})
	}
	if len(seen) < 2 {
		t.Errorf("first reports all at %v", seen)
	}
}

func TestChangesAreReportedAtOnce(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		advance(time.Minute)
		since := condition(w.node(), corev1.NodeReady).LastTransitionTime
		w.rt.SetHealth(errors.New("it has crashed"))
		advance(11 * time.Second)
		c := condition(w.node(), corev1.NodeReady)
		if c.Status != corev1.ConditionFalse || c.Reason != "KubeletNotReady" || !strings.Contains(c.Message, "container runtime is down: it has crashed") || !since.Before(&c.LastTransitionTime) {
			t.Errorf("condition %+v", c)
		}
		w.rt.SetHealth(nil)
		advance(11 * time.Second)
		if c := condition(w.node(), corev1.NodeReady); c.Status != corev1.ConditionTrue {
			t.Errorf("condition %+v", c)
		}
		advance(time.Second)
		if !w.sawEvent("NodeNotReady") {
			t.Errorf("events %q", w.events)
		}
	})
}

func TestSomebodyElsesUnknownIsCorrected(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		advance(time.Minute)
		n := w.node().DeepCopy()
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].Status = corev1.ConditionUnknown
		}
		if err := w.api.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), n, ""); err != nil {
			t.Fatal(err)
		}
		advance(11 * time.Second)
		if c := condition(w.node(), corev1.NodeReady); c.Status != corev1.ConditionTrue {
			t.Errorf("condition %+v", c)
		}
	})
}

// A movable runtime keeps its images in dir.
type movable struct {
	runtime.Runtime
	dir string
}

func (m *movable) Info(ctx context.Context) (runtime.Info, error) {
	info, err := m.Runtime.Info(ctx)
	info.Dir = m.dir
	return info, err
}

// TestPressure: a condition is true as long as the machine is short, and five minutes longer.
func TestPressure(t *testing.T) {
	images := filepath.Join(t.TempDir(), "images")
	// leads has the images be in a file system that is short, or in one without a size, which
	// never is.
	leads := func(to string) {
		t.Helper()
		if err := os.Remove(images); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if err := os.Symlink(to, images); err != nil {
			t.Fatal(err)
		}
	}
	leads("/proc")
	inWorld(t, func(w *world) {
		w.cfg.Runtime = &movable{w.rt, images}
		w.cfg.Thresholds.Hard = append(w.cfg.Thresholds.Hard, Threshold{Signal: ImagefsAvailable, Amount: 1 << 62})
	}, func(w *world) {
		root := w.n.machine.root
		short := func(when string, memory, disk, pids bool) {
			t.Helper()
			for _, p := range []struct {
				of      corev1.NodeConditionType
				short   bool
				yes, no string
			}{
				{corev1.NodeMemoryPressure, memory, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"},
				{corev1.NodeDiskPressure, disk, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure"},
				{corev1.NodePIDPressure, pids, "KubeletHasInsufficientPID", "KubeletHasSufficientPID"},
			} {
				status, reason := corev1.ConditionFalse, p.no
				if p.short {
					status, reason = corev1.ConditionTrue, p.yes
				}
				if got := condition(w.node(), p.of); got.Status != status || got.Reason != reason {
					t.Errorf("%s: condition %+v, want %s %s", when, got, status, reason)
				}
			}
		}
		advance(time.Minute)
		short("at first", false, false, false)
		write(t, filepath.Join(root, "proc/meminfo"), "MemTotal:       16777216 kB\nMemAvailable:    1024 kB\n")
		write(t, filepath.Join(root, "proc/loadavg"), "0 0 0 1/99000 1\n")
		leads(root)
		advance(11 * time.Second)
		short("short of all", true, true, true)
		write(t, filepath.Join(root, "proc/meminfo"), "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n")
		advance(4 * time.Minute)
		short("memory is back, so soon after", true, true, true)
		advance(2 * time.Minute)
		short("memory is back", false, true, true)
		write(t, filepath.Join(root, "proc/loadavg"), "0 0 0 1/500 1\n")
		leads("/proc")
		advance(4 * time.Minute)
		short("all is back, so soon after", false, true, true)
		advance(2 * time.Minute)
		short("all is back", false, false, false)
	})
}

func TestHeartbeatsAreIndependent(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.setFail(func(verb, resource string) error {
			if resource == "nodes" && verb != "watch" && verb != "list" {
				return errors.New("no")
			}
			return nil
		})
		w.rt.SetHealth(errors.New("x")) // so that there is something to write
		before := len(w.times("update leases"))
		advance(5 * time.Minute)
		if n := len(w.times("update leases")) - before; n < 28 || n > 31 {
			t.Errorf("%d renewals in 5 min while the status cannot be written", n)
		}
		tries := w.times("patch nodes/status failed")
		if len(tries) == 0 || w.closed() == 0 {
			t.Errorf("%d tries, connections closed %d times", len(tries), w.closed())
		}
	})
}

func TestLease(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		advance(time.Second)
		l, err := w.api.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "node-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o := l.OwnerReferences
		if *l.Spec.HolderIdentity != "node-1" || *l.Spec.LeaseDurationSeconds != 40 || len(o) != 1 || o[0].UID != "node-uid" || o[0].Kind != "Node" || o[0].APIVersion != "v1" {
			t.Errorf("lease %+v", l)
		}
		// Five tries at once when a renewal fails, and the connections are closed.
		advance(30 * time.Second)
		w.setFail(func(verb, resource string) error {
			if resource == "leases" {
				return apierrors.NewInternalError(errors.New("no"))
			}
			return nil
		})
		advance(11 * time.Second)
		puts := w.times("update leases failed")
		if len(puts) != 5 || puts[0] != puts[4] || w.closed() == 0 {
			t.Errorf("renewals at %v, connections closed %d times", puts, w.closed())
		}
		advance(30 * time.Second)
		gets := w.times("get leases failed")
		var gaps []string
		for i := 1; i < len(gets); i++ {
			gaps = append(gaps, fmt.Sprintf("%.1f", gets[i]-gets[i-1]))
		}
		if got := strings.Join(gaps, " "); !strings.HasPrefix(got, "0.2 0.4 0.8 1.6 3.2 6.4 7.0") {
			t.Errorf("waits between tries %s", got)
		}
	})
}

func TestStatusPatchReplacesAddresses(t *testing.T) {
	from := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}, Phase: "x",
	}}
	to := from.DeepCopy()
	to.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}}
	patch, err := statusPatch(from, to)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	want := `{"status":{"addresses":[{"address":"10.0.0.1","type":"InternalIP"},{"address":"fd00::1","type":"InternalIP"},{"$patch":"replace"}]}}`
	if string(patch) != want {
		t.Errorf("patch %s, want %s", patch, want)
	}
}

func TestConfigIsChecked(t *testing.T) {
	ok := Config{Name: "n", API: apiclienttest.From(fake.NewSimpleClientset()), Runtime: memory.New(memory.Options{}), DataDir: t.TempDir(), Version: "v1"}
	if _, err := New(ok); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"name":    func(c *Config) { c.Name = "Bad_Name" },
		"api":     func(c *Config) { c.API = nil },
		"runtime": func(c *Config) { c.Runtime = nil },
		"dir":     func(c *Config) { c.DataDir = "" },
		"labels":  func(c *Config) { c.Labels = map[string]string{"kubernetes.io/custom": "1"} },
	} {
		c := ok
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("bad %s is taken", name)
		}
	}
}
