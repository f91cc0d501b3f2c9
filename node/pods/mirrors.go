// This file keeps the mirrors of static pods in the API.

package pods

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// mirrorTimeout bounds one write of a mirror.
const mirrorTimeout = 30 * time.Second

// A showing is a static pod and its mirror in the API, by name.
type showing struct {
	pod    *corev1.Pod // nil for none
	going  bool        // one is being stopped
	mirror *corev1.Pod // nil for none
}

// outdated reports whether the mirror is to be deleted: its pod does not exist or has
// another version, its owner is a Node that does not exist any more, or its status is
// that of an ended pod and the pod has not ended.
func (s *showing) outdated(node *corev1.Node) bool {
	switch {
	case s.mirror == nil:
		return false
	case s.pod == nil:
		return !s.going
	case !shows(s.mirror, s.pod), terminal(s.mirror.Status.Phase) && !terminal(s.pod.Status.Phase):
		return true
	}
	owner := metav1.GetControllerOfNoCopy(s.mirror)
	return node != nil && (owner == nil || owner.UID != node.UID)
}

// missing reports whether a mirror is to be made. None is made without a Node: it would
// be removed at once.
func (s *showing) missing(node *corev1.Node) bool {
	return s.pod != nil && s.mirror == nil && node != nil && node.DeletionTimestamp == nil
}

// mirrorOf is the mirror of a static pod. It has no labels and no affinity to pods: the
// API server accepts neither from a node. So no Service selects it and no pod is kept
// away by it.
func mirrorOf(pod *corev1.Pod, node *corev1.Node) *corev1.Pod {
	m := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, Annotations: maps.Clone(pod.Annotations),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: ptr.To(true)}},
		},
		Spec: *pod.Spec.DeepCopy(),
	}
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, corev1.MirrorPodAnnotationKey, string(pod.UID))
	if a := m.Spec.Affinity; a != nil {
		a.PodAffinity, a.PodAntiAffinity = nil, nil
	}
	return m
}

// A pace is the back-off of the writes of one mirror.
type pace struct {
	retry
	told string // why the last one failed, as logged
}

// keepMirrors keeps the mirrors up to date until ctx is done, while the API can be read.
// A mirror that stays wrong after a write is written with back-off.
func (r *Runner) keepMirrors(ctx context.Context) {
	paces := map[types.NamespacedName]*pace{}
	timer := time.NewTimer(time.Hour) // set anew by each look
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Stop()
		if next := r.mirror(ctx, paces); !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
		case <-r.mirroring:
		case <-timer.C:
		}
	}
}

// mirror checks all mirrors once, and returns when to check again; zero means after the
// next change.
func (r *Runner) mirror(ctx context.Context, paces map[types.NamespacedName]*pace) (next time.Time) {
	all := r.showings()
	maps.DeleteFunc(paces, func(name types.NamespacedName, _ *pace) bool { return all[name] == nil })
	var node *corev1.Node
	if r.cfg.Node != nil {
		node = r.cfg.Node()
	}
	for _, name := range slices.SortedFunc(maps.Keys(all), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	}) {
		s, p := all[name], paces[name]
		outdated, missing := s.outdated(node), s.missing(node)
		if !outdated && !missing {
			delete(paces, name)
			continue
		}
		if p == nil {
			p = &pace{}
			paces[name] = p
		}
		if now := time.Now(); !p.at.After(now) {
			err := r.remake(ctx, name, *s, outdated, node)
			p.failed(time.Now(), r.cfg.WriteRetry) // an up-to-date mirror resets the back-off
			p.tell(r, name, err)
		}
		if next.IsZero() || p.at.Before(next) {
			next = p.at
		}
	}
	return next
}

// showings are the static pods and the mirrors; none while one of both lists is not
// complete.
func (r *Runner) showings() map[types.NamespacedName]*showing {
	mirrors, synced := r.source.mirrors()
	want := r.wanted()
	if !synced || !want.read || r.cfg.Fence.Up() {
		return nil
	}
	all := map[types.NamespacedName]*showing{}
	for name, m := range mirrors {
		all[name] = &showing{mirror: m}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		if !w.static {
			continue
		}
		s := all[w.id.NamespacedName]
		if s == nil {
			s = &showing{}
			all[w.id.NamespacedName] = s
		}
		if pod, stays := w.staying(); stays {
			s.pod = pod
		} else {
			s.going = true
		}
	}
	for uid := range want.static {
		if r.workers[uid] != nil || r.ended[uid] {
			continue
		}
		// It is about to get a worker, and keeps its mirror until then.
		name := types.NamespacedName{Namespace: want.pods[uid].Namespace, Name: want.pods[uid].Name}
		if s := all[name]; s != nil && s.pod == nil && !s.going {
			delete(all, name)
		}
	}
	return all
}

// staying returns the pod, and whether it is to stay.
func (w *worker) staying() (*corev1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.published, !w.wantsGone && !w.wantsOut
}

// remake deletes an outdated mirror, and makes one if it is missing then.
func (r *Runner) remake(ctx context.Context, name types.NamespacedName, s showing, outdated bool, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, mirrorTimeout)
	defer cancel()
	api := r.cfg.API.Pods(name.Namespace)
	if outdated {
		err := api.Delete(ctx, name.Name, atOnce(s.mirror.UID))
		r.count("delete", err)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete mirror pod: %w", err)
		}
		if s.mirror = nil; !s.missing(node) {
			return nil
		}
	}
	_, err := api.Create(ctx, mirrorOf(s.pod, node), metav1.CreateOptions{})
	r.count("create", err)
	if err != nil {
		return fmt.Errorf("create mirror pod: %w", err)
	}
	return nil
}

// tell logs once why a mirror is not up to date.
func (p *pace) tell(r *Runner, name types.NamespacedName, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != p.told {
		r.log.Warn("a static pod is not shown as it is, will try again; it runs all the same", "namespace", name.Namespace, "pod", name.Name, "err", err)
	}
	p.told = text
}
