package deployment

// The fresh ReplicaSet: its making, and the revisions by which rollouts are
// remembered.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// Annotations by which a ReplicaSet says what it is to its Deployment. A Deployment
// has the Revision of its fresh set.
const (
	Revision        = "deployment.kubernetes.io/revision"
	RevisionHistory = "deployment.kubernetes.io/revision-history"
	DesiredReplicas = "deployment.kubernetes.io/desired-replicas"
	MaxReplicas     = "deployment.kubernetes.io/max-replicas"
)

// maxHistory is how long a RevisionHistory may be, in bytes. The earliest go first.
const maxHistory = 2000

// notCopied are the annotations that a set does not get from its Deployment.
var notCopied = []string{
	corev1.LastAppliedConfigAnnotation, Revision, RevisionHistory, DesiredReplicas, MaxReplicas, appsv1.DeprecatedRollbackTo,
}

// number is the number that an annotation of rs says; zero if it says none.
func number(rs *appsv1.ReplicaSet, annotation string) int {
	n, err := strconv.Atoi(rs.Annotations[annotation])
	if err != nil {
		return 0
	}
	return n
}

// revise gives the fresh set, if there is one, the annotations and the number of a set
// that is newer than all others, and the Deployment the same number.
func (l *look) revise() {
	rs := l.fresh
	if rs == nil {
		return
	}
	rs.Spec.MinReadySeconds = l.d.Spec.MinReadySeconds
	l.annotate(rs)
	metav1.SetMetaDataAnnotation(&l.d.ObjectMeta, Revision, rs.Annotations[Revision])
	if hasDeadline(l.d) && condition(&l.d.Status, appsv1.DeploymentProgressing) == nil {
		l.progressing(corev1.ConditionTrue, "FoundNewReplicaSet", fmt.Sprintf("Found new replica set %q", rs.Name))
	}
}

// annotate gives rs, the fresh set or the one to be, the Deployment's annotations, and
// the next revision unless it has the newest. A revision that it had before goes into
// its history.
func (l *look) annotate(rs *appsv1.ReplicaSet) {
	if rs.Annotations == nil {
		rs.Annotations = make(map[string]string)
	}
	for k, v := range l.d.Annotations {
		if !slices.Contains(notCopied, k) {
			rs.Annotations[k] = v
		}
	}
	next := 1
	for _, old := range l.old {
		next = max(next, number(old, Revision)+1)
	}
	had := number(rs, Revision)
	if had >= next {
		return
	}
	rs.Annotations[Revision] = strconv.Itoa(next)
	if had > 0 {
		rs.Annotations[RevisionHistory] = remember(rs.Annotations[RevisionHistory], strconv.Itoa(had))
	}
}

// remember appends a revision to a history, which stays within maxHistory.
func remember(history, revision string) string {
	if history == "" {
		return revision
	}
	history += "," + revision
	for len(history) > maxHistory {
		_, history, _ = strings.Cut(history, ",")
	}
	return history
}

// create makes the fresh set. If it cannot be made the Deployment says so; if another
// object has its name, the Deployment counts a collision, which gives it another name
// the next time.
func (c *Controller) create(ctx context.Context, o children.Owner, l *look) error {
	rs := l.newSet()
	made, err := c.sets.CreateOne(ctx, o, rs)
	if apierrors.IsAlreadyExists(err) {
		return c.found(ctx, l, rs.Name)
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return loop.Quiet(err)
	case err != nil:
		said := fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, children.Message(err))
		c.events.Event(l.d, corev1.EventTypeWarning, "ReplicaSetCreateError", said)
		if hasDeadline(l.d) {
			l.progressing(corev1.ConditionFalse, "ReplicaSetCreateError", said)
		}
		return errors.Join(err, c.write(ctx, l))
	}
	l.fresh = made
	c.tell(l.d, made.Name, 0, size(made))
	metav1.SetMetaDataAnnotation(&l.d.ObjectMeta, Revision, made.Annotations[Revision])
	if hasDeadline(l.d) {
		l.progressing(corev1.ConditionTrue, "NewReplicaSetCreated", fmt.Sprintf("Created new replica set %q", made.Name))
	}
	return nil
}

// found looks at the set that has the name of the one to be made. It may be that one,
// which the cache does not show yet.
func (c *Controller) found(ctx context.Context, l *look, name string) error {
	rs, err := c.client.AppsV1().ReplicaSets(l.d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look up replica set %s: %w", name, err)
	}
	if metav1.IsControlledBy(rs, l.d) && sameTemplate(&rs.Spec.Template, &l.d.Spec.Template) {
		return loop.Quiet(fmt.Errorf("replica set %s has been made and is not seen yet", name))
	}
	var n int32
	if l.d.Status.CollisionCount != nil {
		n = *l.d.Status.CollisionCount
	}
	n++
	l.d.Status.CollisionCount = &n
	if err := c.write(ctx, l); err != nil {
		return err
	}
	return loop.Quiet(fmt.Errorf("replica set %s is another's: the next has another name", name))
}

// newSet is the fresh set to be made.
func (l *look) newSet() *appsv1.ReplicaSet {
	d, key := l.d, appsv1.DefaultDeploymentUniqueLabelKey
	template := d.Spec.Template.DeepCopy()
	h := children.TemplateHash(template, d.Status.CollisionCount)
	metav1.SetMetaDataLabel(&template.ObjectMeta, key, h)
	n := int32(min(l.freshSize(), math.MaxInt32))
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: setName(d.Name, h), Namespace: d.Namespace, Labels: maps.Clone(template.Labels),
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &n, MinReadySeconds: d.Spec.MinReadySeconds,
			Selector: metav1.AddLabelToSelector(d.Spec.Selector.DeepCopy(), key, h), Template: *template,
		},
	}
	l.annotate(rs)
	l.resize(rs, int(n))
	return rs
}

// setName is the name of the set of a Deployment whose template has this hash.
func setName(deployment, hash string) string {
	start := deployment[:min(len(deployment), validation.DNS1123SubdomainMaxLength-1-len(hash))]
	return strings.TrimRight(start, ".-") + "-" + hash
}

// obsolete returns the old sets beyond the history limit, those of the earliest
// revisions. One that has pods, or whose size has not been seen to yet, is kept.
func (l *look) obsolete() []*appsv1.ReplicaSet {
	limit := l.d.Spec.RevisionHistoryLimit
	if limit == nil {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(l.old), func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp != nil })
	slices.SortStableFunc(old, func(a, b *appsv1.ReplicaSet) int { return cmp.Compare(number(a, Revision), number(b, Revision)) })
	old = old[:max(len(old)-int(*limit), 0)]
	return slices.DeleteFunc(old, func(rs *appsv1.ReplicaSet) bool {
		return size(rs) > 0 || rs.Status.Replicas > 0 || rs.Generation > rs.Status.ObservedGeneration
	})
}
