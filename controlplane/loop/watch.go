package loop

// Watch feeds a queue from an informer.

import (
	"fmt"

	"k8s.io/client-go/tools/cache"
)

// Watch calls add with the key (namespace/name, or name) of every object of inf,
// and again whenever one is added, changed or deleted. add must return at once.
// stop ends the calls; the informer goes on for others.
func Watch(inf cache.SharedIndexInformer, add func(key string)) (stop func(), err error) {
	seen := func(obj any) {
		if key, bad := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); bad == nil {
			add(key)
		}
	}
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: seen,
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return func() { _ = inf.RemoveEventHandler(reg) }, nil
}
