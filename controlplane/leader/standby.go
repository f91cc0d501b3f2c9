package leader

// Standing by: waiting for the Lease to be free.
//
// client-go's candidates poll, and each sees a renewal, and that renewals have
// stopped, up to two retries late. One that watches takes over LeaseDuration after
// the last renewal, and costs the API server nothing meanwhile.

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// standBy returns once the Lease does not exist, is nobody's or this candidate's
// own, or has not been renewed in time; in that case it returns what the Lease
// then said. ok is false if ctx is done first.
func (e *Elector) standBy(ctx context.Context) (stale *coordinationv1.LeaseSpec, ok bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	f := informers.NewSharedInformerFactoryWithOptions(e.cfg.Client, 0, informers.WithNamespace(e.cfg.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, e.cfg.Name).String()
		}))
	defer f.Shutdown()
	defer cancel()
	leases, changed := f.Coordination().V1().Leases(), make(chan struct{}, 1)
	if err := e.follow(leases.Informer(), changed); err != nil {
		return nil, false, err
	}
	f.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), leases.Informer().HasSynced) {
		return nil, false, nil
	}
	var (
		last    *coordinationv1.LeaseSpec
		expired <-chan time.Time
	)
	for {
		lease, missing := leases.Lister().Leases(e.cfg.Namespace).Get(e.cfg.Name)
		if missing != nil {
			return nil, true, nil
		}
		holder := value(lease.Spec.HolderIdentity)
		if holder == "" || holder == e.cfg.Identity {
			return nil, true, nil
		}
		if last == nil || !same(last, &lease.Spec) {
			if last == nil || value(last.HolderIdentity) != holder {
				e.found(holder)
			}
			last = lease.Spec.DeepCopy()
			// The holder's own word on how long it is to be waited for.
			expired = time.After(time.Duration(value(last.LeaseDurationSeconds)) * time.Second)
		}
		select {
		case <-ctx.Done():
			return nil, false, nil
		case <-changed:
		case <-expired:
			return last, true, nil
		}
	}
}

// follow has changed hold a token after each change of what inf watches.
func (e *Elector) follow(inf cache.SharedIndexInformer, changed chan<- struct{}) error {
	poke := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	_, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: poke, UpdateFunc: func(_, obj any) { poke(obj) }, DeleteFunc: poke,
	})
	if err == nil {
		err = inf.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			e.cfg.Log.Debug("the lease cannot be watched; the watch is tried again", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "err", err)
		})
	}
	if err != nil {
		return fmt.Errorf("leader election: watch the lease: %w", err)
	}
	return nil
}

// found is told of another leader.
func (e *Elector) found(holder string) {
	e.once.Do(func() { close(e.follows) })
	e.cfg.Log.Info("another leads", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "leader", holder)
}

// A lock is the Lease as client-go's election sees it: nobody's if it is stale. It ends the
// term of a leader who has lost it. client-go would try to renew it until RenewDeadline.
type lock struct {
	*resourcelock.LeaseLock
	stale *coordinationv1.LeaseSpec // nil means that it is not
	end   context.CancelCauseFunc   // of the term
	lasts time.Duration             // for how long others respect a write

	mu      sync.Mutex  // guards the following
	err     error       // how the latest write failed
	expires *time.Timer // ends the term; nil before the first write
}

// Create and Update implement resourcelock.Interface.
func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	return l.wrote(began, l.LeaseLock.Create(ctx, r))
}

func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	began := time.Now()
	return l.wrote(began, l.LeaseLock.Update(ctx, r))
}

// wrote is told of each write. The Lease is this candidate's from the first that succeeds.
func (l *lock) wrote(began time.Time, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	if err != nil {
		return err
	}
	if left := l.lasts - time.Since(began); l.expires != nil {
		l.expires.Reset(left)
	} else {
		l.expires = time.AfterFunc(left, func() {
			l.end(fmt.Errorf("the lease was not renewed for %s: this process was stopped or too slow, or the API server did not answer", l.lasts))
		})
	}
	return nil
}

// held reports whether the Lease was this candidate's.
func (l *lock) held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires != nil
}

// failure is how the latest write failed; nil if it did not.
func (l *lock) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Get implements resourcelock.Interface. What is then written names the version
// that was read, so a renewal that comes between is not undone.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil && record.HolderIdentity != l.Identity() && l.held() {
		err = fmt.Errorf("%s holds the lease", cmp.Or(record.HolderIdentity, "nobody"))
		l.end(err)
	}
	if err != nil || l.stale == nil {
		return record, raw, err
	}
	if was := resourcelock.LeaseSpecToLeaderElectionRecord(l.stale); record.HolderIdentity == was.HolderIdentity && record.RenewTime.Equal(&was.RenewTime) {
		record.HolderIdentity = ""
	}
	return record, raw, nil
}

// same tells whether nobody has renewed or taken the Lease between a and b.
func same(a, b *coordinationv1.LeaseSpec) bool {
	return value(a.HolderIdentity) == value(b.HolderIdentity) && a.RenewTime.Equal(b.RenewTime)
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
