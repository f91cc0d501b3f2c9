package controlplane

// What controllers share: clients, informers, a recorder of events, metrics.

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/tainteviction"
)

// The components of Kubernetes that controllers write as: the API server records the user agent
// up to its first slash as the manager of fields.
const (
	managerAgent   = "kube-controller-manager"
	schedulerAgent = "kube-scheduler"
)

// shared is what controllers are made from. Its deps have no recorder of events.
type shared struct {
	cfg     Config
	deps    loop.Deps
	events  *events
	freezes *events // of nodes whose evictions are frozen, beside the many events of their pods
	metrics *scope  // the same as deps.Metrics
	// own has the clients of a controller made for it; nil means that all have the same.
	own func(d *loop.Deps, e *entry) error
}

// of returns what the controller of e is made from: s, with a recorder and clients of its own,
// by whose user agent the audit log tells who wrote. Its kinds are what it watches.
func (s *shared) of(e *entry) (*shared, *kinds, error) {
	its, k := *s, newKinds(s.deps.Informers)
	its.deps.Informers = k
	if s.own != nil {
		if err := s.own(&its.deps, e); err != nil {
			return nil, nil, err
		}
	}
	if !e.quiet {
		its.deps.Events = s.events.recorder(cmp.Or(e.source, e.name), its.deps.Client)
	}
	return &its, k, nil
}

func (p *ControlPlane) share() (*shared, error) {
	manager, scheduler := tuned(p.cfg.Client, managerAgent), tuned(p.cfg.SchedulerClient, schedulerAgent)
	client, err := clientFor(manager, "controllers")
	if err != nil {
		return nil, err
	}
	m := &scope{r: p.cfg.Metrics}
	return &shared{
		cfg: p.cfg, deps: loop.Deps{Client: client, Informers: newInformers(client), Metrics: m, Log: p.log},
		events: newEvents(), freezes: newEvents(), metrics: m,
		own: func(d *loop.Deps, e *entry) (err error) {
			c := manager
			if e.schedules {
				c = scheduler
			}
			if d.Client, err = clientFor(c, e.name); err != nil {
				return err
			}
			if d.Objects, err = loop.NewObjects(named(c, e.name)); err != nil {
				return err
			}
			d.Custom, err = dynamic.NewForConfig(named(c, e.name))
			return err
		},
	}, nil
}

// newInformers returns the informers that all controllers share, without who wrote which
// field where none of them asks for that.
func newInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(tainteviction.WithoutManagers))
}

// clientFor returns a client whose user agent ends in name.
func clientFor(c *rest.Config, name string) (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(named(c, name))
	if err != nil {
		return nil, fmt.Errorf("make the client of the %s: %w", name, err)
	}
	return client, nil
}

func named(c *rest.Config, name string) *rest.Config {
	c = rest.CopyConfig(c)
	c.UserAgent += "/" + name
	return c
}

// tuned returns a copy of c with what every controller wants of a client. All clients
// that are made of it share its rate limit. Their user agents begin with component.
func tuned(c *rest.Config, component string) *rest.Config {
	c = rest.CopyConfig(c)
	_, version, _ := strings.Cut(rest.DefaultKubernetesUserAgent(), "/")
	c.UserAgent = component + "/" + version
	if c.QPS == 0 {
		c.QPS, c.Burst = DefaultQPS, DefaultBurst
	}
	if c.RateLimiter == nil && c.QPS > 0 {
		c.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, max(c.Burst, 1))
	}
	if c.ContentType == "" {
		c.ContentType = "application/vnd.kubernetes.protobuf"
		c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	return c
}
