package children

// Watch says whose children have changed.

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// Watch calls add with the key (namespace/name) of each owner that a child belongs
// to, and again whenever the child changes. Of an object that belongs to nobody it
// asks matching who might adopt it. Both must return at once. stop ends the
// calls; the informer goes on for others.
func (c *Children[T]) Watch(add func(key string), matching func(T) []string) (stop func(), err error) {
	tell := func(child T) bool {
		ref := metav1.GetControllerOfNoCopy(child)
		if ref != nil && c.isKind(ref) {
			add(child.GetNamespace() + "/" + ref.Name)
		}
		return ref != nil
	}
	offer := func(child T) {
		if child.GetDeletionTimestamp() != nil {
			return
		}
		for _, key := range matching(child) {
			add(key)
		}
	}
	return loop.Handle(c.cfg.Informer, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if child, ok := obj.(T); ok && !tell(child) {
				offer(child)
			}
		},
		UpdateFunc: func(was, is any) {
			old, ok := was.(T)
			child, also := is.(T)
			if !ok || !also || old.GetResourceVersion() == child.GetResourceVersion() && child.GetResourceVersion() != "" {
				return
			}
			owned := tell(old)
			if !tell(child) && (owned || !maps.Equal(old.GetLabels(), child.GetLabels())) {
				offer(child)
			}
		},
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if child, ok := obj.(T); ok {
				tell(child)
			}
		},
	})
}

func (c *Children[T]) isKind(ref *metav1.OwnerReference) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && ref.Kind == c.cfg.Kind.Kind && gv.Group == c.cfg.Kind.Group
}

// Matching returns the keys (namespace/name) of those owners that a child with the
// labels of child may belong to.
func Matching[O Object](owners []O, selector func(O) *metav1.LabelSelector, child metav1.Object) []string {
	var keys []string
	for _, o := range owners {
		s, err := metav1.LabelSelectorAsSelector(selector(o))
		if err == nil && !s.Empty() && s.Matches(labels.Set(child.GetLabels())) {
			keys = append(keys, o.GetNamespace()+"/"+o.GetName())
		}
	}
	return keys
}
