package controlplane

// Tests that a restart of the server neither ends a freeze nor begins a clock anew:
// the lifecycle controller with its judge, the controller that writes what the tunnel
// knows, and taint eviction together.

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// downtime is how long the server takes to be restarted.
const downtime = 3 * time.Second

// A happening is what is done to a plant at a time.
type happening struct {
	at time.Duration
	do func(p *plant)
}

// play starts the server and starts it again at each of the times, while what
// happens happens, until end.
func (p *plant) play(restarts []time.Duration, happens []happening, end time.Duration) {
	p.t.Helper()
	l := p.start()
	defer func() { l.stop() }()
	for len(restarts) > 0 || len(happens) > 0 {
		if len(restarts) == 0 || len(happens) > 0 && happens[0].at <= restarts[0] {
			p.until(happens[0].at)
			happens[0].do(p)
			happens = happens[1:]
			continue
		}
		p.until(restarts[0])
		l.stop()
		p.until(restarts[0] + downtime)
		l = p.start()
		restarts = restarts[1:]
	}
	p.until(end)
}

// each returns the multiples of d before end.
func each(d, end time.Duration) (out []time.Duration) {
	for at := d; at < end; at += d {
		out = append(out, at)
	}
	return out
}

func cutOff(names ...string) func(p *plant) { return func(p *plant) { p.cutOff(names...) } }

// about tells whether two times are the same but for the period of passes, the
// whole seconds of the API, and a restart.
func about(a, b time.Duration) bool { return (a - b).Abs() <= 5*time.Second+downtime+2*time.Second }

// TestRestartsBesideTheDead: the pods of a dead node go when they would have gone
// without restarts.
func TestRestartsBesideTheDead(t *testing.T) {
	cert, key := authority(t)
	const end = 9 * time.Minute
	down := func(p *plant) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.links = errors.New("no network interface is up (eth0)")
	}
	for _, tc := range []struct {
		name     string
		restarts []time.Duration
		happens  []happening
	}{
		{"every two minutes", each(2*time.Minute, end), []happening{{10 * time.Second, cutOff("a1")}}},
		{"every half a minute, from when it is tainted", each(30*time.Second, end)[2:], []happening{{10 * time.Second, cutOff("a1")}}},
		{"its site follows later, and the server restarts", each(2*time.Minute, end), []happening{
			{10 * time.Second, cutOff("a1")}, {90 * time.Second, cutOff("a2")},
		}},
		{"the server loses its links after the taint, and restarts", each(2*time.Minute, end), []happening{
			{10 * time.Second, cutOff("a1")}, {90 * time.Second, down},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var gone [2]time.Duration
			for i, restarts := range [][]time.Duration{nil, tc.restarts} {
				synctest.Test(t, func(t *testing.T) {
					p := newPlant(t, cert, key, "a/a1", "a/a2", "b/b1", "b/b2", "c/c1")
					p.play(restarts, tc.happens, end)
					gone[i] = p.evicted()["a1"]
				})
			}
			if gone[0] < 5*time.Minute || gone[1] < gone[0] || gone[1] > gone[0]+downtime+time.Second {
				t.Errorf("the pod went after %v, and without restarts after %v", gone[1], gone[0])
			}
		})
	}
}

// TestFreezeOutlivesRestarts: a site that fell silent together stays frozen, for the
// same reason and to the same time, whatever restarts there are; and its freeze ends
// as it would have ended when what is heard later proves that it was no cut.
func TestFreezeOutlivesRestarts(t *testing.T) {
	cert, key := authority(t)
	const began = 100 * time.Second
	cut := happening{began, cutOff("a1", "a2")}
	for _, tc := range []struct {
		name     string
		restarts []time.Duration
		happens  []happening
		thaw     time.Duration // about, of a1
	}{
		{"once", []time.Duration{5 * time.Minute}, []happening{cut}, began + autonomy},
		{"while its sessions are parked", []time.Duration{began + 50*time.Second}, []happening{cut}, began + autonomy},
		{"every two minutes", each(2*time.Minute, 20*time.Minute)[1:], []happening{cut}, began + autonomy},
		{"a neighbour is back after a restart", []time.Duration{5 * time.Minute}, []happening{
			cut, {8 * time.Minute, func(p *plant) { p.mend("a2") }},
		}, 9 * time.Minute},
		{"a neighbour is back for a moment after a restart", []time.Duration{5 * time.Minute}, []happening{
			cut, {8 * time.Minute, func(p *plant) { p.mend("a2") }}, {8*time.Minute + 10*time.Second, cutOff("a2")},
		}, began + autonomy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, restarts := range [][]time.Duration{nil, tc.restarts} {
				synctest.Test(t, func(t *testing.T) {
					p := newPlant(t, cert, key, "a/a1", "a/a2", "b/b1", "b/b2", "c/c1")
					p.play(restarts, tc.happens, 20*time.Minute)
					if at := p.tainted("a1"); !about(at, tc.thaw) {
						t.Errorf("restarts at %v: frozen until %v, want about %v", restarts, at, tc.thaw)
					}
					if at := p.evicted()["a1"]; !about(at, tc.thaw+5*time.Minute) {
						t.Errorf("restarts at %v: its pod went after %v", restarts, at)
					}
					if r := p.tunnel("a1"); r != evidence.LinkSilent {
						t.Errorf("restarts at %v: the tunnel is said to be %s", restarts, r)
					}
				})
			}
		})
	}
}

// shownFreezes are what a page would show.
type shownFreezes struct {
	mu      sync.Mutex // guards the following
	decides bool
	nodes   map[string]string
}

func (s *shownFreezes) Decide(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decides, s.nodes = yes, map[string]string{}
}

func (s *shownFreezes) Freeze(node, reason, message string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, kept, _ := strings.Cut(message, "; "); reason != "" {
		s.nodes[node] = reason + " " + kept
		if !strings.HasSuffix(kept, until.UTC().Format(time.RFC3339)) {
			s.nodes[node] += ", and not until " + until.String()
		}
	} else {
		delete(s.nodes, node)
	}
}

func (s *shownFreezes) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.decides, s.nodes)
}

// TestFreezeKeepsItsReason: after a restart a frozen site is told, shown and counted for
// the reason that it had before, and until the same time.
func TestFreezeKeepsItsReason(t *testing.T) {
	cert, key := authority(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, cert, key, "a/a1", "a/a2", "b/b1", "b/b2", "c/c1")
		shown := &shownFreezes{}
		p.freezes = shown
		until := p.began.Add(100*time.Second + autonomy).UTC().Format(time.RFC3339)
		both := fmt.Sprintf("true map[a1:SiteLostNetwork pods are kept until %s a2:SiteLostNetwork pods are kept until %[1]s]", until)
		l := p.start()
		defer func() { l.stop() }()
		p.until(100 * time.Second)
		p.cutOff("a1", "a2")
		for _, at := range []time.Duration{4 * time.Minute, 6 * time.Minute, 10 * time.Minute} {
			p.until(at)
			const want = `# HELP hawser_eviction_frozen_nodes X
# TYPE hawser_eviction_frozen_nodes gauge
hawser_eviction_frozen_nodes{reason="SiteLostNetwork"} 2
`
			if err := sameNumbers(l.registry, want, "hawser_eviction_frozen_nodes"); err != nil {
				t.Errorf("after %v: %v", at, err)
			}
			if got := shown.String(); got != both {
				t.Errorf("after %v %s is shown, want %s", at, got, both)
			}
			l.stop()
			if got := shown.String(); got != "false map[]" {
				t.Errorf("without a server %s is shown", got)
			}
			p.until(at + downtime)
			l = p.start()
			p.until(at + downtime + 20*time.Second)
			if err := sameNumbers(l.registry, want, "hawser_eviction_frozen_nodes"); err != nil {
				t.Errorf("20 s after the restart at %v: %v", at, err)
			}
			if got := shown.String(); got != both {
				t.Errorf("20 s after the restart at %v %s is shown, want %s", at, got, both)
			}
		}
		if got := p.log.with("evictions from the node are frozen", "ServerJustStarted"); len(got) > 0 {
			t.Errorf("another reason was told: %q", got)
		}
	})
}

// TestTimesOfNodes: a node that says since when it is Unknown, and then says nothing
// any more, is excused for as long as any other, whatever time it has written.
func TestTimesOfNodes(t *testing.T) {
	cert, key := authority(t)
	const began, kept, end = 100 * time.Second, 8 * time.Minute, 14 * time.Minute
	for _, restarts := range [][]time.Duration{nil, each(30*time.Second, end), each(2*time.Minute, end)} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlant(t, cert, key, "a/a1", "b/b1", "b/b2", "c/c1")
			p.annotate("a1", evidence.NodeAutonomy, kept.String())
			p.play(restarts, []happening{{began, func(p *plant) {
				p.post("a1", corev1.ConditionUnknown, metav1.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC))
				p.cutOff("a1")
			}}}, end)
			if at := p.tainted("a1"); at < began+kept || at > began+kept+time.Minute+downtime {
				t.Errorf("restarts at %v: frozen until %v", restarts, at)
			}
		})
	}
}

// sameNumbers compares a metric but for its help.
func sameNumbers(g prometheus.Gatherer, want, name string) error {
	families, err := g.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if f.GetName() == name {
			want = strings.Replace(want, " X\n", " "+f.GetHelp()+"\n", 1)
		}
	}
	return testutil.GatherAndCompare(g, strings.NewReader(want), name)
}
