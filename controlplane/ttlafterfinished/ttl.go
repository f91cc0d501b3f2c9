// Package ttlafterfinished deletes Jobs some time after they have finished, if
// they say so (spec.ttlSecondsAfterFinished).
//
// Before a Job goes it is looked up once more at the API server, since the cache
// may not know yet that its time was prolonged. Its pods go first: the deletion
// is in the foreground.
package ttlafterfinished

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// DefaultWorkers is how many Jobs are worked on at once if not told otherwise.
const DefaultWorkers = 5

// Config configures a Controller. The zero value is good.
type Config struct {
	Workers int // zero means DefaultWorkers
}

// AddFlags adds the flags that set c.
func (c *Config) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&c.Workers, "concurrent-ttl-after-finished-syncs", DefaultWorkers, "Jobs that have ended and are worked on at once")
}

// A Controller is Kubernetes' ttl-after-finished-controller.
type Controller struct {
	cfg    Config
	client kubernetes.Interface
	jobs   batchlisters.JobLister
	inf    cache.SharedIndexInformer
	log    *slog.Logger
}

// New returns a controller that watches through d.Informers.
func New(d loop.Deps, c Config) (*Controller, error) {
	loop.Default(&c.Workers, DefaultWorkers)
	jobs := d.Informers.Batch().V1().Jobs()
	ctl := &Controller{cfg: c, client: d.Client, jobs: jobs.Lister(), inf: jobs.Informer()}
	ctl.log = loop.Logger(d.Log, ctl.Name())
	return ctl, nil
}

// Name is the controller's name in Kubernetes.
func (*Controller) Name() string { return "ttl-after-finished-controller" }

// Run deletes Jobs until ctx is done. The informers must be running.
func (c *Controller) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: c.Name(), Do: c.sync, Workers: c.cfg.Workers, Log: c.log})
	stop, err := loop.Watch(c.inf, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func (c *Controller) sync(ctx context.Context, key string) (time.Duration, error) {
	ns, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // a key that is none is nobody's
	}
	job, err := c.jobs.Jobs(ns).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if left, expires := remaining(job, time.Now()); !expires || left > 0 {
		return left, nil
	}
	job, err = c.client.BatchV1().Jobs(ns).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up job %s: %w", key, err)
	}
	if left, expires := remaining(job, time.Now()); !expires || left > 0 {
		return left, nil
	}
	foreground := metav1.DeletePropagationForeground
	err = c.client.BatchV1().Jobs(ns).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsConflict(err):
		return 0, loop.Quiet(err) // it has just been changed: look again
	case err != nil:
		return 0, fmt.Errorf("delete job %s: %w", key, err)
	}
	c.log.Info("finished job deleted", "job", key)
	return 0, nil
}

// remaining is how much longer j is kept; expires is false if that is for ever,
// or if it is on its way out.
func remaining(j *batchv1.Job, now time.Time) (left time.Duration, expires bool) {
	ttl := j.Spec.TTLSecondsAfterFinished
	if ttl == nil || j.DeletionTimestamp != nil {
		return 0, false
	}
	for i := range j.Status.Conditions {
		c := &j.Status.Conditions[i]
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return max(c.LastTransitionTime.Add(time.Duration(*ttl)*time.Second).Sub(now), 0), true
		}
	}
	return 0, false
}
