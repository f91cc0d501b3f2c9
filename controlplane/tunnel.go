package controlplane

// What the controllers know of the nodes' tunnels, where this process has them.

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/nodelifecycle"
	"github.com/hawser-project/hawser/controlplane/tunnelhealth"
)

// Tunnel is what there is to know of nodes beyond what they say of themselves.
// Source and Dial are required.
type Tunnel struct {
	Source tunnelhealth.Source
	// Dial and TLS are how kubelets are reached and spoken to.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	TLS  *tls.Config
	// Stranger says that kubelets do not know who asks: see tunnelhealth.Config.
	Stranger bool
	// Started is when this process was; zero means when the controllers are made.
	Started time.Time
	// ProbePeriod is how often each kubelet is asked for its health; zero means
	// tunnelhealth.DefaultProbePeriod.
	ProbePeriod time.Duration
	// Judge is how silence is judged before pods are evicted; Source, Nodes,
	// Started, Events and Log are filled in. Nil means that it is not: silence is death.
	Judge *evidence.Config
	// Freezes is told what is decided about evictions; nil means that nobody wants to know.
	Freezes Freezes
}

// Freezes shows which nodes are not evicted from.
type Freezes interface {
	// Decide says whether this process decides about evictions, as the leader does. All
	// that Freeze has said before is void.
	Decide(yes bool)
	// Freeze says that evictions from a node are frozen, why, and until when at the latest,
	// which is zero if that is not known; without a reason that they no longer are.
	Freeze(node, reason, message string, until time.Time)
}

// A lifecycle controller runs with the judge that it asks.
type lifecycle struct {
	*nodelifecycle.Controller
	judge   *evidence.Judge // nil if silence is not judged
	freezes Freezes         // nil if nobody wants to know
}

// Run implements Controller.
func (c *lifecycle) Run(ctx context.Context) error {
	if c.freezes != nil {
		c.freezes.Decide(true)
		defer c.freezes.Decide(false)
	}
	if c.judge == nil {
		return c.Controller.Run(ctx)
	}
	return loop.Together(ctx, c.judge.Run, c.Controller.Run)
}

func newNodeLifecycle(s *shared) (Controller, error) {
	c := nodelifecycle.Config{Policy: s.cfg.Lifecycle, Freezes: s.freezes.recorder("node-controller", s.deps.Client)}
	t := s.cfg.Tunnel
	if t == nil {
		return nodelifecycle.New(s.deps, c)
	}
	l := &lifecycle{freezes: t.Freezes}
	if t.Freezes != nil {
		c.Frozen = t.Freezes.Freeze
	}
	if t.Judge != nil {
		j := *t.Judge
		j.Started = t.Started
		j.Source, j.Nodes = t.Source, s.deps.Informers.Core().V1().Nodes().Lister()
		j.Events, j.Log = s.deps.Events, s.deps.Log
		var err error
		if l.judge, err = evidence.New(j); err != nil {
			return nil, err
		}
		c.Excuse, c.Judged = l.judge.Excuse, l.judge.Judges
	}
	var err error
	if l.Controller, err = nodelifecycle.New(s.deps, c); err != nil {
		return nil, err
	}
	return l, nil
}

func newTunnelHealth(s *shared) (Controller, error) {
	t := s.cfg.Tunnel
	if t == nil {
		return nil, nil
	}
	return tunnelhealth.New(s.deps, tunnelhealth.Config{
		Source: t.Source, Dial: t.Dial, TLS: t.TLS, Stranger: t.Stranger, ProbePeriod: t.ProbePeriod, Started: t.Started,
		StartupGrace: s.cfg.Lifecycle.StartupGracePeriod,
	})
}
