// KWOK, Kubernetes' own simulator of nodes: a thousand of them beside a node that is real.

package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

var kwokDir = flag.String("e2e.kwok", "", "directory with KWOK's program kwok and its stages.yaml; without it the test that needs them is skipped")

const (
	kwokNodes = 1000
	kwokPods  = 2000
	// kwokPatience bounds each wait: the grace period of a node that is silent is a part of it.
	kwokPatience = 5 * time.Minute
)

// kwokDeployment is one whose pods go to nodes of KWOK, also if they have no network.
const kwokDeployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"many"},"spec":{"replicas":%d,
"progressDeadlineSeconds":600,"strategy":{"rollingUpdate":{"maxSurge":"25%%","maxUnavailable":"25%%"}},
"selector":{"matchLabels":{"app":"many"}},"template":{"metadata":{"labels":{"app":"many"}},"spec":{"nodeSelector":{"type":"kwok"},
"containers":[{"name":"c","image":"none","resources":{"requests":{"cpu":"100m"}}}]}}}}`

// TestKWOK has KWOK's program play a thousand nodes, whose lifecycle and pods are this project's
// matter: they are ready, and so are two thousand pods of a Deployment, also after it is scaled
// and rolled out anew. When KWOK is killed they are silent: not ready and tainted, all but the
// one that is real. When it is back, so are they.
func TestKWOK(t *testing.T) {
	if *kwokDir == "" {
		t.Skip("SKIPPED: no program kwok (-e2e.kwok): make kwok builds it, and runs this test")
	}
	c := startUp(t, "--nodes", "1")
	k := watchKWOK(t, c)
	kill := k.start(t)
	k.step(t, "nodes are made", func() { k.makeNodes(t) })
	ready := func() (n int) { return k.nodes(corev1.ConditionTrue, false) }
	k.until(t, "nodes are ready", ready, kwokNodes)

	c.mustKubectl(t, fmt.Sprintf(kwokDeployment, kwokPods), "create", "-f", "-")
	k.until(t, "pods are ready", k.pods, kwokPods)
	k.step(t, "kubectl rollout status", func() {
		if said := c.mustKubectl(t, "", "rollout", "status", "deployment", "many"); !strings.Contains(said, "successfully rolled out") {
			t.Error(said)
		}
	})
	k.step(t, "kubectl top node", func() {
		if said := c.mustKubectl(t, "", "top", "node", "node-1"); !strings.Contains(said, "node-1") {
			t.Error(said)
		}
	})
	c.mustKubectl(t, "", "scale", "deployment", "many", "--replicas", fmt.Sprint(kwokPods/2))
	k.until(t, "half of the pods are left", k.pods, kwokPods/2)
	c.mustKubectl(t, "", "rollout", "restart", "deployment", "many")
	k.step(t, "kubectl rollout status of another template", func() { c.mustKubectl(t, "", "rollout", "status", "deployment", "many") })
	k.until(t, "the pods before are gone", k.pods, kwokPods/2)

	kill()
	k.until(t, "nodes are silent and tainted", func() int { return k.nodes(corev1.ConditionUnknown, true) }, kwokNodes)
	if n, err := c.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{}); err != nil || condition(n, corev1.NodeReady).Status != corev1.ConditionTrue || hasTaint(n, corev1.TaintNodeUnreachable) {
		t.Errorf("the node that is real: %v, %v", n, err)
	}
	k.start(t)
	k.until(t, "nodes are ready again, without the taint", ready, kwokNodes)
}

// A kwok is what is seen of KWOK's nodes and pods.
type kwok struct {
	*cluster
	factory informers.SharedInformerFactory
	changed chan struct{} // has room for one
}

func watchKWOK(t *testing.T, c *cluster) *kwok {
	t.Helper()
	k := &kwok{cluster: c, factory: informers.NewSharedInformerFactory(c.client, 0), changed: make(chan struct{}, 1)}
	note := func() {
		select {
		case k.changed <- struct{}{}:
		default:
		}
	}
	for _, i := range []cache.SharedIndexInformer{k.factory.Core().V1().Nodes().Informer(), k.factory.Core().V1().Pods().Informer()} {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() },
		})
		must(t, err)
	}
	k.factory.Start(t.Context().Done())
	t.Cleanup(k.factory.Shutdown) // its context is done by then
	k.factory.WaitForCacheSync(t.Context().Done())
	return k
}

// start starts KWOK, which kill ends at once.
func (k *kwok) start(t *testing.T) (kill func()) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(k.dir, "kwok.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	cmd := exec.Command(filepath.Join(*kwokDir, "kwok"), "--config", filepath.Join(*kwokDir, "stages.yaml"), "--kubeconfig", k.kubeconfig(), "--manage-nodes-with-label-selector", "type=kwok", "--node-lease-duration-seconds", "40")
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	t.Cleanup(kill)
	return kill
}

// makeNodes makes those that KWOK plays.
func (k *kwok) makeNodes(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for part := range 10 {
		wg.Go(func() {
			for i := part; i < kwokNodes; i += 10 {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kwok-%04d", i), Labels: map[string]string{"type": "kwok"}}}
				if _, err := k.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// nodes counts KWOK's nodes of a readiness that have the taint of those that are silent, or not.
func (k *kwok) nodes(ready corev1.ConditionStatus, tainted bool) (n int) {
	all, _ := k.factory.Core().V1().Nodes().Lister().List(labels.SelectorFromSet(labels.Set{"type": "kwok"})) // a cache does not fail
	for _, node := range all {
		if condition(node, corev1.NodeReady).Status == ready && hasTaint(node, corev1.TaintNodeUnreachable) == tainted {
			n++
		}
	}
	return n
}

// pods counts those that are ready; it is below zero while there are others beside them.
func (k *kwok) pods() (n int) {
	all, _ := k.factory.Core().V1().Pods().Lister().List(labels.SelectorFromSet(labels.Set{"app": "many"}))
	for _, p := range all {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				n++
			}
		}
	}
	if n < len(all) {
		return -len(all)
	}
	return n
}

// until waits for a count, which is looked at whenever something has changed.
func (k *kwok) until(t *testing.T, what string, count func() int, want int) {
	t.Helper()
	k.step(t, what, func() {
		late := time.After(kwokPatience)
		for got := count(); got != want; got = count() {
			select {
			case <-k.changed:
			case <-late:
				t.Fatalf("%s: %d, want %d after %v\n%s", what, got, want, kwokPatience, k.logs())
			}
		}
	})
}

// step says how long something took.
func (*kwok) step(t *testing.T, what string, do func()) {
	t.Helper()
	began := time.Now()
	do()
	t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
}
