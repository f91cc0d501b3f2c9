package evidence

// The judge: what it is made of, and the order in which it looks.

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
)

// Reasons of excuses.
const (
	ServerJustStarted = "ServerJustStarted"
	ServerLostNetwork = "ServerLostNetwork"
	SiteLostNetwork   = "SiteLostNetwork"
	TunnelAttached    = "TunnelAttached"
	Autonomy          = "Autonomy"
)

// Defaults of a Config.
const (
	DefaultSiteAutonomy = time.Hour
	DefaultMaxAutonomy  = 24 * time.Hour
	DefaultServerBound  = 24 * time.Hour
	DefaultSilence      = 20 * time.Second
	DefaultStartupGrace = 60 * time.Second
	DefaultSuspended    = 5 * time.Second
)

const (
	tick = time.Second
	// viewAge is how old an overview may be that judgements are based on.
	viewAge = time.Second
	// scanPeriod is how often annotations are looked at though nobody is judged.
	scanPeriod = 10 * time.Second
)

// Config configures a Judge. Source and Nodes are required.
type Config struct {
	Source Source
	Nodes  corelisters.NodeLister // must be synced before Excuse is first called
	// Started is when this server was; zero means at New.
	Started time.Time
	// Links returns an error while the server has no link to anywhere but itself;
	// nil means OwnLinks. It is called once a second at most. Agents on this
	// machine are not judged by it.
	Links func() error
	// SiteAutonomy is how long a site that has lost its network is excused, counted
	// from each node's last word, unless an annotation says otherwise; zero means
	// DefaultSiteAutonomy, and negative not at all. The same bound holds for all
	// sessions together.
	SiteAutonomy time.Duration
	// MaxAutonomy bounds SiteAutonomy and what annotations ask for; zero means
	// DefaultMaxAutonomy.
	MaxAutonomy time.Duration
	// ServerBound bounds the excuse that the server's own links are down; zero
	// means DefaultServerBound.
	ServerBound time.Duration
	// Silence is how long an attached node may say nothing before it counts as
	// silent. It should be half of the lifecycle controller's grace period, and
	// longer than a heartbeat's period; zero means DefaultSilence.
	Silence time.Duration
	// Together is how far apart the last words of nodes may be that were cut at one
	// moment: no less than a heartbeat's period. Zero means Silence.
	Together time.Duration
	// StartupGrace is how long agents may take to come back after the server was
	// started or went on, and a site's nodes after the first of them; zero means
	// DefaultStartupGrace.
	StartupGrace time.Duration
	// Suspended is a gap between two of Run's ticks, a second apart, from which on
	// this process counts as having been stopped; zero means DefaultSuspended.
	Suspended time.Duration
	// KeepAttached makes an excuse of a tunnel that is attached and whose data path
	// works, for as long as SiteAutonomy. The default is what Kubernetes documents:
	// a node that sends no heartbeats is evicted from, because whatever hangs there
	// cannot be trusted to look after pods either.
	KeepAttached bool

	Events record.EventRecorder // nil means none
	Log    *slog.Logger         // nil means discard
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.DurationVar(&c.SiteAutonomy, "site-autonomy-duration", DefaultSiteAutonomy, "how long pods stay on the nodes of a site, or behind a server, that has lost its network (--cause-aware-eviction), unless an annotation says otherwise")
	f.DurationVar(&c.MaxAutonomy, "max-autonomy-duration", DefaultMaxAutonomy, "the longest that --site-autonomy-duration and any annotation can keep pods on a silent node; while the server's own links are down it is a day at most")
	f.BoolVar(&c.KeepAttached, "keep-attached-nodes", false, "evict nobody from a silent node whose tunnel works (--cause-aware-eviction), for --site-autonomy-duration at most")
}

// A Judge judges. Its methods may be called at the same time.
type Judge struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex // guards the following
	ticking bool       // Run runs
	ticked  time.Time  // when it last did
	stopped time.Time  // when this process was last stopped; zero if it never was
	woke    time.Time  // when it went on
	view    *view
	// sightings are of the sessions that there were at the latest look, by node.
	records  map[string]*sessionRecord
	recalled map[types.UID][]Change // what a server before this one left of a node's session
	warned   map[string]string      // malformed annotations told of, by key of node and annotation
}

// New checks c. It starts nothing.
func New(c Config) (*Judge, error) {
	if c.Source == nil || c.Nodes == nil {
		return nil, errors.New("judge of silence: no source of sessions or of nodes")
	}
	if c.Started.IsZero() {
		c.Started = time.Now()
	}
	if c.Links == nil {
		c.Links = OwnLinks
	}
	c.MaxAutonomy = or(c.MaxAutonomy, DefaultMaxAutonomy)
	c.SiteAutonomy = min(or(c.SiteAutonomy, DefaultSiteAutonomy), c.MaxAutonomy)
	c.ServerBound = or(c.ServerBound, DefaultServerBound)
	c.Silence = or(c.Silence, DefaultSilence)
	c.Together = or(c.Together, c.Silence)
	c.StartupGrace = or(c.StartupGrace, DefaultStartupGrace)
	c.Suspended = or(c.Suspended, DefaultSuspended)
	if c.Events == nil {
		c.Events = &record.FakeRecorder{} // without a channel it discards
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Judge{cfg: c, log: c.Log, warned: make(map[string]string), records: make(map[string]*sessionRecord), recalled: make(map[types.UID][]Change)}, nil
}

// or is d with its default for zero, and zero for what is negative.
func or(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return max(d, 0)
}

// Run notices when this process is stopped, silences that nobody else does, and
// annotations that make no sense, until ctx is done.
func (j *Judge) Run(ctx context.Context) error {
	t := time.NewTicker(tick)
	defer t.Stop()
	j.mu.Lock()
	j.ticking, j.ticked = true, time.Now()
	j.mu.Unlock()
	defer func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.ticking = false
	}()
	var scanned time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		now := time.Now()
		j.mu.Lock()
		j.tickLocked(now)
		if j.view == nil || now.Sub(j.view.at) >= j.cfg.Silence/looks {
			j.view = j.lookLocked(now) // though nobody is judged, lest a gap be missed
		}
		j.mu.Unlock()
		if now.Sub(scanned) >= scanPeriod {
			scanned = now
			j.scan()
		}
	}
}

// tickLocked notes that this process runs, and whether it did not for a while.
func (j *Judge) tickLocked(now time.Time) {
	if !j.ticking {
		return
	}
	// A stopped process sees its own clock leap; a machine that slept, only the
	// wall's.
	gap := max(now.Sub(j.ticked), now.Round(0).Sub(j.ticked.Round(0)))
	if gap >= j.cfg.Suspended {
		j.stopped, j.woke = j.ticked, now
		j.log.Warn("this process was stopped; nodes are given time to come back", "for", gap.Round(time.Millisecond), "grace", j.cfg.StartupGrace)
	}
	j.ticked = now
}

// Excuse says whether the node's silence has a reason that is not the node's own,
// which, and until when it counts. It is meant to be asked while the node's Ready
// condition is Unknown, and answers at once.
func (j *Judge) Excuse(node *corev1.Node) (reason, message string, until time.Time, ok bool) {
	now := time.Now()
	c := j.open(node, now)
	if c.heard {
		return "", "", time.Time{}, false // a node that says it is not ready is not silent
	}
	rules := []func(*observation) excuse{serverLost, siteLost, justStarted, autonomous, attached}
	if c.session.recalled { // who of other sites was heard then, their return tells
		rules[0], rules[1] = siteLost, serverLost
	}
	for _, rule := range rules {
		if e := rule(c); e.reason != "" {
			return e.reason, e.message, e.until, true
		}
	}
	return "", "", time.Time{}, false
}

// Judges says whether the node has, or had, a session, so that Excuse can tell its
// death from an outage.
func (j *Judge) Judges(node *corev1.Node) bool {
	_, known := j.cfg.Source.Observe(node.Name)
	return known || condition(node, TunnelConnected) != ""
}

// open gathers what is known of a node.
func (j *Judge) open(node *corev1.Node, now time.Time) *observation {
	j.mu.Lock()
	j.tickLocked(now)
	stopped, woke := j.stopped, j.woke
	if j.view == nil || now.Sub(j.view.at) >= viewAge || now.Before(j.view.at) {
		j.view = j.lookLocked(now)
	}
	v := j.view
	j.mu.Unlock()
	c := &observation{
		cfg: &j.cfg, now: now, node: node, view: v, stopped: stopped, woke: woke,
		site: v.sites[siteOf(node)],
	}
	c.session, c.known = v.sessions[node.Name]
	if c.last, c.silent = c.session.silent(now, j.cfg.Silence); !c.silent {
		c.last, c.silent = c.session.returned(now, j.cfg.StartupGrace)
	}
	c.last = c.session.first(c.last, now, j.cfg.Silence, j.cfg.StartupGrace)
	c.unknown, c.heard = readiness(node)
	c.unknown = earlier(c.unknown, now) // the node may have written it
	c.keep, c.explicit = v.autonomy(node, c.site)
	if !c.explicit {
		c.keep = j.cfg.SiteAutonomy
	}
	return c
}

// readiness is since when the node's Ready condition is Unknown; zero if it is
// not, and heard if the node says itself that it is not ready.
func readiness(node *corev1.Node) (unknown time.Time, heard bool) {
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		switch c.Status {
		case corev1.ConditionUnknown:
			return c.LastTransitionTime.Time, false
		case corev1.ConditionFalse:
			return time.Time{}, true
		}
	}
	return time.Time{}, false
}
