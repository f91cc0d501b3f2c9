package loop

// Indexes of what informers have, which several controllers share.

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// Index returns a func that looks up objects of type T in the cache of inf by the key
// that key has for them, in no particular order. Objects for which it is empty are not
// found. The objects are the cache's own: they must not be changed. inf gets the index
// of this name unless another controller has given it one, which is then used: whoever
// uses a name has the same key. Calls for the same informer must not overlap. It is an
// error if inf has stopped.
func Index[T any](inf cache.SharedIndexInformer, name string, key func(T) string) (func(string) ([]T, error), error) {
	if _, there := inf.GetIndexer().GetIndexers()[name]; !there {
		keys := func(obj any) ([]string, error) {
			if o, is := obj.(T); is {
				if k := key(o); k != "" {
					return []string{k}, nil
				}
			}
			return nil, nil
		}
		if err := inf.AddIndexers(cache.Indexers{name: keys}); err != nil {
			return nil, fmt.Errorf("index by %s: %w", name, err)
		}
	}
	return func(key string) ([]T, error) {
		objs, err := inf.GetIndexer().ByIndex(name, key)
		if err != nil {
			return nil, fmt.Errorf("look up by %s %s: %w", name, key, err)
		}
		found := make([]T, 0, len(objs))
		for _, obj := range objs {
			if o, is := obj.(T); is {
				found = append(found, o)
			}
		}
		return found, nil
	}, nil
}

// PodsByNode returns a func that looks up the pods bound to a node, as Index does.
func PodsByNode(inf cache.SharedIndexInformer) (func(node string) ([]*corev1.Pod, error), error) {
	return Index(inf, "spec.nodeName", func(p *corev1.Pod) string { return p.Spec.NodeName })
}

// SlicesByService returns a func that looks up the EndpointSlices of a Service, as Index
// does, that by manages, according to their label, or all if by is empty.
func SlicesByService(inf cache.SharedIndexInformer, by string) (func(namespace, service string) ([]*discoveryv1.EndpointSlice, error), error) {
	find, err := Index(inf, discoveryv1.LabelServiceName, func(s *discoveryv1.EndpointSlice) string {
		if s.Labels[discoveryv1.LabelServiceName] == "" {
			return ""
		}
		return s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
	})
	if err != nil {
		return nil, err
	}
	return func(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
		found, err := find(namespace + "/" + service)
		if err != nil || by == "" {
			return found, err
		}
		managed := found[:0]
		for _, s := range found {
			if s.Labels[discoveryv1.LabelManagedBy] == by {
				managed = append(managed, s)
			}
		}
		return managed, nil
	}, nil
}
