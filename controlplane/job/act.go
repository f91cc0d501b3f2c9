package job

// Making and deleting the pods of a Job.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/controlplane/children"
)

// indexVariable tells the containers of an Indexed Job's pod which index it is.
const indexVariable = "JOB_COMPLETION_INDEX"

// act makes or deletes pods and notes whether the Job is complete. It returns
// when more can be made.
func (c *Controller) act(ctx context.Context, o children.Owner, l *look, p *pause) (time.Duration, error) {
	if l.end != nil {
		return 0, c.stop(ctx, o, l)
	}
	children.ByWorth(l.active, func(string) int { return 0 }, l.now)
	useless, others := []*corev1.Pod(nil), l.active
	if indexed(l.job) {
		useless, others = l.surplus()
	}
	// Pods that are of no use make no room for others until they are gone.
	missing := l.shortage()
	needless := max(-missing, len(useless))
	if needless > 0 {
		if err := c.drop(ctx, o, l, append(useless, others...)[:min(needless, children.MaxWrites)]); err != nil {
			return 0, err
		}
	}
	if l.enough() { // also if it is suspended
		l.end = &condition{batchv1.JobComplete, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods"}
		return 0, nil
	}
	if needless > 0 || missing <= 0 {
		return 0, nil
	}
	if wait := p.Left(c.cfg.MinBackoff, c.cfg.MaxBackoff, l.now); wait > 0 && !limited(l.job) {
		return wait, nil
	}
	return c.make(ctx, o, l, min(missing, children.MaxWrites))
}

// stop deletes what still runs of a Job that has come to its end. If it has failed the finalizers
// stay: these pods count as having failed.
func (c *Controller) stop(ctx context.Context, o children.Owner, l *look) error {
	pods := l.active[:min(len(l.active), children.MaxWrites)]
	if l.end.terminal == batchv1.JobComplete {
		if !has(l.job, l.end.interim()) { // which is stored before anything is taken out of the count
			return nil
		}
		return c.drop(ctx, o, l, pods)
	}
	return c.delete(ctx, o, l, pods)
}

// drop deletes pods that are not needed now. That is nobody's failure, so they
// are taken out of the count first.
func (c *Controller) drop(ctx context.Context, o children.Owner, l *look, pods []*corev1.Pod) error {
	if _, err := c.pods.Free(ctx, o, pods); err != nil {
		return err
	}
	l.free(pods)
	return c.delete(ctx, o, l, pods)
}

func (c *Controller) delete(ctx context.Context, o children.Owner, l *look, pods []*corev1.Pod) error {
	gone, err := c.pods.Delete(ctx, o, pods)
	l.running -= len(gone)
	l.terminating += len(gone)
	if err == nil {
		l.ready -= len(children.Filter(pods, children.Ready))
	}
	return err
}

// make makes up to n pods. It returns when more can be made.
func (c *Controller) make(ctx context.Context, o children.Owner, l *look, n int) (time.Duration, error) {
	var at []int
	var again time.Duration
	if indexed(l.job) {
		at, again = l.pending(n, func(i int) time.Duration { return l.resting(l.last[i], c.cfg.MinBackoff, c.cfg.MaxBackoff) })
		n = len(at)
	}
	made, err := c.pods.Create(ctx, o, n, func(i int) *corev1.Pod {
		p := children.FromTemplate(o, &l.job.Spec.Template)
		p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
		if at != nil {
			number(p, l.job.Name, at[i])
		}
		if limited(l.job) {
			l.tally(p, l.last[at[i]])
		}
		return p
	})
	l.running += made
	return again, err
}

// number makes p the pod of an index: by name, by host name, by label and
// annotation, and by an environment variable in every container.
func number(p *corev1.Pod, job string, index int) {
	i := strconv.Itoa(index)
	if p.Annotations == nil {
		p.Annotations = make(map[string]string, 1)
	}
	if p.Labels == nil {
		p.Labels = make(map[string]string, 1)
	}
	p.Annotations[batchv1.JobCompletionIndexAnnotation] = i
	p.Labels[batchv1.JobCompletionIndexAnnotation] = i
	// The server adds five characters; a pod's name is a host name here.
	const longest = 63 - 5
	suffix := "-" + i + "-"
	p.GenerateName = job[:min(len(job), longest-len(suffix))] + suffix
	p.Spec.Hostname = fmt.Sprintf("%s-%d", job, index)
	for _, set := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for k := range set {
			has := slices.ContainsFunc(set[k].Env, func(v corev1.EnvVar) bool { return v.Name == indexVariable })
			if !has {
				set[k].Env = append(set[k].Env, corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + batchv1.JobCompletionIndexAnnotation + "']"},
				}})
			}
		}
	}
}
