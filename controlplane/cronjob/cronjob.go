// Package cronjob makes the Jobs of each CronJob when its schedule says so.
//
// A look at a CronJob goes through four steps. It compares status.active with the
// Jobs that are the CronJob's; it deletes those ended Jobs that are more than the
// history may be; it makes the Job of the last scheduled time, if that is due and the
// concurrency policy allows it; and it writes the status. Then it waits for the next
// scheduled time. Of several times that were missed only the last is made up for.
//
// The name of a Job says for which minute it was made, so none is made twice, however
// far the caches are behind. Names, annotations and events are those of Kubernetes'
// own controller, so either can go on where the other has stopped.
//
// A look first changes anything after the API server has confirmed that the CronJob
// still is what the cache shows.
//
// What it is not: it runs no pods, which package job does. A Job that somebody has
// made by hand for a CronJob (kubectl create job --from) counts for the history and
// for nothing else.
package cronjob

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// DefaultWorkers is how many CronJobs are worked on at once if not told otherwise.
const DefaultWorkers = 5

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // CronJobs worked on at once; zero means DefaultWorkers
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-cron-job-syncs", DefaultWorkers, "CronJobs worked on at once")
}

// A Controller is Kubernetes' cronjob-controller.
type Controller struct {
	cfg      Config
	events   record.EventRecorder
	client   kubernetes.Interface
	cronJobs batchlisters.CronJobLister
	inf      cache.SharedIndexInformer
	jobs     *children.Children[*batchv1.Job]
	log      *slog.Logger

	mu      sync.Mutex
	changed map[string]time.Time // guarded by mu; by namespace/name: when the schedule was seen to change
	told    map[string]time.Time // guarded by mu; likewise: the last scheduled time of which an event said that it has no Job
}

// kind is that of the owners of Jobs.
var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// New returns a controller that watches through d.Informers. It fails if d's informers
// have stopped.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	cronJobs := d.Informers.Batch().V1().CronJobs()
	jobs, err := children.New(children.Config[*batchv1.Job]{Informer: d.Informers.Batch().V1().Jobs().Informer(), Kind: kind})
	if err != nil {
		return nil, err
	}
	ctl := &Controller{cfg: c, events: loop.Recorder(d.Events), client: d.Client, cronJobs: cronJobs.Lister(), inf: cronJobs.Informer(), jobs: jobs, changed: make(map[string]time.Time), told: make(map[string]time.Time)}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "cronjob-controller" }

// Run makes Jobs until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	var watches loop.Watches
	watches.Add(loop.WatchIf(c.inf, c.noteChange, q.Add))
	watches.Add(c.jobs.Watch(q.Add, func(*batchv1.Job) []string { return nil }))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

// noteChange notes when a schedule has changed: times before that are not missed by
// the new one. Every change concerns the controller.
func (c *Controller) noteChange(was, is *batchv1.CronJob) bool {
	if was.Spec.Schedule != is.Spec.Schedule || !ptr.Equal(was.Spec.TimeZone, is.Spec.TimeZone) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed[is.Namespace+"/"+is.Name] = time.Now()
	}
	return true
}

// maxAhead is how far in the future a time may be that was written here. One further ahead is of
// a clock that has been set back since.
const maxAhead = 5 * time.Minute

// since is the time after which scheduled times of the CronJob at key count.
func (c *Controller) since(key string, cj *batchv1.CronJob, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := cj.CreationTimestamp.Time
	if last := cj.Status.LastScheduleTime; last != nil {
		since = last.Time
	}
	if changed := c.changed[key]; changed.After(since) && !changed.After(now.Add(maxAhead)) {
		return changed
	}
	delete(c.changed, key)
	return since
}

func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.changed, key)
	delete(c.told, key)
}

// tell notes that an event says that the scheduled time due of the CronJob at key has no Job. It
// tells whether it is the first that does.
func (c *Controller) tell(key string, due time.Time) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = !c.told[key].Equal(due)
	c.told[key] = due
	return first
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	was, err := c.cronJobs.CronJobs(ns).Get(name)
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	jobs, err := c.jobs.Controlled(ns, was.UID)
	if err != nil {
		return 0, err
	}
	l := &look{Controller: c, cj: was.DeepCopy(), jobs: jobs, now: time.Now()}
	again, err := l.act(ctx, c.since(key, was, l.now))
	if loop.IsQuiet(err) {
		return 0, err // the cache is behind, so nothing was done
	}
	return again, errors.Join(err, c.write(ctx, was, l.cj))
}

// write writes the status of is if it is not that of was.
func (c *Controller) write(ctx context.Context, was, is *batchv1.CronJob) error {
	if equality.Semantic.DeepEqual(was.Status, is.Status) {
		return nil
	}
	_, err := c.client.BatchV1().CronJobs(is.Namespace).UpdateStatus(ctx, is, metav1.UpdateOptions{})
	return loop.StatusError("cron job "+is.Name, err)
}
