// Package statuspage shows the fleet in a browser: which nodes are healthy, their round
// trips, why they were last cut off, and for which evictions are frozen.
//
// The mental model is a table with one row a node. The watch of the Nodes, the sessions of
// the tunnel and the controller that decides about evictions change rows. A row that changes
// gets the next number. A viewer is a request. It remembers the number up to which it has
// written the table, and once a second writes the rows with higher numbers. So nothing is
// queued for a viewer: a slow one gets fewer and later states.
//
// The API server authorizes requests for the page and for its data, which are below one path,
// by RBAC. Beside another API server the port of health does, which asks that one. Texts of
// nodes are bounded here, and the page never uses them as markup.
//
// Evictions are decided by one server, the leader. The pages of the others show what it sent to
// their servers last.
//
// What it is not: it changes nothing and asks no node. Its history is a few minutes of round
// trips and the latest lines of the audit log.
package statuspage

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/evidence"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// Help has the help topics about this package: files NAME.md.
//
//go:embed *.md
var Help embed.FS

const (
	// samples is how many round trips of a node are kept.
	samples = 30
	// samplePeriod is the time between two of them.
	samplePeriod = 10 * time.Second
	// maxGone is how many nodes that are no more are remembered, so that viewers are told.
	maxGone = 1000
)

// A Source knows sessions and tells of changes.
type Source interface {
	evidence.Source
	// Follow calls f with the names of nodes that Observe may say something new of,
	// all that are known first, until ctx is done.
	Follow(ctx context.Context, f func(nodes []string)) error
	// Samples are the latest of all sessions. A node may have several.
	Samples() []Sample
	// Evictions are what another server, which decides about evictions, said last. It returns
	// false if no such server is known.
	Evictions() (Evictions, bool)
}

// A Sample is how a session is at a time.
type Sample struct {
	Node    string
	RTT     time.Duration // zero if unknown
	Streams int           // open ones
}

// Evictions are what a server that decides about evictions says of them.
type Evictions struct {
	Server string
	At     time.Time // when it was received
	Frozen []Freeze
}

// A Freeze says that no pod is evicted from a node, and why.
type Freeze struct {
	Node, Reason string
	Until        time.Time // zero if that is not known
}

// Config configures a Page. Source is required.
type Config struct {
	Source Source
	// Audited says that there is an audit log, which Audit is given too.
	Audited bool
	// Started is when this server was; zero means at New.
	Started time.Time
	Log     *slog.Logger // nil means discard
}

// A Page is the table and its viewers. Its methods may be called concurrently.
type Page struct {
	cfg     Config
	log     *slog.Logger
	audit   ring
	viewers chan struct{} // holds a token for each
	closed  chan struct{} // once Run has returned
	look    time.Duration // between two writes of a viewer
	synced  func() bool   // whether the nodes that there were at first have rows

	mu      sync.Mutex // guards the following
	version uint64     // of the latest change
	lastID  uint64
	rows    map[string]*entry // of the Nodes, by name
	gone    []tombstone       // oldest first
	floor   uint64            // changes up to it may have been forgotten
	freezes map[string]freeze // by node
	decider decision
	sampled uint64 // how often
}

// An entry is a row and what else is kept of its node.
type entry struct {
	row
	version uint64
	rtts    [samples]uint32 // microseconds; zero if unknown
	streams int             // -1 if there is no session
	absent  bool            // no server has, or had, a session
}

// A tombstone says which row is no more.
type tombstone struct{ id, version uint64 }

// New makes a page. It starts nothing.
func New(c Config) *Page {
	if c.Started.IsZero() {
		c.Started = time.Now()
	}
	return &Page{
		cfg: c, log: loop.Logger(c.Log, "status-page"),
		viewers: make(chan struct{}, maxViewers), closed: make(chan struct{}),
		look: lookPeriod, synced: func() bool { return true }, rows: map[string]*entry{}, freezes: map[string]freeze{},
	}
}

// Use has the page show the Nodes of nodes, from when that runs. Viewers are told nothing before it has
// all of them. It is called before the page serves.
func (p *Page) Use(nodes cache.SharedIndexInformer) error {
	all, err := nodes.AddEventHandler(loop.Guard(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.set(o) },
		UpdateFunc: func(_, o any) { p.set(o) },
		DeleteFunc: func(o any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
				p.remove(name)
			}
		},
	}))
	if err != nil {
		return fmt.Errorf("follow nodes: %w", err)
	}
	p.synced = all.HasSynced
	return nil
}

// Run follows sessions until ctx is done, and then ends the requests of viewers. It is
// called once.
func (p *Page) Run(ctx context.Context) error {
	defer close(p.closed)
	return loop.Together(ctx, p.sample, func(ctx context.Context) error {
		return p.cfg.Source.Follow(ctx, p.cut)
	})
}

// set makes the row of a Node, or changes it.
func (p *Page) set(o any) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	if p.put(n.Name, rowOf(n)) {
		p.cut([]string{n.Name})
	}
}

// put makes r the row of a node, and says whether it is the first.
func (p *Page) put(name string, r row) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.rows[name]
	first := e == nil
	if first {
		p.lastID++
		e = &entry{streams: -1}
		e.ID = p.lastID
		p.rows[name] = e
	}
	r.ID, r.Cut = e.ID, e.Cut
	p.changeLocked(e, r)
	return first
}

// changeLocked makes r the row of e.
func (p *Page) changeLocked(e *entry, r row) {
	r.Away = e.absent && r.Tunnel.Status == string(corev1.ConditionTrue)
	r.Frozen = freeze{}
	if r.Ready.Status == string(corev1.ConditionUnknown) { // only silence is excused
		r.Frozen = p.freezes[r.name]
	}
	if e.row == r {
		return
	}
	p.version++
	e.row, e.version = r, p.version
}

// remove removes the row of a node that is no more.
func (p *Page) remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.rows[name]
	if e == nil {
		return
	}
	delete(p.rows, name)
	delete(p.freezes, name)
	p.version++
	if len(p.gone) == maxGone {
		p.floor = p.gone[maxGone/2-1].version
		p.gone = append(p.gone[:0], p.gone[maxGone/2:]...)
	}
	p.gone = append(p.gone, tombstone{e.ID, p.version})
}

// cut writes down when and why nodes last lost their connection, and of which no session is known.
func (p *Page) cut(nodes []string) {
	for _, name := range nodes {
		s, known := p.cfg.Source.Observe(name)
		p.mu.Lock()
		if e := p.rows[name]; e != nil {
			r := e.row
			if known {
				r.Cut = cutOf(&s)
			}
			e.absent = !known && len(s.Unheard) == 0 // who cannot be heard may have one
			p.changeLocked(e, r)
		}
		p.mu.Unlock()
	}
}

// Decide implements controlplane.Freezes.
func (p *Page) Decide(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decideLocked(decision{Decides: yes}, nil)
}

// hear takes what another server says of evictions, unless this one decides about them.
func (p *Page) hear(other Evictions, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.decider == own:
	case known:
		p.decideLocked(decision{true, other.Server, seconds(other.At)}, other.Frozen)
	default:
		p.decideLocked(decision{}, nil)
	}
}

// decideLocked replaces all that is known of freezes.
func (p *Page) decideLocked(d decision, frozen []Freeze) {
	p.decider = d
	clear(p.freezes)
	for _, f := range frozen {
		if p.rows[f.Node] != nil {
			p.freezes[f.Node] = freeze{Reason: clip(f.Reason, maxWord), Until: seconds(f.Until)}
		}
	}
	for _, e := range p.rows {
		p.changeLocked(e, e.row)
	}
}

// Frozen are the freezes that this server has decided on. It returns false if this server
// does not decide about evictions.
func (p *Page) Frozen() ([]Freeze, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.decider != own {
		return nil, false
	}
	all := make([]Freeze, 0, len(p.freezes))
	for node, f := range p.freezes {
		one := Freeze{Node: node, Reason: f.Reason}
		if f.Until != 0 {
			one.Until = time.Unix(f.Until, 0)
		}
		all = append(all, one)
	}
	return all, true
}

// Freeze implements controlplane.Freezes.
func (p *Page) Freeze(node, reason, message string, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if reason == "" {
		delete(p.freezes, node)
	} else {
		p.freezes[node] = freeze{clip(reason, maxWord), clip(message, maxText), seconds(until)}
	}
	if e := p.rows[node]; e != nil {
		p.changeLocked(e, e.row)
	}
}

// sample measures all sessions again and again until ctx is done.
func (p *Page) sample(ctx context.Context) error {
	t := time.NewTicker(samplePeriod)
	defer t.Stop()
	for {
		p.cut(p.take(p.cfg.Source.Samples()))
		p.hear(p.cfg.Source.Evictions())
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// take writes down one sample of all nodes. Of several sessions of a node the round trip is the
// first that is known, and the streams are added up. Nodes without a session have none. Those of
// them whose condition says otherwise are returned: a server that had one may be gone.
func (p *Page) take(all []Sample) (doubtful []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.sampled % samples
	p.sampled++
	for _, e := range p.rows {
		e.rtts[at], e.streams = 0, -1
	}
	for _, s := range all {
		if e := p.rows[s.Node]; e != nil {
			e.rtts[at] = cmp.Or(e.rtts[at], microseconds(s.RTT))
			e.streams = max(e.streams, 0) + s.Streams
			if e.absent { // cut looked before this session came, and told later
				e.absent = false
				p.changeLocked(e, e.row)
			}
		}
	}
	for name, e := range p.rows {
		if e.streams < 0 && e.Tunnel.Status == string(corev1.ConditionTrue) {
			doubtful = append(doubtful, name)
		}
	}
	return doubtful
}
