// Package job runs pods until enough of them have succeeded.
//
// A look at a Job goes through five steps. It takes the Job's pods (see package
// children); it says whether the Job has come to an end, and how; it makes or
// deletes pods accordingly; it counts pods that have ended; and it writes the
// status. Everything but the second needs the API server, and everything that
// the second needs is in the Job and its pods, so a controller that is started
// again goes on where the last one was.
//
// Counting each pod once, whoever deletes it and whatever fails in between, is
// what the finalizer batch.kubernetes.io/job-tracking on every pod is for. A pod
// that has ended is first written down by uid in status.uncountedTerminatedPods;
// then its finalizer is taken off; then its uid is replaced by one more in
// status.succeeded or status.failed. Of the pods of an Indexed Job that have
// succeeded the indexes are written down instead, which cannot be counted twice.
//
// A Job that ends gets the condition SuccessCriteriaMet or FailureTarget at once
// and Complete or Failed when none of its pods runs any more.
//
// The pods of an Indexed Job may have a limit on failures for each index. Of such a
// Job the last pod of an index that has failed is held, and not counted, until the
// one in its place is there, which carries on the index's number of failures.
//
// What it is not: it makes no Jobs, and deletes none that have finished.
package job

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// Bounds of a Config that leaves them zero.
const (
	DefaultWorkers    = 5
	DefaultMinBackoff = children.DefaultMinBackoff
	DefaultMaxBackoff = children.DefaultMaxBackoff
)

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // Jobs worked on at once; zero means DefaultWorkers
	// MinBackoff is how long after a pod of a Job has failed the next one is made;
	// each further failure without a success doubles it, up to MaxBackoff. Zero
	// means DefaultMinBackoff and DefaultMaxBackoff.
	MinBackoff, MaxBackoff time.Duration
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-job-syncs", DefaultWorkers, "Jobs worked on at once")
	f.DurationVar(&c.MinBackoff, "job-min-backoff", DefaultMinBackoff, "how long after a pod of a Job has failed the next is made; doubles with each")
	f.DurationVar(&c.MaxBackoff, "job-max-backoff", DefaultMaxBackoff, "the longest wait between pods of a Job that fail, which begins with --job-min-backoff and doubles")
}

// A Controller is Kubernetes' job-controller.
type Controller struct {
	cfg    Config
	events record.EventRecorder
	client kubernetes.Interface
	jobs   batchlisters.JobLister
	inf    cache.SharedIndexInformer
	podInf cache.SharedIndexInformer
	pods   *children.Pods
	log    *slog.Logger

	mu      sync.Mutex
	pauses  map[string]*pause // guarded by mu; by namespace/name of the Job
	written map[string]string // guarded by mu; likewise: the version last written
}

// New returns a controller that watches through d.Informers. It fails if d's informers
// have stopped.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	loop.Default(&c.MinBackoff, DefaultMinBackoff)
	loop.Default(&c.MaxBackoff, max(DefaultMaxBackoff, c.MinBackoff))
	d.Events = loop.Recorder(d.Events)
	jobs, pods := d.Informers.Batch().V1().Jobs(), d.Informers.Core().V1().Pods()
	ctl := &Controller{cfg: c, events: d.Events, client: d.Client, jobs: jobs.Lister(), inf: jobs.Informer(), podInf: pods.Informer(), pauses: make(map[string]*pause), written: make(map[string]string)}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	var err error
	ctl.pods, err = children.New(children.Config[*corev1.Pod]{
		Client: children.PodClient(d.Client), Informer: ctl.podInf, Noun: "pod", Kind: batchv1.SchemeGroupVersion.WithKind("Job"),
		Live: func(ctx context.Context, ns, name string) (metav1.Object, error) {
			return d.Client.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
		},
		Finalizer: batchv1.JobTrackingFinalizer, Events: d.Events,
	})
	if err != nil {
		return nil, err
	}
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "job-controller" }

// Run runs Jobs until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	jobs := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	strays := loop.NewQueue(loop.Config[string]{Name: c.Name() + "-orphans", Do: c.stray, Log: c.log})
	var watches loop.Watches
	watches.Add(loop.Watch(c.inf, jobs.Add))
	watches.Add(c.pods.Watch(jobs.Add, c.matching))
	watches.Add(c.watchStrays(strays.Add))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return loop.Together(ctx, jobs.Run, strays.Run)
}

// elsewhere tells whether another controller manages j.
func elsewhere(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

// matching returns the keys of the Jobs that might adopt p. None does that is finished, is being
// deleted, or is another controller's.
func (c *Controller) matching(p *corev1.Pod) []string {
	jobs, err := c.jobs.Jobs(p.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	jobs = slices.DeleteFunc(jobs, func(j *batchv1.Job) bool { return finished(j) || j.DeletionTimestamp != nil || elsewhere(j) })
	return children.Matching(jobs, func(o *batchv1.Job) *metav1.LabelSelector { return o.Spec.Selector }, p)
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	job, err := c.jobs.Jobs(ns).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	if err != nil || finished(job) {
		c.pods.Forget(key)
		c.forget(key)
		return 0, nil
	}
	if c.behind(key, job) {
		// What was counted already would be missed. The cache catches up with what
		// was written here, and that brings another look.
		return 0, nil
	}
	if elsewhere(job) {
		return 0, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil || selector.Empty() {
		c.log.Warn("the selector cannot be used", "job", key, "error", err)
		return 0, nil
	}
	o := children.Owner{Object: job, Selector: selector}
	pods, err := c.pods.Of(ctx, o)
	if err != nil {
		return 0, err
	}
	return c.look(ctx, o, job, pods)
}

// behind tells whether job is older than what was written last.
func (c *Controller) behind(key string, job *batchv1.Job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	older, err := resourceversion.CompareResourceVersion(job.ResourceVersion, c.written[key])
	return err == nil && older < 0
}

// look is one look at a Job that has not finished. A failure to make or delete
// pods does not keep those that have ended from being counted.
func (c *Controller) look(ctx context.Context, o children.Owner, cached *batchv1.Job, pods []*corev1.Pod) (time.Duration, error) {
	now := time.Now()
	l := newLook(cached.DeepCopy(), pods, now)
	pause := c.pauseOf(l)
	l.start()
	l.verdict()
	var again time.Duration
	var failed error
	if l.job.DeletionTimestamp == nil {
		again, failed = c.act(ctx, o, l, pause)
	}
	if failed == nil && l.end == nil && l.job.DeletionTimestamp == nil {
		l.suspension()
	}
	if err := c.count(ctx, o, cached, l); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, fmt.Errorf("pods of job %s: %w", cached.Name, failed)
	}
	return soonest(again, l.deadline()), nil
}

// soonest is the lesser of two times to look again; zero means not at all.
func soonest(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}
