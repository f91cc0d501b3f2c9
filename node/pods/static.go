// This file is about static pods, which files of the machine define. They run
// independently of the API. The API has a mirror of each, which is never run.

package pods

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Static has the static pods of a node. *staticpods.Source is one.
type Static interface {
	// Pods returns the static pods, and whether the list is complete. A pod with another
	// content has another uid. Callers do not change the pods.
	Pods() ([]*corev1.Pod, bool)
}

// A wanted is the set of pods that are to run, as far as it is known.
type wanted struct {
	pods   map[types.UID]*corev1.Pod
	static map[types.UID]bool
	synced bool // the pods of the API are complete
	read   bool // the static pods are complete
}

// wanted collects the pods of all sources.
func (r *Runner) wanted() wanted {
	pods, synced := r.source.snapshot()
	w := wanted{pods: pods, static: map[types.UID]bool{}, synced: synced, read: true}
	if r.cfg.Static == nil {
		return w
	}
	var list []*corev1.Pod
	list, w.read = r.cfg.Static.Pods()
	for _, p := range list {
		w.pods[p.UID], w.static[p.UID] = p, true
	}
	return w
}

// recall adds the pods of an earlier run that no complete source has confirmed or left
// out yet.
func (w *wanted) recall(known map[types.UID]checkpoint) {
	for uid, c := range known {
		if w.pods[uid] == nil && !w.all(c.Static) {
			w.pods[uid] = c.Pod
			w.static[uid] = c.Static
		}
	}
}

// all reports whether the static pods, or the others, are complete: then a pod that is
// missing is to be removed.
func (w *wanted) all(static bool) bool {
	if static {
		return w.read
	}
	return w.synced
}

// lacks reports whether a pod is to be removed.
func (w *wanted) lacks(uid types.UID, static bool) bool { return w.pods[uid] == nil && w.all(static) }

// staticLocked reports whether a known pod is a static one.
func (r *Runner) staticLocked(uid types.UID) bool {
	if w := r.workers[uid]; w != nil {
		return w.static
	}
	return r.known[uid].Static
}

// isMirror reports whether a pod of the API is a mirror. It is never run, whether or not
// its static pod exists.
func isMirror(p *corev1.Pod) bool {
	_, is := p.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}

// shows reports whether m is the mirror of this version of a static pod.
func shows(m, static *corev1.Pod) bool {
	return m.DeletionTimestamp == nil && m.Annotations[corev1.MirrorPodAnnotationKey] == string(static.UID)
}

// withStatus returns the pod with another status.
func withStatus(p *corev1.Pod, st *corev1.PodStatus) *corev1.Pod {
	p = p.DeepCopy()
	p.Status = *st.DeepCopy()
	return p
}

// begin turns the status of a static pod from an earlier run into that of a pod that has
// not ended: the cause of its end, such as a shutdown of the machine, has passed. The
// statuses of its containers stay.
func begin(st *corev1.PodStatus, of *corev1.Pod) {
	st.Phase, st.Reason, st.Message, st.QOSClass = of.Status.Phase, "", "", of.Status.QOSClass
}

// show gives the worker of a static pod its mirror; nil means there is none.
func (w *worker) show(mirror *corev1.Pod) {
	w.mu.Lock()
	same := w.wantedMirror == mirror
	w.wantedMirror = mirror
	w.mu.Unlock()
	if !same {
		w.nudge()
	}
}

// receiveMirror takes the mirror's present version in the API. A mirror that is about to
// be replaced counts as none.
func (w *worker) receiveMirror(m *corev1.Pod) {
	if m == nil || !shows(m, w.pod) || terminal(m.Status.Phase) && !w.ended {
		w.mirror, w.seen, w.api, w.apiKnown = nil, nil, corev1.PodStatus{}, false
		return
	}
	if m == w.seen {
		return
	}
	if w.mirror != nil && w.mirror.UID == m.UID && w.stale(m) {
		w.at(w.wroteAt.Add(staleFor)) // unless a newer one comes before
		return
	}
	w.mirror, w.seen, w.api, w.apiKnown = m, m, m.Status, true
}

// object is the pod's object in the API: of a static pod its mirror, nil if there is none.
func (w *worker) object() *corev1.Pod {
	if w.static {
		return w.mirror
	}
	return w.pod
}

// setObject replaces object by a newer one.
func (w *worker) setObject(p *corev1.Pod) {
	if w.static {
		w.mirror = p
	} else {
		w.pod = p
	}
	w.api = p.Status
}

// translated returns the node's uid of a pod. A static pod and its mirror differ in uid.
func (r *Runner) translated(name types.NamespacedName, uid types.UID) types.UID {
	mirrors, _ := r.source.mirrors()
	if m := mirrors[name]; m != nil && m.UID == uid {
		return types.UID(m.Annotations[corev1.MirrorPodAnnotationKey])
	}
	return uid
}

// showLocked gives the workers of static pods their mirrors.
func (r *Runner) showLocked() {
	mirrors, _ := r.source.mirrors()
	for w := range maps.Values(r.workers) {
		if w.static {
			w.show(mirrors[w.id.NamespacedName])
		}
	}
	r.wakeMirrors()
}

// wakeMirrors has keepMirrors look again.
func (r *Runner) wakeMirrors() {
	select {
	case r.mirroring <- struct{}{}:
	default:
	}
}
