package children

// Watch says whose pods have changed.

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Watch calls add with the key (namespace/name) of each owner that a pod belongs
// to, and again whenever the pod changes. Of a pod that belongs to nobody it
// asks matching who might adopt it. Both must return at once. stop ends the
// calls; the informer goes on for others.
func (p *Pods) Watch(add func(key string), matching func(*corev1.Pod) []string) (stop func(), err error) {
	tell := func(pod *corev1.Pod) bool {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref != nil && p.isKind(ref) {
			add(pod.Namespace + "/" + ref.Name)
		}
		return ref != nil
	}
	offer := func(pod *corev1.Pod) {
		if pod.DeletionTimestamp != nil {
			return
		}
		for _, key := range matching(pod) {
			add(key)
		}
	}
	return loop.Handle(p.cfg.Pods, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok && !tell(pod) {
				offer(pod)
			}
		},
		UpdateFunc: func(was, is any) {
			old, ok := was.(*corev1.Pod)
			pod, also := is.(*corev1.Pod)
			if !ok || !also || old.ResourceVersion == pod.ResourceVersion && pod.ResourceVersion != "" {
				return
			}
			owned := tell(old)
			if !tell(pod) && (owned || !maps.Equal(old.Labels, pod.Labels)) {
				offer(pod)
			}
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				tell(pod)
			}
		},
	})
}

func (p *Pods) isKind(ref *metav1.OwnerReference) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && ref.Kind == p.cfg.Kind.Kind && gv.Group == p.cfg.Kind.Group
}
