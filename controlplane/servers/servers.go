// Package servers says which servers of the cluster there are: by a Lease each, in the
// namespace hawser-servers, for all to see (kubectl get leases -n hawser-servers).
//
// The name and the holder of a Lease are the server's ID, and an annotation says where
// other servers reach its tunnel. It is renewed every five seconds and given up at an
// orderly end. Who has watched one for its duration and has seen no renewal takes the
// server for gone; so clocks need not agree. Time in which this server could not renew its
// own does not count: then the store is away, and nobody can. A Lease that has not been
// renewed for an hour is deleted, as kube-apiserver deletes those of its kind. Which nodes
// each server has is not written here: servers tell each other.
//
// A server finds that another has its ID, or a copy of its data directory, by what stands
// in the Leases: annotations name the data directory of whoever wrote one, and the process.
// What another process has written and goes on renewing shows that it lives, and the one
// that came later ends.
package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	"k8s.io/client-go/tools/cache"
)

// Namespace is where the Leases are.
const Namespace = "hawser-servers"

// The annotations of a Lease: where the server's tunnel is, HOST:PORT; whose data directory
// it has; which process wrote it last, and since when that runs (RFC 3339); and by which
// authorities, in PEM, other servers know it, if it does not share theirs.
const (
	Address     = "hawser.dev/peer-address"
	Token       = "hawser.dev/server-token"
	Process     = "hawser.dev/server-process"
	Started     = "hawser.dev/server-started"
	Authorities = "hawser.dev/server-authorities"
)

const (
	// Duration is how long a Lease counts that is not renewed, renewEvery how often it
	// is, and giveBack how long that may take at the end.
	Duration   = 15 * time.Second
	renewEvery = 5 * time.Second
	giveBack   = 2 * time.Second
	// forgetAfter is how long a Lease stays that nobody renews; forgetEvery is how often
	// such Leases are looked for.
	forgetAfter = time.Hour
	forgetEvery = 10 * time.Minute
)

// A Server is one of the cluster's.
type Server struct{ ID, Address, Authorities string }

// Config configures a Registry. Client, Server, Started, Token and Changed are required.
type Config struct {
	Client kubernetes.Interface
	Server Server // this one, without Authorities
	// Started is when this server was: before it had any session.
	Started time.Time
	// Token tells its data directory from others.
	Token string
	// Authorities are this server's, as they are now. Nil means that servers share theirs.
	Authorities func() string
	// Changed is called with all the servers but this one: at first, and when they are
	// others. It must not block.
	Changed func([]Server)
	// Alone is called once no other server is known to have the ID or a copy of the data
	// directory, or once it is known that this cannot be told. Nil means that nobody asks.
	Alone func()
	Log   *slog.Logger // nil means discard
}

// A Registry keeps the Lease of this server and watches those of others.
type Registry struct {
	cfg     Config
	log     *slog.Logger
	leases  coordinationlisters.LeaseNamespaceLister
	process string                  // this one
	wrote   bool                    // this process has written the Lease
	term    int32                   // which process this is of those that have written it
	seen    map[string]*observation // by name
	told    map[string]Server       // of the latest Changed
	failed  string                  // the latest failure told of; empty after a success
	renewed time.Time               // the latest success
	fair    time.Time               // when others have had time to renew theirs, after failures
	swept   time.Time               // when forget last looked

	alone   bool      // Alone has been called
	settled time.Time // when whoever had the Lease before would have been seen
	blind   int       // how often in a row the Leases could not be had
}

// An observation is when a Lease was seen renewed.
type observation struct {
	process string // by whom
	renewed metav1.MicroTime
	at      time.Time
	lives   bool // that process has renewed it since it was first seen
}

// New makes a Registry. It starts nothing.
func New(c Config) *Registry {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Registry{cfg: c, log: c.Log, process: rand.Text()[:12], seen: make(map[string]*observation)}
}

// Run keeps the Lease until ctx is done, and then gives it up. The error is a DoubleError:
// another server has this one's ID, or a copy of its data directory.
func (r *Registry) Run(ctx context.Context) error {
	defer r.giveUp(ctx)
	f := informers.NewSharedInformerFactoryWithOptions(r.cfg.Client, 0, informers.WithNamespace(Namespace))
	inf := f.Coordination().V1().Leases()
	r.leases = inf.Lister().Leases(Namespace)
	changed := make(chan struct{}, 1)
	poke := func(any) {
		select {
		case changed <- struct{}{}:
		default: // one is enough
		}
	}
	if _, err := inf.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: poke, UpdateFunc: func(_, o any) { poke(o) }, DeleteFunc: poke,
	}); err != nil {
		return fmt.Errorf("watch servers: %w", err)
	}
	watch, stop := context.WithCancel(ctx)
	f.Start(watch.Done())
	var synced sync.WaitGroup
	synced.Go(func() {
		cache.WaitForCacheSync(watch.Done(), inf.Informer().HasSynced)
		poke(nil)
	})
	defer synced.Wait()
	defer f.Shutdown()
	defer stop()
	return r.keep(ctx, inf.Informer().HasSynced, changed)
}

// keep writes the Lease and looks at all of them, whenever there may be news.
func (r *Registry) keep(ctx context.Context, synced func() bool, changed <-chan struct{}) error {
	t := time.NewTicker(renewEvery)
	defer t.Stop()
	for {
		if err := r.renew(ctx); err != nil {
			return err
		}
		if r.failed == "" && synced() {
			r.blind = 0
		} else if r.blind++; r.blind >= 2 {
			r.beAlone()
		}
		for again := true; again; {
			if synced() {
				if err := r.look(time.Now()); err != nil {
					return err
				}
				r.forget(ctx, time.Now())
			}
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-t.C:
				again = false
			}
		}
	}
}

// beAlone tells that there is no other server like this one, as far as can be told.
func (r *Registry) beAlone() {
	if !r.alone && r.cfg.Alone != nil {
		r.cfg.Alone()
	}
	r.alone = true
}

// renew writes the Lease. Only a DoubleError is an error; others are logged, and tried
// again.
func (r *Registry) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	err := r.write(ctx)
	switch {
	case err == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err): // somebody was faster: the next look tells who
		now := time.Now()
		if r.away(now) {
			r.fair = now.Add(Duration)
		}
		r.failed, r.renewed = "", now
	case errors.As(err, new(*DoubleError)):
		return err
	case r.failed != err.Error() && !errors.Is(err, context.Canceled):
		r.failed = err.Error()
		r.log.Warn("cannot tell other servers of this one, nor whether one has its ID or its data directory; it is tried again",
			"lease", Namespace+"/"+r.cfg.Server.ID, "every", renewEvery, "err", err)
	}
	return nil
}

// away says whether the store seems to be away: two renewals have failed.
func (r *Registry) away(now time.Time) bool { return now.Sub(r.renewed) >= 2*renewEvery }

// A DoubleError says that another server has this one's ID, or a copy of its data directory.
type DoubleError struct {
	Lease, Address string // of the other
	Copied         bool
}

func (e *DoubleError) Error() string {
	if e.Copied {
		return fmt.Sprintf("another server runs with a copy of this one's data directory, at %s (Lease %s/%s): give each a directory of its own, not a copy", e.Address, Namespace, e.Lease)
	}
	return fmt.Sprintf("another server with the ID %s runs at %s: give one of them another --server-id", e.Lease, e.Address)
}

func (r *Registry) double(l *coordinationv1.Lease) error {
	return &DoubleError{Lease: l.Name, Address: l.Annotations[Address], Copied: l.Annotations[Token] == r.cfg.Token}
}

func (r *Registry) write(ctx context.Context) error {
	client, id := r.cfg.Client.CoordinationV1().Leases(Namespace), r.cfg.Server.ID
	lease, err := client.Get(ctx, id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: id, Namespace: Namespace}}
		r.fill(lease)
		_, err = client.Create(ctx, lease, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) { // the namespace
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
			if _, err = r.cfg.Client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
				_, err = client.Create(ctx, lease, metav1.CreateOptions{})
			}
		}
	case err == nil:
		free, double := r.mayHave(lease, time.Now())
		if double != nil || !free {
			return double
		}
		r.fill(lease)
		_, err = client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err == nil {
		r.wrote = true
	}
	return err
}

// mayHave says whether the Lease of this server's ID may be written, and notes in whose
// place. The error is that another server is there.
func (r *Registry) mayHave(l *coordinationv1.Lease, now time.Time) (bool, error) {
	if l.Annotations[Process] == r.process {
		delete(r.seen, l.Name) // an earlier process counts as new if it comes back
		return true, nil
	}
	s, copied, term := r.sight(l, now), l.Annotations[Token] == r.cfg.Token, int32(0)
	if l.Spec.LeaseTransitions != nil {
		term = *l.Spec.LeaseTransitions
	}
	switch {
	case r.wrote && copied && term > r.term:
		return true, nil // a copy that was started since. It finds this one's Lease again, and ends
	case r.wrote && copied && term <= r.term && !s.lives:
		// This server's own from before, as a restored store has it. A process that is
		// there still shows that within the Lease's duration.
		return r.gone(l, now), nil
	case r.wrote || s.lives:
		return false, r.double(l)
	case !copied && !r.gone(l, now):
		return false, nil // whoever had it may be there still: that shows within its duration
	}
	r.term, r.settled = term+1, now
	if copied && l.Annotations[Address] != r.cfg.Server.Address && !r.gone(l, now) {
		r.settled = now.Add(Duration) // not, or not surely, an earlier life of this server
	}
	return true, nil
}

func (r *Registry) fill(l *coordinationv1.Lease) {
	now, id, seconds, term := metav1.NowMicro(), r.cfg.Server.ID, int32(Duration/time.Second), r.term
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	l.Annotations[Address], l.Annotations[Token], l.Annotations[Process] = r.cfg.Server.Address, r.cfg.Token, r.process
	l.Annotations[Started] = r.cfg.Started.UTC().Format(time.RFC3339Nano)
	delete(l.Annotations, Authorities)
	if r.cfg.Authorities != nil {
		l.Annotations[Authorities] = r.cfg.Authorities()
	}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime, l.Spec.LeaseTransitions = &id, &seconds, &now, &term
	if l.Spec.AcquireTime == nil || !r.wrote {
		l.Spec.AcquireTime = &now
	}
}

// sight notes when a Lease was seen renewed.
func (r *Registry) sight(l *coordinationv1.Lease, now time.Time) *observation {
	var renewed metav1.MicroTime
	if l.Spec.RenewTime != nil {
		renewed = *l.Spec.RenewTime
	}
	s := r.seen[l.Name]
	switch process := l.Annotations[Process]; {
	case s == nil || s.process != process:
		s = &observation{process: process, renewed: renewed, at: now}
		r.seen[l.Name] = s
	case !s.renewed.Equal(&renewed):
		s.renewed, s.at, s.lives = renewed, now, true
	}
	return s
}

// gone says whether a Lease has not been seen renewed for as long as it says.
func (r *Registry) gone(l *coordinationv1.Lease, now time.Time) bool {
	d := Duration
	if s := l.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		d = time.Duration(*s) * time.Second
	}
	return now.Sub(r.sight(l, now).at) >= d
}

// look tells of the other servers if they are others than before. The error is that one of
// them has a copy of this one's data directory, and was there before.
func (r *Registry) look(now time.Time) error {
	all, err := r.leases.List(labels.Everything())
	if err != nil { // a lister of a cache never fails
		r.log.Error("list servers", "err", err)
		return nil
	}
	there, named, copies := make(map[string]Server), make(map[string]bool), 0
	unfair := r.away(now) || now.Before(r.fair)
	for _, l := range all {
		named[l.Name] = true
		if l.Name == r.cfg.Server.ID {
			continue
		}
		_, told := r.told[l.Name]
		if gone := r.gone(l, now); gone && (!told || !unfair) {
			continue
		}
		if addr := l.Annotations[Address]; addr != "" {
			there[l.Name] = Server{l.Name, addr, l.Annotations[Authorities]}
		}
		if l.Annotations[Token] == r.cfg.Token && !r.alone {
			if copies++; r.seen[l.Name].lives {
				return r.double(l)
			}
		}
	}
	maps.DeleteFunc(r.seen, func(name string, _ *observation) bool { return !named[name] && name != r.cfg.Server.ID })
	if r.wrote && copies == 0 && !now.Before(r.settled) {
		r.beAlone()
	}
	if r.told == nil || !maps.Equal(r.told, there) {
		r.told = there
		r.cfg.Changed(slices.Collect(maps.Values(there)))
	}
	return nil
}

// forget deletes the Leases of servers that were killed, or whose machines are gone. One that
// was renewed meanwhile stays, and the server of one that was deleted makes it again.
func (r *Registry) forget(ctx context.Context, now time.Time) {
	if now.Sub(r.swept) < forgetEvery || r.away(now) || now.Before(r.fair.Add(forgetAfter)) {
		return
	}
	r.swept = now
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	all, _ := r.leases.List(labels.Everything()) // a lister of a cache never fails
	for _, l := range all {
		if l.Name == r.cfg.Server.ID || now.Sub(r.sight(l, now).at) < forgetAfter {
			continue
		}
		switch err := r.delete(ctx, l); {
		case err == nil:
			r.log.Info("a server was not heard of for an hour; its lease was deleted", "lease", Namespace+"/"+l.Name)
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err): // else another server was faster, or it is back
			r.log.Warn("the lease of a server that was not heard of for an hour cannot be deleted", "lease", Namespace+"/"+l.Name, "again", forgetEvery, "err", err)
		}
	}
}

// delete deletes a Lease that is as it was read.
func (r *Registry) delete(ctx context.Context, l *coordinationv1.Lease) error {
	return r.cfg.Client.CoordinationV1().Leases(Namespace).Delete(ctx, l.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
}

// giveUp removes the Lease. Failing is harmless: it will expire.
func (r *Registry) giveUp(ctx context.Context) {
	if !r.wrote {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	l, err := r.cfg.Client.CoordinationV1().Leases(Namespace).Get(ctx, r.cfg.Server.ID, metav1.GetOptions{})
	if err == nil && l.Annotations[Process] == r.process {
		err = r.delete(ctx, l)
	}
	if err != nil {
		r.log.Info("the server's lease was not given up; it will expire", "lease", Namespace+"/"+r.cfg.Server.ID, "err", err)
	}
}
