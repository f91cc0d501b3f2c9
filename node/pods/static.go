// This file is about static pods: those that files of the machine define. They run
// whatever the API says. What the API has of one, its mirror, only shows it.

package pods

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Static has the static pods of a node. *staticpods.Source is one.
type Static interface {
	// Pods returns them, and whether they are all. A pod of another content has another
	// uid. Nobody changes the pods.
	Pods() ([]*corev1.Pod, bool)
}

// A wanted is what is to run, as far as that is known.
type wanted struct {
	pods   map[types.UID]*corev1.Pod
	static map[types.UID]bool
	synced bool // those of the API are all there
	read   bool // the static ones are
}

// wanted asks who says what is to run.
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

// recall adds the pods of an earlier run of which nobody has said yet what is to become.
func (w *wanted) recall(known map[types.UID]checkpoint) {
	for uid, c := range known {
		if w.pods[uid] == nil && !w.all(c.Static) {
			w.pods[uid] = c.Pod
			w.static[uid] = c.Static
		}
	}
}

// all reports whether a pod that is not among these, static or not, is to go.
func (w *wanted) all(static bool) bool {
	if static {
		return w.read
	}
	return w.synced
}

// lacks reports whether a pod is to go.
func (w *wanted) lacks(uid types.UID, static bool) bool { return w.pods[uid] == nil && w.all(static) }

// staticLocked tells whether a pod that is known from before is a static one.
func (r *Runner) staticLocked(uid types.UID) bool {
	if w := r.workers[uid]; w != nil {
		return w.static
	}
	return r.known[uid].Static
}

// isMirror tells whether a pod of the API shows a static one. It is never run, whether
// or not there is such a static pod.
func isMirror(p *corev1.Pod) bool {
	_, is := p.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}

// shows tells whether m is the mirror of this very content of a static pod.
func shows(m, static *corev1.Pod) bool {
	return m.DeletionTimestamp == nil && m.Annotations[corev1.MirrorPodAnnotationKey] == string(static.UID)
}

// withStatus returns the pod with another status.
func withStatus(p *corev1.Pod, st *corev1.PodStatus) *corev1.Pod {
	p = p.DeepCopy()
	p.Status = *st.DeepCopy()
	return p
}

// begin makes of a static pod's status, as an earlier run has left it, that of a pod which
// has not ended: what ended it then, such as a shutdown of the machine, does not count any
// more. What its containers were does.
func begin(st *corev1.PodStatus, of *corev1.Pod) {
	st.Phase, st.Reason, st.Message, st.QOSClass = of.Status.Phase, "", "", of.Status.QOSClass
}

// show tells the worker of a static pod what the API shows of it; nil for nothing.
func (w *worker) show(mirror *corev1.Pod) {
	w.mu.Lock()
	same := w.wantedMirror == mirror
	w.wantedMirror = mirror
	w.mu.Unlock()
	if !same {
		w.nudge()
	}
}

// receiveMirror takes note of the mirror as the API has it now. One that is about to be
// replaced counts for none.
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

// object is the pod as the API has it: of a static one its mirror, nil if there is none.
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

// translated is the uid by which the node knows the pod that the API knows by another.
func (r *Runner) translated(name types.NamespacedName, uid types.UID) types.UID {
	mirrors, _ := r.source.mirrors()
	if m := mirrors[name]; m != nil && m.UID == uid {
		return types.UID(m.Annotations[corev1.MirrorPodAnnotationKey])
	}
	return uid
}

// showLocked tells the workers of static pods of their mirrors.
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
