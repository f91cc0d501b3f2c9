// Package leader runs something in one process at a time: in the one that holds a
// Lease (coordination.k8s.io/v1).
//
// The election is client-go's. A process that holds the Lease renews it every
// RetryPeriod. One that could not for RenewDeadline stops what it leads, before
// LeaseDuration has passed and another takes over. One that was stopped itself for that
// long (SIGSTOP, a paused machine) stops what it leads when it goes on: at once if its clock
// went on meanwhile, and else at its next try to renew. Clocks need not agree, for each
// process measures by its own how long it has seen no renewal. One that is asked to
// stop first stops what it leads and then gives the Lease back, so that the next
// need not wait.
//
// An identity that is the same each time the process starts takes its own Lease
// back at once after a crash. It must not be given to two processes.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

// What a Config's zeros mean. They are Kubernetes'.
const (
	DefaultLeaseDuration = 15 * time.Second
	DefaultRenewDeadline = 10 * time.Second
	DefaultRetryPeriod   = 2 * time.Second
	DefaultNamespace     = "kube-system"
	DefaultName          = "kube-controller-manager"
)

// Config configures an Elector. Client and Identity are required by New.
type Config struct {
	Client kubernetes.Interface
	// Identity is this process's, other than that of any other candidate.
	Identity string
	// Namespace and Name are the Lease's; empty means the defaults.
	Namespace, Name string
	// LeaseDuration is how long others wait for a leader that says nothing,
	// RenewDeadline for how long a leader tries before it gives up, and
	// RetryPeriod how long anybody waits between tries. Zero means the defaults.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	Events record.EventRecorder // nil means none
	Log    *slog.Logger         // nil means discard
}

// Check says what is wrong with the times, by the names of their flags.
func (c Config) Check() error {
	c = c.defaulted()
	switch jittered := time.Duration(leaderelection.JitterFactor * float64(c.RetryPeriod)); {
	case c.RetryPeriod <= 0 || c.RenewDeadline <= 0 || c.LeaseDuration <= 0:
		return errors.New("--leader-elect-lease-duration, --leader-elect-renew-deadline and --leader-elect-retry-period must be positive")
	case c.LeaseDuration < time.Second:
		return fmt.Errorf("--leader-elect-lease-duration %s: a Lease counts in seconds, so want 1s or more", c.LeaseDuration)
	case c.LeaseDuration.Truncate(time.Second) <= c.RenewDeadline:
		return fmt.Errorf("--leader-elect-renew-deadline %s must be shorter than --leader-elect-lease-duration, of which a Lease counts %s: a leader must stop before another starts", c.RenewDeadline, c.LeaseDuration.Truncate(time.Second))
	case c.RenewDeadline <= jittered:
		return fmt.Errorf("--leader-elect-retry-period %s must be shorter than 5/6 of --leader-elect-renew-deadline %s, or a leader has no second try", c.RetryPeriod, c.RenewDeadline)
	}
	return nil
}

func (c Config) defaulted() Config {
	or := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	or(&c.LeaseDuration, DefaultLeaseDuration)
	or(&c.RenewDeadline, DefaultRenewDeadline)
	or(&c.RetryPeriod, DefaultRetryPeriod)
	if c.Namespace == "" {
		c.Namespace = DefaultNamespace
	}
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// An Elector is a candidate.
type Elector struct {
	cfg     Config
	follows chan struct{}
	once    sync.Once // closes follows
	told    string    // the latest refusal that was logged; Run's own
}

// New returns a candidate. It starts nothing.
func New(c Config) (*Elector, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Client == nil || c.Identity == "" {
		return nil, errors.New("leader election: no client or no identity")
	}
	return &Elector{cfg: c.defaulted(), follows: make(chan struct{})}, nil
}

// Follows is closed once another has been seen to lead.
func (e *Elector) Follows() <-chan struct{} { return e.follows }

// Run calls lead each time this candidate becomes the leader, with a context that
// ends when it no longer is, until ctx is done or lead fails. lead must return
// within LeaseDuration - RenewDeadline - RetryPeriod after its context has ended (3 s
// by default), for another may lead by then. Run returns lead's error.
func (e *Elector) Run(ctx context.Context, lead func(context.Context) error) error {
	for ctx.Err() == nil {
		if err := e.term(ctx, lead); err != nil {
			return err
		}
	}
	return nil
}

// term waits for the Lease to be free, stands for election once, and leads once.
func (e *Elector) term(ctx context.Context, lead func(context.Context) error) error {
	stale, ok, err := e.standBy(ctx)
	if err != nil || !ok {
		return err
	}
	// The Lease outlives what is led: it is not given back before that has ended.
	// client-go logs each of its tries; what matters of them is logged here, once.
	hold, end := context.WithCancelCause(logr.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	cancel := func() { end(nil) }
	defer cancel()
	lock, elected := e.lock(stale, end), make(chan context.Context, 1)
	candidate, err := leaderelection.NewLeaderElector(e.election(lock, elected))
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		candidate.Run(hold)
	}()
	defer func() { <-ended }()
	defer cancel()
	var holding context.Context
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(e.cfg.RetryPeriod): // another was faster, or it is not to be had
		e.refused(lock.failure())
		return nil
	case holding = <-elected:
	}
	e.cfg.Log.Info("leading", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "identity", e.cfg.Identity)
	err = e.lead(ctx, holding, lead)
	lost, why := holding.Err() != nil, context.Cause(hold)
	cancel()
	<-ended
	if lost {
		if why == nil {
			why = fmt.Errorf("the lease could not be renewed in time: %w", lock.failure())
		}
		e.cfg.Log.Warn("no longer leading", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "err", why)
		return err
	}
	e.giveBack(ctx, lock.LeaseLock)
	return err
}

// refused says, once, why a lease that is free cannot be taken.
func (e *Elector) refused(err error) {
	if err == nil || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || e.told == err.Error() {
		return
	}
	e.told = err.Error()
	e.cfg.Log.Warn("cannot take the lease; it is tried again", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "every", e.cfg.RetryPeriod, "err", err)
}

// lead calls f until ctx is done or the lease is no longer held.
func (e *Elector) lead(ctx, holding context.Context, f func(context.Context) error) error {
	led, stop := context.WithCancel(holding)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return f(led)
}

// giveBack makes the Lease nobody's, so that the next leader need not wait for it
// to expire. Failing is harmless.
func (e *Elector) giveBack(ctx context.Context, lock resourcelock.Interface) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.RetryPeriod)
	defer cancel()
	held, _, err := lock.Get(ctx)
	if err == nil && held.HolderIdentity == e.cfg.Identity {
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now,
		})
	}
	if err != nil {
		e.cfg.Log.Info("the lease was not given back; it will expire", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "err", err)
	}
}

func (e *Elector) lock(stale *coordinationv1.LeaseSpec, end context.CancelCauseFunc) *lock {
	l := &lock{stale: stale, end: end, lasts: e.cfg.LeaseDuration.Truncate(time.Second), LeaseLock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.cfg.Namespace, Name: e.cfg.Name},
		Client:     e.cfg.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.cfg.Identity},
	}}
	if e.cfg.Events != nil {
		l.LockConfig.EventRecorder = e.cfg.Events
	}
	return l
}

// election does not let client-go give the Lease back: it would before the leader
// has stopped.
func (e *Elector) election(lock resourcelock.Interface, elected chan<- context.Context) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: lock, Name: e.cfg.Name,
		LeaseDuration: e.cfg.LeaseDuration, RenewDeadline: e.cfg.RenewDeadline, RetryPeriod: e.cfg.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { elected <- ctx },
			OnStoppedLeading: func() {},
		},
	}
}
