// Package resourcequota counts what the objects of a namespace take of its quotas and
// writes that into the quotas' status.
//
// The API server charges a quota before it stores an object, and never gives anything
// back. The controller does: when an object is deleted, when a pod ends, when a service
// gives up its node ports, it counts all objects anew. So it does now and then anyway,
// for an object may have been charged and not been stored.
//
// The controller's caches may not know an object yet that has just been charged. It
// then counts too little, and for that moment the quota has room for one more than it
// should. A status that was written is therefore counted again soon.
//
// Of kinds other than pods, services and claims only the number is known, and only of
// those that some quota names: without quotas nothing is watched for their sake.
//
// What it is not: nothing is deleted here, whatever a quota says.
package resourcequota

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/quota"
)

// Bounds of a Config that leaves them zero.
const (
	DefaultWorkers = 5
	DefaultPeriod  = 5 * time.Minute
	DefaultRecheck = 10 * time.Second
	DefaultRefresh = 30 * time.Second
)

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int           // quotas counted at once; zero means DefaultWorkers
	Period  time.Duration // how often all are counted; zero means DefaultPeriod
	Recheck time.Duration // how soon after its status was written one is counted again; zero means DefaultRecheck
	Refresh time.Duration // how often at most the API server is asked which kinds there are; zero means DefaultRefresh
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-resource-quota-syncs", DefaultWorkers, "resource quotas counted at once")
	f.DurationVar(&c.Period, "resource-quota-sync-period", DefaultPeriod, "how often what all resource quotas have in use is counted anew, beside when something gives room back")
}

// A Controller is Kubernetes' resourcequota-controller.
type Controller struct {
	cfg                            Config
	client                         kubernetes.Interface
	objects                        metadata.Interface
	discovery                      discovery.DiscoveryInterface
	lister                         corelisters.ResourceQuotaLister
	quotas, pods, services, claims cache.SharedIndexInformer
	log                            *slog.Logger
}

// New returns a controller that watches through d.Informers, and by objects the kinds that are
// only counted.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.Period, DefaultPeriod)
	loop.Default(&c.Recheck, DefaultRecheck)
	loop.Default(&c.Refresh, DefaultRefresh)
	core := d.Informers.Core().V1()
	ctl := &Controller{
		cfg: c, client: d.Client, objects: d.Objects, discovery: d.Client.Discovery(), lister: core.ResourceQuotas().Lister(),
		quotas: core.ResourceQuotas().Informer(), pods: core.Pods().Informer(),
		services: core.Services().Informer(), claims: core.PersistentVolumeClaims().Informer(),
	}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "resourcequota-controller" }

// Run keeps the status of quotas until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	r := &run{Controller: c, own: []quotav1.Evaluator{
		quota.Pods(inNamespace(c.pods)), quota.Services(inNamespace(c.services)), quota.Claims(inNamespace(c.claims)),
	}}
	r.counters = &counters{run: r, ctx: ctx}
	defer r.counters.end()
	r.queue = loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: r.sync, Workers: c.cfg.Workers, Log: c.log})
	stop, err := r.watch()
	if err != nil {
		return err
	}
	defer stop()
	return loop.Together(ctx, r.queue.Run, r.all)
}

// A run is the state of one Run.
type run struct {
	*Controller
	own      []quotav1.Evaluator // of kinds that are more than counted
	counters *counters
	queue    *loop.Queue[string]
}

// all has every quota counted now and then.
func (r *run) all(ctx context.Context) error {
	tick := time.NewTicker(r.cfg.Period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := r.counters.keep(); err != nil {
			return err
		}
		quotas, err := r.lister.List(labels.Everything())
		if err != nil {
			return fmt.Errorf("list quotas: %w", err)
		}
		for _, q := range quotas {
			r.queue.Add(q.Namespace + "/" + q.Name)
		}
	}
}

func (r *run) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	q, err := r.lister.ResourceQuotas(ns).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	status, again, uncounted := r.count(q)
	if equality.Semantic.DeepEqual(status, q.Status) {
		return again, uncounted
	}
	q = q.DeepCopy()
	q.Status = status
	_, err = r.client.CoreV1().ResourceQuotas(ns).UpdateStatus(ctx, q, metav1.UpdateOptions{})
	if err != nil { // also after a conflict: it has been charged meanwhile
		return 0, loop.StatusError("quota "+key, err)
	}
	return r.cfg.Recheck, uncounted
}

// count is what the status of q should be. What cannot be counted keeps the amount that
// it had. again > 0 asks for another look, since there is a kind that is not known yet.
func (r *run) count(q *corev1.ResourceQuota) (status corev1.ResourceQuotaStatus, again time.Duration, err error) {
	evaluators := slices.Clone(r.own)
	for name := range q.Spec.Hard {
		gr, counted := quota.Counted(name)
		if !counted {
			continue
		}
		list, unknown := r.counters.lister(gr)
		if list != nil {
			evaluators = append(evaluators, quota.Count(gr, list))
		}
		if unknown {
			again = r.cfg.Refresh
		}
	}
	hard := quotav1.Add(nil, q.Spec.Hard)
	used, err := quotav1.CalculateUsage(q.Namespace, q.Spec.Scopes, hard, generic.NewRegistry(evaluators), q.Spec.ScopeSelector)
	if err != nil {
		err = fmt.Errorf("count for quota %s/%s: %w", q.Namespace, q.Name, err)
	}
	for name, amount := range q.Status.Used {
		if _, ok := used[name]; !ok {
			used[name] = amount
		}
	}
	return corev1.ResourceQuotaStatus{Hard: hard, Used: quotav1.Mask(used, quotav1.ResourceNames(hard))}, again, err
}
