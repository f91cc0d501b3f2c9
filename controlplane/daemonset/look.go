package daemonset

// What is known while one DaemonSet is looked at, and which pods are missing or too much.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/revision"
)

// A place is a node and the DaemonSet's pods there, the one that counts first.
type place struct {
	node string
	answer
	pods []*corev1.Pod
}

// A look is what is known of a DaemonSet, and what has been decided.
type look struct {
	ds     *appsv1.DaemonSet
	fit    *fit
	now    time.Time
	hash   string          // of the present template
	hashes map[string]bool // that pods of the present template have
	used   map[string]bool // hashes that pods have

	places []*place
	strays []*corev1.Pod // for nodes that there are not, and bound to none

	toDelete []*corev1.Pod
	dying    map[types.UID]bool
	failed   map[types.UID]string // the nodes of those to be deleted that have failed
	missing  []string             // nodes that are to get a pod
	events   []event
	again    time.Duration // when time alone will have changed something; zero for never
}

type event struct{ kind, reason, message string }

func (c *Controller) newLook(ctx context.Context, o children.Owner, ds *appsv1.DaemonSet, all []*revision.Revision, now *revision.Revision) (*look, error) {
	l := &look{
		ds: ds, fit: fitOf(ds), now: time.Now(), hash: now.Labels[appsv1.DefaultDaemonSetUniqueLabelKey],
		hashes: make(map[string]bool), used: make(map[string]bool), dying: make(map[types.UID]bool), failed: make(map[types.UID]string),
	}
	same, err := revision.Same(all, &ds.Spec.Template)
	if err != nil {
		return nil, err
	}
	for _, r := range append(same, now) {
		l.hashes[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	pods, err := c.pods.Of(ctx, o)
	if err != nil {
		return nil, err
	}
	l.settle(nodes, pods)
	return l, nil
}

// settle finds the place of each pod.
func (l *look) settle(nodes []*corev1.Node, pods []*corev1.Pod) {
	on := make(map[string]*place, len(nodes))
	l.places = make([]*place, 0, len(nodes))
	for _, n := range nodes {
		p := &place{node: n.Name, answer: l.fit.of(n)}
		on[n.Name] = p
		l.places = append(l.places, p)
	}
	for _, p := range pods {
		if p.DeletionTimestamp != nil && children.Ended(p) {
			continue // only a finalizer holds it
		}
		l.used[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
		if at := on[nodeOf(p)]; at != nil {
			at.pods = append(at.pods, p)
		} else if p.Spec.NodeName == "" && nodeOf(p) != "" && p.DeletionTimestamp == nil {
			l.strays = append(l.strays, p)
		}
	}
	slices.SortFunc(l.places, func(a, b *place) int { return cmp.Compare(a.node, b.node) })
	for _, at := range l.places {
		slices.SortFunc(at.pods, func(a, b *corev1.Pod) int {
			bound := func(p *corev1.Pod) int { return map[bool]int{true: 0, false: 1}[p.Spec.NodeName != ""] }
			return cmp.Or(cmp.Compare(bound(a), bound(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		})
	}
}

// needs tells whether pods have the hash of r, or it is the present template's.
func (l *look) needs(r *revision.Revision) bool {
	h := r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	return l.used[h] || h == l.hash
}

// updated tells whether p is of the present template.
func (l *look) updated(p *corev1.Pod) bool {
	return l.hashes[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
}

// stays tells whether p is not being deleted and has not been decided to be.
func (l *look) stays(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && !l.dying[p.UID] }

func (l *look) available(p *corev1.Pod) bool {
	ok, in := children.Available(p, time.Duration(l.ds.Spec.MinReadySeconds)*time.Second, l.now)
	l.after(in)
	return ok
}

// after has the DaemonSet looked at again by then, if d is not zero.
func (l *look) after(d time.Duration) {
	if d > 0 && (l.again == 0 || d < l.again) {
		l.again = d
	}
}

func (l *look) remove(pods ...*corev1.Pod) {
	for _, p := range pods {
		if l.stays(p) {
			l.toDelete = append(l.toDelete, p)
			l.dying[p.UID] = true
		}
	}
}

// pause is under which a node's failures are counted: those of another spec do not count.
func (l *look) pause(node string) string {
	return strconv.FormatInt(l.ds.Generation, 10) + "/" + node
}

// manage decides which nodes lack a pod and which pods are too much or have ended. wait
// says how much longer one of a node that has failed is left alone.
func (l *look) manage(wait func(node string) time.Duration) {
	l.remove(l.strays...)
	for _, at := range l.places {
		switch {
		case !at.stays:
			l.remove(at.pods...)
		case len(at.pods) > 0:
			l.tidy(at, wait)
		case at.should:
			l.missing = append(l.missing, at.node)
		}
	}
}

// tidy decides which of the pods on a node go. A DaemonSet that surges gets a new pod beside
// those that go, but not while one that failed is left alone: pods would pile up.
func (l *look) tidy(at *place, wait func(node string) time.Duration) {
	var run []*corev1.Pod
	waits := false
	for _, p := range at.pods {
		switch {
		case p.DeletionTimestamp != nil:
		case p.Status.Phase == corev1.PodFailed:
			if left := wait(at.node); left > 0 {
				l.after(left)
				waits = true
				continue
			}
			l.say(corev1.EventTypeWarning, "FailedDaemonPod", "Found failed daemon pod %s/%s on node %s, will try to kill it", p.Namespace, p.Name, at.node)
			l.remove(p)
			l.failed[p.UID] = at.node
		case p.Status.Phase == corev1.PodSucceeded:
			l.say(corev1.EventTypeNormal, "SucceededDaemonPod", "Found succeeded daemon pod %s/%s on node %s, will try to delete it", p.Namespace, p.Name, at.node)
			l.remove(p)
		default:
			run = append(run, p)
		}
	}
	switch pairs := surges(l.ds); {
	case len(run) == 0 && pairs && at.should && !waits:
		l.missing = append(l.missing, at.node)
	case len(run) > 1 && pairs:
		l.pair(run)
	case len(run) > 1:
		l.remove(run[1:]...)
	}
}

// pair leaves one pod of the present template and one of another, the oldest, and only
// the former once it is available or the latter is not ready.
func (l *look) pair(run []*corev1.Pod) {
	var fresh, old *corev1.Pod
	for _, p := range run {
		switch {
		case l.updated(p) && fresh == nil:
			fresh = p
		case !l.updated(p) && old == nil:
			old = p
		default:
			l.remove(p)
		}
	}
	if fresh != nil && old != nil && (!children.Ready(old) || l.available(fresh)) {
		l.remove(old)
	}
}

func (l *look) say(kind, reason, format string, args ...any) {
	l.events = append(l.events, event{kind, reason, fmt.Sprintf(format, args...)})
}
