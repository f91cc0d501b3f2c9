package resourcequota

// What makes room in a quota.

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/loop"
	"github.com/hawser-project/hawser/controlplane/quota"
)

// watch has quotas counted that are new or changed, and those for which an object has
// changed that they count. New objects have been charged already.
func (r *run) watch() (stop func(), err error) {
	var watches loop.Watches
	watches.Add(loop.WatchIf(r.quotas, func(was, is *corev1.ResourceQuota) bool {
		return !quotav1.Equals(was.Spec.Hard, is.Spec.Hard) || !quotav1.Equals(is.Spec.Hard, is.Status.Hard)
	}, r.queue.Add))
	for i, inf := range []cache.SharedIndexInformer{r.pods, r.services, r.claims} {
		e := r.own[i]
		matches := func(names []corev1.ResourceName) bool { return len(e.MatchingResources(names)) > 0 }
		watches.Add(loop.Handle(inf, cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(was, is any) {
				if r.any(is) && changed(e, was, is) {
					r.again(is, matches)
				}
			},
			DeleteFunc: func(obj any) { r.again(obj, matches) },
		}))
	}
	return watches.All()
}

// changed tells whether an object takes something else than before, or counts against
// other quotas.
func changed(e quotav1.Evaluator, was, is any) bool {
	a, ok := was.(runtime.Object)
	b, also := is.(runtime.Object)
	if !ok || !also {
		return true
	}
	if p, isPod := a.(*corev1.Pod); isPod {
		if now, isPod := b.(*corev1.Pod); isPod && !ptr.Equal(p.Spec.ActiveDeadlineSeconds, now.Spec.ActiveDeadlineSeconds) {
			return true
		}
	}
	before, err := e.Usage(a)
	after, bad := e.Usage(b)
	return err != nil || bad != nil || !quotav1.Equals(before, after)
}

// any tells whether the namespace of obj has a quota.
func (r *run) any(obj any) bool {
	m, err := meta.Accessor(obj)
	if err != nil {
		return false
	}
	keys, err := r.quotas.GetIndexer().IndexKeys(cache.NamespaceIndex, m.GetNamespace())
	return err == nil && len(keys) > 0
}

// again has the quotas of obj's namespace counted that bound what matches.
func (r *run) again(obj any, matches func([]corev1.ResourceName) bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	found, err := r.quotas.GetIndexer().ByIndex(cache.NamespaceIndex, m.GetNamespace())
	if err != nil {
		return // the index exists
	}
	for _, f := range found {
		if q, ok := f.(*corev1.ResourceQuota); ok && matches(quotav1.ResourceNames(q.Spec.Hard)) {
			r.queue.Add(q.Namespace + "/" + q.Name)
		}
	}
}

// inNamespace lists from the cache of inf.
func inNamespace(inf cache.SharedIndexInformer) quota.Lister {
	return func(namespace string) ([]runtime.Object, error) {
		found, err := inf.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
		out := make([]runtime.Object, 0, len(found))
		for _, f := range found {
			if o, ok := f.(runtime.Object); ok {
				out = append(out, o)
			}
		}
		return out, err
	}
}
