// Package balance listens at addresses of the server, and connects clients to targets
// behind the tunnel: it is the load balancer of nodes that clients cannot reach.
//
// The mental model: a front is an address with targets, and has an owner, which replaces
// all of its fronts by Set. A connection gets a target when it is accepted and keeps it.
// tunnel.Splice copies the bytes, so a cut at one end is a reset at the other.
//
// If a dial to a target fails, another target is tried, and for 10 s the failed one is
// tried after all others. There are no other health checks: Front.Targets returns only
// healthy targets.
//
// What it is not: it knows no Services, and has no UDP.
//
// The bounds: there are 1,024 fronts. All together have Config.Limit connections. Above that, a new
// connection replaces the oldest one of the client that has most (strangers.Pending). As
// many replaced connections again may wait for their dials to end; more are reset at once.
// Three targets are tried for one connection within Config.DialTimeout, each but the last
// for a third of it. A
// front has at most 1,024 targets set aside. A client that may not connect replaces no
// connection.
package balance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-project/hawser/server/internal/descriptors"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/strangers"
)

const (
	// DefaultLimit, DefaultDialTimeout and DefaultDrain are used where Config is zero.
	DefaultLimit       = 4096
	DefaultDialTimeout = 10 * time.Second
	DefaultDrain       = 30 * time.Second
	// maxFronts bounds the fronts of a Balancer: each has a listener.
	maxFronts = 1024
	// maxTries is how many targets are dialed for one connection.
	maxTries = 3
)

// A Front is an address at which the Balancer listens.
type Front struct {
	Addr netip.AddrPort
	// Sources are the clients that it serves; empty means all. Others are reset.
	Sources []netip.Prefix
	// Sticky sends connections of one client to the same target, as long as it exists.
	Sticky bool
	// ProxyProtocol sends each target the client's address first, by version 2 of the PROXY
	// protocol.
	ProxyProtocol bool
	// Targets returns the addresses to dial. It is called for each connection. Its result is
	// not changed.
	Targets func() []string
}

// Config configures a Balancer. Dial is required.
type Config struct {
	// Dial reaches a target.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Limit is how many connections there may be; zero means DefaultLimit.
	Limit int
	// DialTimeout bounds the dials for one connection; zero means DefaultDialTimeout.
	DialTimeout time.Duration
	// Drain is how long connections go on after their front is gone, or Run's context is
	// done; zero means DefaultDrain.
	Drain time.Duration

	Log     *slog.Logger          // nil means discard
	Metrics prometheus.Registerer // nil means none
}

// A Balancer has fronts. All methods may be called at the same time.
type Balancer struct {
	cfg     Config
	pending *strangers.Pending
	sparse  strangers.LogLimiter
	metrics *metrics
	wg      sync.WaitGroup // of listeners and connections
	serving atomic.Int64   // connections

	mu     sync.Mutex // guards the following
	fronts map[netip.AddrPort]*listening
	closed bool
}

// A listening front.
type listening struct {
	owner    string
	listener net.Listener
	front    atomic.Pointer[Front]
	aside    aside
	cut      context.Context // done when its connections must end
	end      context.CancelFunc
}

// New checks c. It starts nothing.
func New(c Config) (*Balancer, error) {
	if c.Dial == nil {
		return nil, errors.New("balance: no way to the targets")
	}
	c.Limit, c.DialTimeout, c.Drain = cmp.Or(c.Limit, DefaultLimit), cmp.Or(c.DialTimeout, DefaultDialTimeout), cmp.Or(c.Drain, DefaultDrain)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	b := &Balancer{cfg: c, pending: strangers.NewPending(c.Limit), fronts: make(map[netip.AddrPort]*listening)}
	b.metrics = newMetrics(c.Metrics, b)
	return b, nil
}

// Set replaces the fronts of owner. Existing ones go on. Removed ones take no new
// connections; theirs end by themselves or after Config.Drain. Fronts that cannot listen
// are left out, and the error names them all.
func (b *Balancer) Set(ctx context.Context, owner string, fronts []Front) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for addr, l := range b.fronts {
		if l.owner == owner && !slices.ContainsFunc(fronts, func(f Front) bool { return f.Addr == addr }) {
			b.removeLocked(addr, l)
		}
	}
	if b.closed {
		return net.ErrClosed
	}
	var failed []error
	for i := range fronts {
		f := &fronts[i]
		l := b.fronts[f.Addr]
		switch {
		case l == nil && len(b.fronts) >= maxFronts:
			failed = append(failed, fmt.Errorf("%s: the server listens at %d addresses already", f.Addr, maxFronts))
		case l == nil:
			if err := b.listenLocked(ctx, owner, f); err != nil {
				failed = append(failed, err)
			}
		case l.owner != owner:
			failed = append(failed, fmt.Errorf("%s is %s's", f.Addr, l.owner))
		default:
			l.front.Store(f)
		}
	}
	return errors.Join(failed...)
}

func (b *Balancer) listenLocked(ctx context.Context, owner string, f *Front) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", f.Addr.String())
	if err != nil {
		return err
	}
	l := &listening{owner: owner, listener: descriptors.Sparing(ln, b.cfg.Log.With("service", owner))}
	l.cut, l.end = context.WithCancel(context.WithoutCancel(ctx))
	l.front.Store(f)
	b.fronts[f.Addr] = l
	b.wg.Go(func() { b.accept(l) })
	b.cfg.Log.Info("listening for a service", "service", owner, "address", f.Addr)
	return nil
}

// removeLocked closes a front's listener, and ends its connections after the drain.
func (b *Balancer) removeLocked(addr netip.AddrPort, l *listening) {
	delete(b.fronts, addr)
	_ = l.listener.Close()
	time.AfterFunc(b.cfg.Drain, l.end)
}

// Run waits until ctx is done, and returns once all fronts are closed and all connections
// have ended, after Config.Drain at the latest.
func (b *Balancer) Run(ctx context.Context) error {
	<-ctx.Done()
	b.mu.Lock()
	b.closed = true
	for addr, l := range b.fronts {
		b.removeLocked(addr, l)
	}
	b.mu.Unlock()
	b.wg.Wait()
	b.pending.Close()
	return nil
}

// accept serves what l's listener accepts until that is closed.
func (b *Balancer) accept(l *listening) {
	for {
		c, err := l.listener.Accept()
		if err != nil {
			return
		}
		f := l.front.Load()
		if !f.serves(source(c)) || b.serving.Load() >= 2*int64(b.cfg.Limit) {
			b.metrics.refused.Inc()
			_ = tunnel.Abort(c) // it gets no other answer
			continue
		}
		b.serving.Add(1)
		b.wg.Go(func() {
			defer b.serving.Add(-1)
			// Being replaced ends all work for it: while its target does not read, nothing reads
			// from the client and would notice.
			ctx, leave := b.pending.Hold(l.cut, strangers.SourceOf(c.RemoteAddr()), c)
			defer leave()
			b.serve(ctx, l, f, c)
		})
	}
}

// serves reports whether a client may connect.
func (f *Front) serves(client netip.Addr) bool {
	return len(f.Sources) == 0 || slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// serve connects c to a target.
func (b *Balancer) serve(ctx context.Context, l *listening, f *Front, c net.Conn) {
	from := source(c)
	to, err := b.reach(ctx, l, f, from)
	if err == nil && f.ProxyProtocol {
		err = b.introduce(c, to)
	}
	if err != nil {
		if to != nil {
			_ = tunnel.Abort(to)
		}
		_ = tunnel.Abort(c) // as an unreachable host would
		b.metrics.failed.Inc()
		if more, ok := b.sparse.Allow(l.owner); ok {
			b.cfg.Log.Warn("nothing behind a service can be reached", "service", l.owner, "address", f.Addr, "err", err, "others", more)
		}
		return
	}
	b.metrics.joined.Inc()
	if _, err := tunnel.Splice(ctx, c, to); err != nil {
		b.cfg.Log.Debug("a connection to a service was cut", "service", l.owner, "client", from, "err", err)
	}
}

// introduce sends a target the address of c.
func (b *Balancer) introduce(c, to net.Conn) error {
	if err := to.SetWriteDeadline(time.Now().Add(b.cfg.DialTimeout / maxTries)); err != nil {
		return err
	}
	if _, err := proxyproto.HeaderProxyFromAddrs(2, c.RemoteAddr(), c.LocalAddr()).WriteTo(to); err != nil {
		return err
	}
	return to.SetWriteDeadline(time.Time{})
}

// reach dials targets until one answers.
func (b *Balancer) reach(ctx context.Context, l *listening, f *Front, from netip.Addr) (net.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, b.cfg.DialTimeout)
	defer cancel()
	err := errors.New("it has no endpoint that is ready")
	targets := f.Targets()
	left := min(maxTries, len(targets))
	for target := range l.aside.order(order(targets, from, f.Sticky)) {
		var c net.Conn
		if c, err = b.dial(dialing, target, left == 1); err == nil {
			l.aside.worked(target)
			return c, nil
		}
		if ctx.Err() != nil {
			break
		}
		if l.aside.failed(target) {
			b.metrics.aside.Inc()
		}
		if left--; left == 0 {
			break
		}
	}
	return nil, err
}

// dial takes at most one target's share of the time, or what is left if it is the last.
func (b *Balancer) dial(ctx context.Context, target string, last bool) (net.Conn, error) {
	if !last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.cfg.DialTimeout/maxTries)
		defer cancel()
	}
	return b.cfg.Dial(ctx, "tcp", target)
}

// order is the order in which targets are tried. It is random, with each target equally
// likely the first. For a sticky client it is always the same, and a new or removed target
// does not change the order of the others (highest random weight).
func order(all []string, from netip.Addr, sticky bool) iter.Seq[string] {
	if sticky {
		return byWeight(all, from)
	}
	return func(yield func(string) bool) {
		n := len(all)
		if n == 0 {
			return
		}
		// With a step that has no divisor in common with n each target is yielded once.
		at, step := rand.IntN(n), 1+rand.IntN(n)
		for gcd(step, n) != 1 {
			step = 1 + rand.IntN(n)
		}
		for range n {
			if !yield(all[at]) {
				return
			}
			at = (at + step) % n
		}
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// byWeight yields targets by their weight for a client, the heaviest first. The weights
// are the same at every server.
func byWeight(all []string, from netip.Addr) iter.Seq[string] {
	type weighed struct {
		weight uint64
		target string
	}
	list, seed := make([]weighed, 0, len(all)), xxhash.Sum64String(from.String())
	hash := xxhash.NewWithSeed(seed)
	for _, target := range all {
		hash.ResetWithSeed(seed)
		_, _ = hash.WriteString(target) // no error, by its documentation
		list = append(list, weighed{hash.Sum64(), target})
	}
	slices.SortFunc(list, func(x, y weighed) int { return cmp.Compare(y.weight, x.weight) })
	return func(yield func(string) bool) {
		for _, w := range list {
			if !yield(w.target) {
				return
			}
		}
	}
}

// source is the client's address.
func source(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
