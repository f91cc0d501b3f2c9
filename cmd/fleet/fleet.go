// Package fleet simulates many nodes in one process, to see what a cluster makes
// of them.
//
// The mental model: a Fleet is as many nodes as one process can hold. Each has an
// identity of its own, got with a join token like any other node's; a real agent
// (package agent) whose session goes to a real server; and above it a node with
// lease, status and pods, whose containers package fakeruntime keeps. It speaks the
// API through its own session, in its own name. Faults are ordered in a small
// language (ParseFaults) and drawn by a seed, so that what happened can happen
// again.
//
// Beside that there are Sessions, which are agents without nodes, and a Hub,
// which is the part of a server that these meet: port, hub and transports. They show what sessions cost by themselves.
//
// What this package is not: a load generator. Its nodes idle unless somebody gives
// them pods, and come back when they are let.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/tunnel"
)

// Defaults and bounds of a Config.
const (
	DefaultPrefix = "sim-"
	DefaultJoins  = 32

	// MaxNodes is how many nodes a fleet may have: as many as there are addresses
	// to give them.
	MaxNodes = 100_000

	zonePrefix = "zone-"
	// version is what the nodes say that their kubelets are.
	version = "v1.37.2+hawser"
)

// network is the range of the nodes' addresses, which is reserved for tests of
// network devices (RFC 2544) and so is nobody's.
var network = netip.MustParsePrefix("198.18.0.0/15")

// A Weight says how much of a node a simulated one has.
type Weight string

// The weights.
const (
	// Light nodes are made for this: lease, status and pods as a node has them, for
	// half of the memory. Volumes, probes, hooks and restarts they have not, and
	// their certificates are not renewed.
	Light Weight = "light"
	// Full nodes are what hawser-agent is made of, but for their containers.
	Full Weight = "full"
)

// Config configures a Fleet. Admin, Dir, Nodes and Transport are required; zero
// values mean the defaults named.
type Config struct {
	// Admin is how an administrator reaches the API server. It is used to make the
	// join token and to watch the nodes; its CA is what nodes are to trust.
	Admin *rest.Config
	// Server is where agents connect, HOST:PORT; empty means Admin's host.
	Server string
	// Dir keeps the nodes' identities and what they know of their pods, DIR/NAME
	// each, so that a fleet that starts again is the same nodes.
	Dir string

	Nodes  int
	Prefix string // of the nodes' names, followed by a number from 1: sim-
	// Zones is how many zones the nodes are spread over in turn, zone-1 to zone-N
	// by the topology label; zero means 1. The nodes of a zone are a site: the
	// administrator labels them.
	Zones  int
	Labels map[string]string // further labels
	Weight Weight            // Light

	Transport tunnel.Transport
	Link      tunnel.LinkOptions
	Joins     int // how many nodes join at the same time: 32

	MaxPods       int           // 110
	StatusUpdate  time.Duration // how often a node looks at itself: 10 s
	StatusReport  time.Duration // how often it writes its status without a change: 5 min, or StatusUpdate where only that is set
	LeaseDuration time.Duration // renewed every quarter of it, full seconds: 40 s

	Log *slog.Logger // of the agents and nodes; nil discards
}

// A Fleet is many simulated nodes. Run runs them; the other methods may be called
// at the same time.
type Fleet struct {
	cfg          Config
	admin        kubernetes.Interface
	idle         func() // closes the administrator's connections
	members      []*member
	readyCounter *readyCounter
	join         bootstrap.Config // without name and directory
}

// New checks c and makes the nodes. It starts nothing, but for making DIR.
func New(c Config) (*Fleet, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	admin := rest.CopyConfig(c.Admin)
	admin.QPS, admin.Burst = 100, 200
	admin.ContentType, admin.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if err := rest.LoadTLSFiles(admin); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	api, idle, err := newClient(admin)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	pins, err := bootstrap.PinsOf(admin.CAData)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	f := &Fleet{cfg: c, admin: api, idle: idle, join: bootstrap.Config{
		Servers: []string{"https://" + c.Server}, Pins: pins, Log: c.Log,
		Dial: new(net.Dialer).DialContext,
	}}
	addr := network.Addr()
	names := make(map[string]bool, c.Nodes)
	for i := range c.Nodes {
		addr = addr.Next()
		m := newMember(f, i, addr)
		names[m.name] = true
		f.members = append(f.members, m)
	}
	f.readyCounter = newReadyCounter(names)
	return f, nil
}

func (c *Config) check() error {
	if c.Admin == nil || c.Dir == "" || c.Transport.Dial == nil {
		return errors.New("Config.Admin, Dir and Transport are required")
	}
	c.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	c.Zones = cmp.Or(c.Zones, 1)
	c.Weight = cmp.Or(c.Weight, Light)
	c.Joins = cmp.Or(c.Joins, DefaultJoins)
	c.MaxPods = cmp.Or(c.MaxPods, 110)
	c.StatusReport = cmp.Or(c.StatusReport, c.StatusUpdate, 5*time.Minute)
	c.StatusUpdate = cmp.Or(c.StatusUpdate, 10*time.Second)
	c.LeaseDuration = cmp.Or(c.LeaseDuration, 40*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Nodes < 1 || c.Nodes > MaxNodes:
		return fmt.Errorf("%d nodes: want 1 to %d", c.Nodes, MaxNodes)
	case c.Zones < 1 || c.Zones > c.Nodes:
		return fmt.Errorf("%d zones: want 1 to the number of nodes", c.Zones)
	case c.Weight != Light && c.Weight != Full:
		return fmt.Errorf("weight %q: want %s or %s", c.Weight, Light, Full)
	case c.LeaseDuration < time.Second:
		return fmt.Errorf("lease duration %s: want 1s or more", c.LeaseDuration)
	}
	// What a fault could take for something else is no name of a node.
	if p := c.Prefix; strings.HasPrefix(p, zonePrefix) || strings.Trim(p, "0123456789.") == "" {
		return fmt.Errorf("prefix %q: want letters that do not begin with %s", p, zonePrefix)
	}
	if c.Server != "" {
		return nil
	}
	u, _, err := rest.DefaultServerUrlFor(c.Admin)
	if err != nil {
		return fmt.Errorf("host of the API server: %w", err)
	}
	c.Server = hostPort(u)
	return nil
}

func hostPort(u *url.URL) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
}

// zoneOf is the zone of the node of that index.
func zoneOf(i, zones int) string { return zonePrefix + strconv.Itoa(i%zones+1) }

// labels of a node.
func (f *Fleet) labels(m *member) map[string]string {
	l := map[string]string{corev1.LabelTopologyZone: m.zone, corev1.LabelTopologyRegion: "sim"}
	maps.Copy(l, f.cfg.Labels)
	return l
}

// dir is a node's data directory.
func (f *Fleet) dir(name string) string { return filepath.Join(f.cfg.Dir, name) }

// Run has all nodes join and runs them until ctx is done; then they leave and Run
// returns nil. An error means that a node cannot join at all, such as one whose
// name somebody else has; then all end.
func (f *Fleet) Run(ctx context.Context) error {
	defer f.idle()
	// The libraries of Kubernetes log through the context.
	ctx = logr.NewContext(ctx, logr.FromSlogHandler(f.cfg.Log.Handler()))
	token, done, err := f.token(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("fleet: %w", err)
	}
	defer done()
	f.join.Token = token
	gates := make(chan struct{}, f.cfg.Joins)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { f.readyCounter.run(ctx, f.admin); return nil })
	for _, m := range f.members {
		group.Go(func() error {
			if err := m.run(ctx, gates); err != nil && ctx.Err() == nil {
				return fmt.Errorf("fleet: node %s: %w", m.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// Counts of the nodes, as the API server has them.
func (f *Fleet) Counts() Counts { return f.readyCounter.counts() }

// Wait waits until done says yes to the counts, or ctx is done, whose error it
// then returns.
func (f *Fleet) Wait(ctx context.Context, done func(Counts) bool) error {
	return f.readyCounter.wait(ctx, done)
}

// WaitReady waits until all nodes have joined and are Ready.
func (f *Fleet) WaitReady(ctx context.Context) error {
	return f.Wait(ctx, func(c Counts) bool { return c.Ready == len(f.members) && c.Joined == len(f.members) })
}

// Connected is how many nodes have a session that has a connection.
func (f *Fleet) Connected() int {
	n := 0
	for _, m := range f.members {
		if a := m.agent.Load(); a != nil && a.State().Connected {
			n++
		}
	}
	return n
}

// Names of the nodes, in order.
func (f *Fleet) Names() []string {
	names := make([]string, len(f.members))
	for i, m := range f.members {
		names[i] = m.name
	}
	return names
}

// NewPlan draws what faults do to whom; the same seed gives the same plan.
func (f *Fleet) NewPlan(faults []Fault, seed uint64) (*Plan, error) {
	nodes := make([]place, len(f.members))
	for i, m := range f.members {
		nodes[i] = place{m.name, m.zone}
	}
	return newPlan(faults, nodes, seed)
}

// Apply does one step of a plan now. Steps may come in any order: a node is hit
// for as long as one fault of a kind that has begun is not over.
func (f *Fleet) Apply(s Step) {
	for _, i := range s.Nodes {
		f.members[i].apply(s)
	}
}

// Play does all steps of a plan at their times, counted from now, and tells each
// of told (which may be nil) when it has. It returns when there is none left, or
// when ctx is done.
func (f *Fleet) Play(ctx context.Context, p *Plan, told func(Step)) {
	began := time.Now()
	for {
		s, ok := p.Next()
		if !ok {
			return
		}
		t := time.NewTimer(time.Until(began.Add(s.At)))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		f.Apply(s)
		if told != nil {
			told(s)
		}
	}
}

// newAgent makes a node's agent. It starts nothing.
func (f *Fleet) newAgent(m *member, kubelet agent.Kubelet) (*agent.Agent, error) {
	return agent.New(agent.Config{
		Servers: []string{f.cfg.Server}, NodeName: m.name,
		Transport: m.wire.wrapTransport(f.cfg.Transport), Link: f.cfg.Link,
		TLS:     m.linkTLS,
		Dial:    m.wire.wrapDial(new(net.Dialer).DialContext),
		Kubelet: kubelet, Addresses: func() []netip.Addr { return []netip.Addr{m.ip} },
		Moved:        m.moved,
		DrainTimeout: drainTimeout, Version: version, Log: f.cfg.Log,
	})
}
