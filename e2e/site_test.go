// Many nodes that are cut off at once, because somebody else's network is to
// blame.

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/lab"
)

// A server that hears of nobody, or of nobody of a site, blames the network and leaves pods where
// they are; unless it is told to do what Kubernetes documents. Each transport has a test of its
// own: parallel subtests would begin after all other tests.
func TestSitesQMux(t *testing.T)  { testSites(t, "qmux") }
func TestSitesYamux(t *testing.T) { testSites(t, "yamux") }
func TestSitesQUIC(t *testing.T)  { testSites(t, "quic") }

func testSites(t *testing.T, transport string) {
	// A node that is back for less than the startup grace period was silent all the time.
	// An agent that hears nothing waits 0.8 s for an answer: TCP sends again at both ends before that.
	c := startQuick(t, "--nodes", "3", "--agent-arg=--transport="+transport, "--server-arg=--node-startup-grace-period=20s",
		"--server-arg=--link-keepalive=2s", "--agent-arg=--link-keepalive=2s")
	s := newSites(t, c)
	t.Run("server lost its network", func(t *testing.T) { s.testServerLost(t) })
	t.Run("site lost its network", func(t *testing.T) { s.testSiteLost(t, lab.Both) })
	if transport == "qmux" { // another agent that hears nothing ends its session like one that is killed
		t.Run("site hears nothing", func(t *testing.T) { s.testSiteLost(t, lab.In) })
	}
	if transport != "quic" { // whose killed agents look silent
		whole := t
		t.Run("agents of a site are killed", func(t *testing.T) { s.testAgentsKilled(t, whole) })
	}
	t.Run("site lost for too long", func(t *testing.T) { s.testAutonomyOver(t) })
	t.Run("site lost, as documented", func(t *testing.T) { s.testSiteLostAsDocumented(t) })
}

// sites are two of them, with a pod on each node that may be evicted at any time.
type sites struct {
	*cluster
	nodes []*lab.Node // the first two are the north, the third is the south
	pods  []*corev1.Pod
	pids  [][]int
}

func newSites(t *testing.T, c *cluster) *sites {
	s := &sites{cluster: c, nodes: c.lab(t).Nodes()}
	h := c.watch(t)
	for i, n := range s.nodes {
		site := "north"
		if i == 2 {
			site = "south"
		}
		c.mustKubectl(t, "", "label", "node", n.Name, auth.SiteLabel+"="+site)
		name := "on-" + n.Name
		c.hold(t, name, c.holding(t, n.Name))
		s.pods = append(s.pods, c.held(t, h, name, n.Name))
		s.pids = append(s.pids, processesOfPod(s.pods[i].UID))
	}
	return s
}

// cut silences nodes, and heal lets them speak again.
func cut(t *testing.T, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		must(t, n.Cut(t.Context()))
	}
}

func heal(t *testing.T, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		must(t, n.Heal(t.Context()))
	}
}

// frozen waits until evictions from the nodes are frozen for a reason, and long
// enough after that for any pod to be evicted; none may be.
func (s *sites) frozen(t *testing.T, h *history, reason string, nodes ...*lab.Node) {
	t.Helper()
	for _, n := range nodes {
		h.node(t, n.Name, "is Unknown", is(corev1.NodeReady, corev1.ConditionUnknown))
		h.until(t, "evictions from "+n.Name+" are frozen", func() error {
			if h.told("EvictionFrozen", n.Name, reason) == 0 {
				return errNotYet
			}
			return nil
		})
	}
	frozen := fmt.Sprintf("hawser_eviction_frozen_nodes{reason=%q}", reason)
	eventually(t, frozen, func() error {
		if got := s.metric(t, frozen); got != float64(len(nodes)) {
			return fmt.Errorf("%v, want %d", got, len(nodes))
		}
		return nil
	})
	s.passes(t, 2*int(tolerated/(500*time.Millisecond)))
	s.checkNoEvictions(t, h)
	for i, p := range s.pods {
		if now := processesOfPod(p.UID); fmt.Sprint(now) != fmt.Sprint(s.pids[i]) {
			t.Errorf("the processes of %s were %v and are %v", p.Name, s.pids[i], now)
		}
	}
}

// checkNoEvictions checks that no pod was evicted and none is about to be.
func (s *sites) checkNoEvictions(t *testing.T, h *history) {
	t.Helper()
	stays(t, h, s.pods...)
	for _, n := range s.nodes {
		for _, v := range h.versions(n.Name) {
			if evicting(v) != nil {
				t.Errorf("%s was to be left since %v", n.Name, evicting(v).TimeAdded)
				break
			}
		}
	}
}

// passes waits until the lifecycle controller has looked at all nodes n times.
func (c *cluster) passes(t *testing.T, n int) {
	t.Helper()
	const passes = "node_collector_update_all_nodes_health_duration_seconds_count"
	from := c.metric(t, passes)
	eventually(t, "the controller looks at the nodes", func() error {
		if done := c.metric(t, passes) - from; done < float64(n) {
			return fmt.Errorf("%v times, not yet %d", done, n)
		}
		return nil
	})
}

// metric is one of the server's metrics, by name and labels; 0 if there is none.
func (c *cluster) metric(t *testing.T, name string) float64 {
	t.Helper()
	return c.metrics(t)[name]
}

// metrics are those of the server, by name and labels.
func (c *cluster) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	return c.metricsAt(t, "/metrics")
}

// metricsAt are those that the API has at a path, by name and labels.
func (c *cluster) metricsAt(t *testing.T, path string) map[string]float64 {
	t.Helper()
	return metricsBy(t, c.client.Discovery().RESTClient(), path)
}

func metricsBy(t *testing.T, client rest.Interface, path string) map[string]float64 {
	t.Helper()
	body, err := client.Get().AbsPath(path).Stream(t.Context())
	must(t, err)
	defer body.Close()
	out := map[string]float64{}
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		must(t, err)
		out[line[:at]] = v
	}
	must(t, lines.Err())
	return out
}

func (s *sites) testServerLost(t *testing.T) {
	h := s.watch(t)
	cut(t, s.nodes...)
	s.frozen(t, h, "ServerLostNetwork", s.nodes...)
	heal(t, s.nodes...)
	s.whole(t, h)
}

func (s *sites) testSiteLost(t *testing.T, d lab.Direction) {
	h := s.watch(t)
	north, south := s.nodes[:2], s.nodes[2]
	for _, n := range north {
		must(t, n.CutOneWay(t.Context(), d))
	}
	s.frozen(t, h, "SiteLostNetwork", north...)
	for _, v := range h.versions(south.Name) {
		if !is(corev1.NodeReady, corev1.ConditionTrue)(v) {
			t.Errorf("%s of another site is %v", south.Name, v.Status.Conditions)
		}
	}
	heal(t, north...)
	s.whole(t, h)
}

// whole waits until all is as before, with the same processes.
func (s *sites) whole(t *testing.T, h *history) {
	t.Helper()
	for i, n := range s.nodes {
		back(t, h, n.Name)
		s.again(t, h, s.pods[i], s.pids[i])
	}
	s.checkNoEvictions(t, h)
}

// A site keeps its pods for as long as it is trusted with them, and no longer.
func (s *sites) testAutonomyOver(t *testing.T) {
	const trusted = 12 * time.Second
	h := s.watch(t)
	north := s.nodes[:2]
	for _, n := range north {
		s.mustKubectl(t, "", "annotate", "node", n.Name, "node.hawser.dev/autonomy-duration="+trusted.String())
	}
	cut(t, north...)
	for i, n := range north {
		since := s.silent(t, h, n.Name).TimeAdded
		unknown := h.node(t, n.Name, "is Unknown", is(corev1.NodeReady, corev1.ConditionUnknown))
		timely(t, n.Name+" is to be left", since.Time, condition(unknown, corev1.NodeReady).LastTransitionTime.Add(trusted))
		h.until(t, "it is told that evictions from "+n.Name+" were frozen, and are no more", func() error {
			if h.told("EvictionFrozen", n.Name, "") == 0 || h.told("EvictionResumed", n.Name, "") == 0 {
				return errNotYet
			}
			return nil
		})
		h.pod(t, s.pods[i].Name+" is told to go", func(v *corev1.Pod) bool {
			return v.UID == s.pods[i].UID && v.DeletionTimestamp != nil
		})
	}
	stays(t, h, s.pods[2])
	heal(t, north...)
	for _, n := range north {
		s.mustKubectl(t, "", "annotate", "node", n.Name, "node.hawser.dev/autonomy-duration-")
	}
	s.anew(t, h, north)
}

// anew waits for nodes that were left, and runs their pods again.
func (s *sites) anew(t *testing.T, h *history, nodes []*lab.Node) {
	t.Helper()
	for i, n := range nodes {
		back(t, h, n.Name)
		s.runAnew(t, h, i)
	}
}

// runAnew waits until the pod of the node of that number is gone, and runs it again.
func (s *sites) runAnew(t *testing.T, h *history, i int) {
	t.Helper()
	s.aliveIs(t, h.lost(t, s.pods[i]), 0)
	s.hold(t, s.pods[i].Name, s.holding(t, s.nodes[i].Name))
	old := s.pods[i].UID
	s.pods[i] = h.pod(t, s.pods[i].Name+" runs anew", func(v *corev1.Pod) bool {
		return v.Name == s.pods[i].Name && v.UID != old && podReady(v) == corev1.ConditionTrue
	})
	s.pids[i] = processesOfPod(s.pods[i].UID)
}

// Agents of a site that are killed at the same moment are no network's fault: their
// machines say so, over TCP by closing the connection, over UDP when they are asked.
// The new agents are there for the whole test.
func (s *sites) testAgentsKilled(t, whole *testing.T) {
	h := s.watch(t)
	north := s.nodes[:2]
	var args [][]string
	for _, n := range north {
		args = append(args, s.kill(t, n.Name))
	}
	for i, n := range north {
		s.silent(t, h, n.Name)
		h.pod(t, s.pods[i].Name+" is told to go", func(v *corev1.Pod) bool {
			return v.UID == s.pods[i].UID && v.DeletionTimestamp != nil
		})
	}
	stays(t, h, s.pods[2])
	for i, n := range north {
		s.rerun(whole, n, args[i])
	}
	s.anew(t, h, north)
}

// Without regard for the cause, a zone that is down as a whole is evicted from at
// the ordinary rate.
func (s *sites) testSiteLostAsDocumented(t *testing.T) {
	const every = 4 * time.Second
	run(t, append(s.kill(t, "server"), "--cause-aware-eviction=false", "--node-eviction-rate=0.25"), filepath.Join(s.dir, "server"))
	eventually(t, "the API answers again", func() error {
		_, err := s.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		return err
	})
	h := s.watch(t)
	for i, n := range s.nodes {
		s.heardOf(t, n.Name)
		back(t, h, n.Name)
		// An agent that had just come back may have waited longer than its pod was tolerated.
		if p, err := s.client.CoreV1().Pods("default").Get(t.Context(), s.pods[i].Name, metav1.GetOptions{}); err != nil || p.DeletionTimestamp != nil {
			s.runAnew(t, h, i)
		}
	}
	h = s.watch(t)
	cut(t, s.nodes[:2]...)
	var since []time.Time
	for _, n := range s.nodes[:2] {
		since = append(since, s.silent(t, h, n.Name).TimeAdded.Time)
	}
	// Both times are cut to whole seconds.
	if apart := since[1].Sub(since[0]).Abs(); apart <= every-time.Second {
		t.Errorf("two nodes were to be left %v apart, want at least %v", apart, every)
	}
	for i, p := range s.pods[:2] {
		going := h.pod(t, p.Name+" is told to go", func(v *corev1.Pod) bool {
			return v.UID == p.UID && v.DeletionTimestamp != nil
		})
		timely(t, p.Name+" is told to go", toldToGo(going), since[i].Add(tolerated))
	}
	if n := h.told("EvictionFrozen", s.nodes[0].Name, ""); n != 0 {
		t.Errorf("with the switch off an eviction was frozen %d times", n)
	}
	stays(t, h, s.pods[2])
	heal(t, s.nodes[:2]...)
	for i, n := range s.nodes[:2] {
		back(t, h, n.Name)
		s.aliveIs(t, h.lost(t, s.pods[i]), 0)
	}
}

// heardOf waits for a heartbeat of a node that is yet to come.
func (c *cluster) heardOf(t *testing.T, name string) {
	t.Helper()
	from := time.Now()
	eventually(t, name+" is heard of", func() error {
		lease, err := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(from) {
			err = errors.New("not since " + lease.Spec.RenewTime.String())
		}
		return err
	})
}
