// Two controller managers beside an API server, of which one is killed in the
// middle of an eviction.

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/e2e/await"
)

const (
	// leaseDuration is how long the other waits for a leader that is silent, and
	// leaseTry how long between two looks.
	leaseDuration = 6 * time.Second
	leaseTry      = time.Second
	// patient is how long the pod may stay on an unreachable node: well beyond
	// a change of leader.
	patient = 30 * time.Second
)

// startManager runs the controllers beside the cluster's API server, under a name.
func (c *cluster) startManager(t *testing.T, name string) {
	t.Helper()
	under, _ := bin(t)
	pki := filepath.Join(c.dir, "pki")
	run(t, append([]string{
		filepath.Join(under, "hawser"), "server", "--kubeconfig", c.kubeconfig(),
		"--data-dir", filepath.Join(c.dir, name), "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(await.FreePort(t)),
		"--health-port", strconv.Itoa(await.FreePort(t)), "--connect-port", "0", "--controllers", "*,-hawser-tunnel-health-controller", "--cause-aware-eviction=false",
		"--cluster-signing-cert-file", filepath.Join(pki, "client-ca.crt"), "--cluster-signing-key-file", filepath.Join(pki, "client-ca.key"),
		"--cluster-signing-kubelet-serving-cert-file", filepath.Join(pki, "kubelet-ca.crt"), "--cluster-signing-kubelet-serving-key-file", filepath.Join(pki, "kubelet-ca.key"),
		"--leader-elect-lease-duration", leaseDuration.String(), "--leader-elect-renew-deadline", "4s", "--leader-elect-retry-period", leaseTry.String(),
		"--leader-elect-resource-name", "kube-controller-manager", // by which a Hawser server elects
	}, quickLifecycle...), filepath.Join(c.dir, name))
	t.Cleanup(func() {
		if b, err := os.ReadFile(filepath.Join(c.dir, name+".log")); err == nil && (t.Failed() || hasRace(string(b))) {
			t.Errorf("--- %s\n%s", name, b)
		}
	})
}

// leader waits until a manager other than the given one leads, and returns its
// name and the Lease that says so.
func (c *cluster) leader(t *testing.T, managers []string, but string) (string, *coordinationv1.Lease) {
	t.Helper()
	var name string
	var lease *coordinationv1.Lease
	eventually(t, "somebody leads", func() (err error) {
		lease, err = c.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "kube-controller-manager", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, name = range managers {
			identity, err := os.ReadFile(filepath.Join(c.dir, name, "identity"))
			if err == nil && name != but && strings.Contains(*lease.Spec.HolderIdentity, strings.TrimSpace(string(identity))) {
				return nil
			}
		}
		return errors.New(*lease.Spec.HolderIdentity + " does")
	})
	return name, lease
}

// A leader that dies between the taint and the eviction leaves nothing behind but
// what the objects say. That is enough: its successor evicts in the pod's time,
// counted from the taint, and once.
func TestLeaderLost(t *testing.T) {
	if !netnsHere(t) {
		t.Skip("cutting links takes network namespaces")
	}
	t.Parallel()
	c := startUp(t, append(quickArgs(), "--nodes", "2", "--server-arg=--leader-elect=false", "--server-arg=--controllers="+
		"certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller,hawser-tunnel-health-controller")...)
	managers := []string{"manager-a", "manager-b"}
	for _, name := range managers {
		c.startManager(t, name)
	}
	c.settle(t)
	h := c.watch(t)
	c.leader(t, managers, "")
	c.hold(t, "late", c.holding(t, "node-1", unreachable(seconds(int64(patient.Seconds())))))
	c.hold(t, "never", c.holding(t, "node-1", unreachable(nil)))
	late, never := c.held(t, h, "late", "node-1"), c.held(t, h, "never", "node-1")
	pids := processesOfPod(never.UID)
	node, err := c.lab(t).Node("node-1")
	must(t, err)
	cut(t, node)
	tainted := c.silent(t, h, "node-1").TimeAdded

	first, held := c.leader(t, managers, "")
	b, err := os.ReadFile(filepath.Join(c.dir, first+".pid"))
	must(t, err)
	pid, err := strconv.Atoi(string(b))
	must(t, err)
	killed := time.Now()
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	_, lease := c.leader(t, managers, first)
	acquired := lease.Spec.AcquireTime.Time
	timely(t, "the other leads", acquired, held.Spec.RenewTime.Add(leaseDuration).Truncate(time.Second)) // it may have been renewed once more
	t.Logf("the other leads %v after the first was killed", acquired.Sub(killed))

	going := h.pod(t, "late is told to go", func(p *corev1.Pod) bool { return p.UID == late.UID && p.DeletionTimestamp != nil })
	timely(t, "late is told to go", toldToGo(going), tainted.Add(patient))
	if anew := acquired.Add(patient); !toldToGo(going).Before(anew) {
		t.Errorf("late was told to go at %v, as if its time had begun anew with the new leader", toldToGo(going))
	}
	for _, n := range h.versions("node-1") {
		if e := evicting(n); e != nil && !e.TimeAdded.Equal(tainted) {
			t.Errorf("the taint was of %v and is of %v", tainted, e.TimeAdded)
		}
	}
	heal(t, node)
	back(t, h, "node-1")
	last := h.lost(t, late)
	c.aliveIs(t, last, 0)
	disrupted(t, last, "DeletionByTaintManager")
	if n := h.told("TaintManagerEviction", "late", "Marking for deletion Pod default/late"); n != 1 {
		t.Errorf("the eviction was told %d times", n)
	}
	for _, v := range h.allPods() {
		if v.UID == late.UID && v.DeletionTimestamp != nil && !v.DeletionTimestamp.Equal(going.DeletionTimestamp) {
			// Whoever confirms the end of a pod says that there is nothing to wait for.
			if *v.DeletionGracePeriodSeconds != 0 {
				t.Errorf("late was told to go at %v and again at %v", toldToGo(going), toldToGo(v))
			}
		}
	}
	c.again(t, h, never, pids)
	stays(t, h, never)
}
