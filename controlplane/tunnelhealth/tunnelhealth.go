// Package tunnelhealth tells, on each Node, what the tunnel knows of it.
//
// Kubernetes knows of a node what the node says about itself, and when it last did.
// Two conditions add what the control side sees:
//
//	hawser.dev/TunnelConnected  whether the node's session has a connection, and
//	                            if not, why: LinkSilent, ConnectionClosed, AgentStopped
//	hawser.dev/DataPathReady    whether the node's kubelet API answers through it
//
// so that a node whose heartbeats fail while its tunnel is fine looks different
// from one whose tunnel is gone while its heartbeats are fresh. A node that never
// had a tunnel gets neither. What happens in between (attached, parked, resumed,
// detached) is told in events.
//
// The mental model: a Source has the truth, and says whose has changed; a queue
// brings the two conditions in step with it, a write a change. Beside it a second
// queue asks each attached node's kubelet for its health every half a minute,
// through the tunnel and with all of TLS, as a request for logs would.
//
// Of several servers the one with the node's newest session speaks of the node, and its
// name stands in the condition. One that cannot hear another leaves what that one has
// written as long as it lives, unless its own session is newer.
//
// What it is not: it judges nobody (that is package evidence) and taints nothing.
package tunnelhealth

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// Defaults of a Config.
const (
	DefaultProbePeriod  = 30 * time.Second
	DefaultProbeTimeout = 5 * time.Second
	DefaultProbes       = 16
	DefaultProbeRate    = 50
	DefaultWriteRate    = 20
	DefaultEventRate    = 10
	DefaultStartupGrace = 60 * time.Second
)

const (
	// workers is how many nodes' conditions are worked on at once.
	workers = 4
	// settle is how long a session must have been as it is before that is written:
	// most that lose their connection have another within it.
	settle = time.Second
	// together is how long the first condition of a node waits for the first answer of its
	// kubelet, so that both are one write.
	together = 5 * time.Second
	// unsure is when a node is looked at again of which another server may have more to say.
	unsure = 10 * time.Second
)

// A Source knows sessions and tells of changes. *server.Hub is one, in other
// words.
type Source interface {
	evidence.Source
	// Follow calls f with the names of nodes that Observe may say something new of,
	// all that are known first, until ctx is done.
	Follow(ctx context.Context, f func(nodes []string)) error
}

// Config configures a Controller. Source and Dial are required.
type Config struct {
	Source Source
	// Dial reaches addresses such as node-1:10250 through the tunnel.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is how kubelets are spoken to: which authorities their certificates come
	// from, and which certificate they are shown. Nil means the system's and none.
	TLS *tls.Config
	// Stranger says that kubelets do not know who asks: one that says so (401, 403) has
	// answered.
	Stranger bool
	// ProbePeriod is the time between two probes of a node, a tenth more or less;
	// zero means DefaultProbePeriod. It is longer if all nodes together would
	// exceed ProbeRate.
	ProbePeriod time.Duration
	// ProbeTimeout bounds a probe; zero means DefaultProbeTimeout.
	ProbeTimeout time.Duration
	// Probes is how many probes there are at once; zero means DefaultProbes.
	Probes int
	// ProbeRate, WriteRate and EventRate are how many probes, writes of conditions
	// and events there are a second; zero means the default. A write waits its turn,
	// an event that exceeds ten seconds' worth is dropped and counted.
	ProbeRate, WriteRate, EventRate float64
	// Started is when this server was; zero means at New. Nodes with a tunnel in an
	// earlier life of it have StartupGrace to come back before they are said to be
	// gone; zero means DefaultStartupGrace.
	Started      time.Time
	StartupGrace time.Duration
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.DurationVar(&c.ProbePeriod, "tunnel-probe-period", DefaultProbePeriod, "how often each node's kubelet is asked for its health through the tunnel")
}

func (c Config) withDefaults() Config {
	loop.Default(&c.ProbePeriod, DefaultProbePeriod)
	loop.Default(&c.ProbeTimeout, DefaultProbeTimeout)
	loop.Default(&c.StartupGrace, DefaultStartupGrace)
	loop.Default(&c.ProbeRate, DefaultProbeRate)
	loop.Default(&c.WriteRate, DefaultWriteRate)
	loop.Default(&c.EventRate, DefaultEventRate)
	loop.Default(&c.Probes, DefaultProbes)
	if c.Started.IsZero() {
		c.Started = time.Now()
	}
	return c
}

// A memo is what is remembered of a node between two looks.
type memo struct {
	told  uint64        // the latest change that there was an event for
	at    string        // the server whose changes those are
	gone  time.Time     // since when no server knows the node; zero if one does
	rtt   time.Duration // the round trip that the condition shows
	lost  time.Time     // when the node was last found silent, by its condition
	probe result
}

// A Controller keeps the conditions.
type Controller struct {
	cfg      Config
	recorder record.EventRecorder
	client   kubernetes.Interface
	nodes    corelisters.NodeLister
	inf      cache.SharedIndexInformer
	log      *slog.Logger
	outage   *loop.Outage
	metrics  *metrics
	http     *http.Client
	writes   *rate.Limiter
	probes   *rate.Limiter
	events   *rate.Limiter

	mu    sync.Mutex       // guards the following
	memos map[string]*memo // of nodes that exist
}

// New returns a controller that watches through d.Informers. It starts nothing.
func New(d loop.Deps, c Config) (*Controller, error) {
	c = c.withDefaults()
	n := d.Informers.Core().V1().Nodes()
	ctl := &Controller{
		cfg: c, recorder: loop.Recorder(d.Events), client: d.Client, nodes: n.Lister(), inf: n.Informer(), metrics: newMetrics(d.Metrics, n.Lister()),
		http:   newClient(c),
		writes: rate.NewLimiter(rate.Limit(c.WriteRate), int(c.WriteRate)+1),
		probes: rate.NewLimiter(rate.Limit(c.ProbeRate), 1),
		events: rate.NewLimiter(rate.Limit(c.EventRate), 10*int(c.EventRate)+1),
		memos:  make(map[string]*memo),
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	ctl.outage = loop.NewOutage(ctl.log)
	return ctl, nil
}

// Name is the controller's name.
func (*Controller) Name() string { return "hawser-tunnel-health-controller" }

// Run keeps conditions in step until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	conditions := loop.NewQueue(loop.Config[string]{
		Name: c.Name(), Workers: workers, Log: c.log, Do: c.sync,
	})
	probes := loop.NewQueue(loop.Config[string]{
		Name: c.Name() + "-probes", Workers: c.cfg.Probes, Log: c.log,
		Do: func(ctx context.Context, node string) (time.Duration, error) {
			again, changed := c.probe(ctx, node)
			if changed {
				conditions.Add(node)
			}
			return again, nil
		},
	})
	stop, err := loop.Watch(c.inf, func(node string) {
		conditions.Add(node)
		if c.unprobed(node) || c.lost(node) {
			probes.Add(node)
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	return loop.Together(ctx, conditions.Run, probes.Run, func(ctx context.Context) error {
		return c.cfg.Source.Follow(ctx, func(nodes []string) {
			for _, n := range nodes {
				conditions.Add(n)
				probes.Add(n)
			}
		})
	})
}

// memo calls f with what is remembered of a node, while nobody else does.
func (c *Controller) memo(node string, f func(*memo)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.memos[node]
	if m == nil {
		m = new(memo)
		c.memos[node] = m
	}
	f(m)
}

// forgetProbe forgets what the last probe of a node found: others probe it from now on, and it is not
// asked here again before this server writes its conditions.
func (c *Controller) forgetProbe(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.memos[node]; m != nil {
		m.probe = result{}
	}
}

// unprobed says whether an attached node has never been asked: one whose session
// came before its Node.
func (c *Controller) unprobed(node string) bool {
	c.mu.Lock()
	m := c.memos[node]
	none := m == nil || m.probe.session == 0
	c.mu.Unlock()
	if !none {
		return false
	}
	s, ok := c.cfg.Source.Observe(node)
	return ok && s.State == evidence.Attached && !s.Elsewhere
}

// lost says whether a node has been found silent since it was last asked here: what
// its kubelet says then is worth knowing at once.
func (c *Controller) lost(name string) bool {
	node, err := c.nodes.Get(name)
	if err != nil {
		return false
	}
	for i := range node.Status.Conditions {
		ready := &node.Status.Conditions[i]
		if ready.Type != corev1.NodeReady || ready.Status != corev1.ConditionUnknown {
			continue
		}
		news := false
		c.memo(name, func(m *memo) {
			news = !m.lost.Equal(ready.LastTransitionTime.Time)
			m.lost = ready.LastTransitionTime.Time
		})
		return news
	}
	return false
}

// sync brings a node's conditions in step.
func (c *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.memos, name)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	now := time.Now()
	s, ok := c.cfg.Source.Observe(name)
	if !ok {
		return c.syncGone(ctx, node, &s, now)
	}
	if s.Elsewhere {
		c.forgetProbe(name)
		if has := condition(node, evidence.TunnelConnected); s.State != evidence.Attached && has != nil && has.Status == corev1.ConditionTrue {
			return unsure, nil // the other may go before it writes, and that is no change
		}
		return 0, nil // what changes that is a change
	}
	var m memo
	c.memo(name, func(kept *memo) {
		kept.gone = time.Time{}
		c.tell(node, &s, kept)
		kept.rtt = shown(kept.rtt, s.RTT)
		m = *kept
	})
	if wait := s.At.Add(settle).Sub(now); wait > 0 && wait <= settle {
		return wait, nil
	}
	if yields(node, &s) {
		return unsure, nil
	}
	asked := m.probe.session == s.Session && m.probe.certain
	if wait := s.At.Add(together).Sub(now); !asked && wait > 0 && s.State == evidence.Attached && condition(node, evidence.TunnelConnected) == nil {
		return wait, nil
	}
	return 0, c.write(ctx, node, append(connected(&s, m.rtt), reachable(&s, m.probe)...))
}

// syncGone is sync for a node that no server knows a session of: only its conditions may
// say that it had one.
func (c *Controller) syncGone(ctx context.Context, node *corev1.Node, s *evidence.Session, now time.Time) (time.Duration, error) {
	if condition(node, evidence.TunnelConnected) == nil {
		return 0, nil // not a node with a tunnel
	}
	since := c.cfg.Started
	c.memo(node.Name, func(m *memo) {
		if m.gone.IsZero() {
			m.gone = now
		}
		if m.gone.Sub(since) > c.cfg.StartupGrace {
			since = m.gone // another server had it, and was started again
		}
	})
	if wait := since.Add(c.cfg.StartupGrace).Sub(now); wait > 0 {
		return wait, nil
	}
	if s.Elsewhere || yields(node, s) {
		return unsure, nil
	}
	return 0, c.write(ctx, node, missing(node, since))
}

// write writes those of the conditions that differ.
func (c *Controller) write(ctx context.Context, node *corev1.Node, want []corev1.NodeCondition) error {
	want = differing(node, want, metav1.Now())
	if len(want) == 0 {
		return nil
	}
	// Conditions are merged by their type: those of the node itself stay.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": want},
	})
	if err != nil {
		return fmt.Errorf("encode the conditions of node %s: %w", node.Name, err)
	}
	if err = c.writes.Wait(ctx); err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	c.metrics.wrote(err)
	err = c.outage.Note(err)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return loop.Quiet(err) // it was deleted, and perhaps made anew
	case err != nil:
		return fmt.Errorf("write the conditions of node %s: %w", node.Name, err)
	}
	return nil
}
