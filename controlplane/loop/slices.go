package loop

// The index of EndpointSlices by their Service, which several controllers share.

import (
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// ServiceNameIndex is the name of the index that SlicesByService keeps: EndpointSlices by
// the Service that their label names. Slices without the label are not in it.
const ServiceNameIndex = discoveryv1.LabelServiceName

// SlicesByService returns a func that looks up the EndpointSlices of a Service that by
// manages, according to their label, or all if by is empty, in the cache of inf, in no
// particular order. The slices are the cache's own: they must not be changed. inf gets the index unless another
// controller has given it one; calls for the same informer must not overlap. It is an
// error if inf has stopped.
func SlicesByService(inf cache.SharedIndexInformer, by string) (func(namespace, service string) ([]*discoveryv1.EndpointSlice, error), error) {
	if _, there := inf.GetIndexer().GetIndexers()[ServiceNameIndex]; !there {
		if err := inf.AddIndexers(cache.Indexers{ServiceNameIndex: serviceName}); err != nil {
			return nil, fmt.Errorf("index endpoint slices by service: %w", err)
		}
	}
	return func(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
		objs, err := inf.GetIndexer().ByIndex(ServiceNameIndex, namespace+"/"+service)
		if err != nil {
			return nil, fmt.Errorf("look up the endpoint slices of service %s/%s: %w", namespace, service, err)
		}
		slices := make([]*discoveryv1.EndpointSlice, 0, len(objs))
		for _, obj := range objs {
			if s, ok := obj.(*discoveryv1.EndpointSlice); ok && (by == "" || s.Labels[discoveryv1.LabelManagedBy] == by) {
				slices = append(slices, s)
			}
		}
		return slices, nil
	}, nil
}

func serviceName(obj any) ([]string, error) {
	if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] != "" {
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
	}
	return nil, nil
}
