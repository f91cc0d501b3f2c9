// Package servers says which servers of the cluster there are: by a Lease each, in the
// namespace hawser-servers, for all to see (kubectl get leases -n hawser-servers).
//
// The name and the holder of a Lease are the server's ID, and an annotation says where
// other servers reach its tunnel. It is renewed every five seconds and given up at an
// orderly end. Who has watched one for its duration and has seen no renewal takes the
// server for gone; so clocks need not agree. Which nodes each server has is not written
// here: servers tell each other.
//
// A server finds that another has its ID by what stands in the Lease: an annotation names
// the data directory of whoever wrote it.
package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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

// The annotations of a Lease: where the server's tunnel is, HOST:PORT, and whose data
// directory it has.
const (
	Address = "hawser.dev/peer-address"
	Token   = "hawser.dev/server-token"
)

const (
	// Duration is how long a Lease counts that is not renewed, renewEvery how often it
	// is, and giveBack how long that may take at the end.
	Duration   = 15 * time.Second
	renewEvery = 5 * time.Second
	giveBack   = 2 * time.Second
)

// A Server is one of the cluster's.
type Server struct{ ID, Address string }

// Config configures a Registry. All but Log are required.
type Config struct {
	Client kubernetes.Interface
	Server Server // this one
	// Token tells its data directory from others.
	Token string
	// Changed is called with all the servers but this one: at first, and when they are
	// others. It must not block.
	Changed func([]Server)
	Log     *slog.Logger // nil means discard
}

// A Registry keeps the Lease of this server and watches those of others.
type Registry struct {
	cfg    Config
	log    *slog.Logger
	leases coordinationlisters.LeaseNamespaceLister
	wrote  bool                 // this process has written the Lease
	seen   map[string]*sighting // by name
	told   map[string]Server    // of the latest Changed
	failed string               // the latest failure told of
}

// A sighting is when a Lease was seen renewed.
type sighting struct {
	renewed metav1.MicroTime
	at      time.Time
}

// New makes a Registry. It starts nothing.
func New(c Config) *Registry {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Registry{cfg: c, log: c.Log, seen: make(map[string]*sighting)}
}

// Run keeps the Lease until ctx is done, and then gives it up. The error is that another
// server has this one's ID.
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
	defer f.Shutdown()
	defer stop()
	if !cache.WaitForCacheSync(ctx.Done(), inf.Informer().HasSynced) {
		return nil
	}
	t := time.NewTicker(renewEvery)
	defer t.Stop()
	for {
		if err := r.renew(ctx); err != nil {
			return err
		}
		for again := true; again; {
			r.look(time.Now())
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

// renew writes the Lease. Only a conflict of IDs is an error; others are logged, and
// tried again.
func (r *Registry) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	err := r.write(ctx)
	var taken *takenError
	switch {
	case err == nil:
		r.failed = ""
	case errors.As(err, &taken):
		return err
	case r.failed != err.Error() && !errors.Is(err, context.Canceled):
		r.failed = err.Error()
		r.log.Warn("cannot tell other servers of this one; it is tried again", "lease", Namespace+"/"+r.cfg.Server.ID, "every", renewEvery, "err", err)
	}
	return nil
}

// A takenError says that another server has this one's ID.
type takenError struct{ id, address string }

func (e *takenError) Error() string {
	return fmt.Sprintf("another server with the ID %s runs at %s: give one of them another --server-id", e.id, e.address)
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
		if taken := r.taken(lease, time.Now()); taken != nil {
			return taken
		}
		if !r.wrote && lease.Annotations[Token] != r.cfg.Token && !r.gone(lease, time.Now()) {
			return nil // whoever had it may be there still: that shows within its duration
		}
		r.fill(lease)
		_, err = client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err == nil {
		r.wrote = true
	}
	return err
}

// taken says whether the Lease shows that another server has the ID: it has been renewed
// by somebody else since it was first seen, or since this one wrote it.
func (r *Registry) taken(l *coordinationv1.Lease, now time.Time) error {
	own := l.Annotations[Token] == r.cfg.Token && l.Annotations[Address] == r.cfg.Server.Address
	before := r.seen[l.Name]
	r.sight(l, now)
	if own || !r.wrote && (before == nil || before.renewed.Equal(l.Spec.RenewTime)) {
		return nil
	}
	if !r.wrote && l.Annotations[Token] == r.cfg.Token {
		return nil // of an earlier life of this server
	}
	return &takenError{r.cfg.Server.ID, l.Annotations[Address]}
}

func (r *Registry) fill(l *coordinationv1.Lease) {
	now, id, seconds := metav1.NowMicro(), r.cfg.Server.ID, int32(Duration/time.Second)
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	l.Annotations[Address], l.Annotations[Token] = r.cfg.Server.Address, r.cfg.Token
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &id, &seconds, &now
	if l.Spec.AcquireTime == nil || !r.wrote {
		l.Spec.AcquireTime = &now
	}
}

// sight notes when a Lease was seen renewed.
func (r *Registry) sight(l *coordinationv1.Lease, now time.Time) *sighting {
	s := r.seen[l.Name]
	if s == nil || l.Spec.RenewTime != nil && !s.renewed.Equal(l.Spec.RenewTime) {
		s = &sighting{at: now}
		if l.Spec.RenewTime != nil {
			s.renewed = *l.Spec.RenewTime
		}
		r.seen[l.Name] = s
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

// look tells of the other servers if they are others than before.
func (r *Registry) look(now time.Time) {
	all, err := r.leases.List(labels.Everything())
	if err != nil { // a lister of a cache never fails
		r.log.Error("list servers", "err", err)
		return
	}
	there, named := make(map[string]Server), make(map[string]bool)
	for _, l := range all {
		named[l.Name] = true
		if addr := l.Annotations[Address]; l.Name != r.cfg.Server.ID && addr != "" && !r.gone(l, now) {
			there[l.Name] = Server{l.Name, addr}
		}
	}
	maps.DeleteFunc(r.seen, func(name string, _ *sighting) bool { return !named[name] && name != r.cfg.Server.ID })
	if r.told != nil && maps.Equal(r.told, there) {
		return
	}
	r.told = there
	r.cfg.Changed(slices.Collect(maps.Values(there)))
}

// giveUp removes the Lease. Failing is harmless: it will expire.
func (r *Registry) giveUp(ctx context.Context) {
	if !r.wrote {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	client := r.cfg.Client.CoordinationV1().Leases(Namespace)
	l, err := client.Get(ctx, r.cfg.Server.ID, metav1.GetOptions{})
	if err == nil && l.Annotations[Token] == r.cfg.Token && l.Annotations[Address] == r.cfg.Server.Address {
		err = client.Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &l.UID, ResourceVersion: &l.ResourceVersion}})
	}
	if err != nil {
		r.log.Info("the server's lease was not given up; it will expire", "lease", Namespace+"/"+r.cfg.Server.ID, "err", err)
	}
}
