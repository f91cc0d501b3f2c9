package loop

// The index of pods by node, which several controllers share.

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// NodeNameIndex is the name of the index that PodsByNode keeps: pods by the node
// they are bound to. Pods that are bound to none are not in it.
const NodeNameIndex = "spec.nodeName"

// PodsByNode returns a func that looks up the pods bound to a node in the cache
// of inf, in no particular order. The pods are the cache's own: they must not be
// changed. inf gets the index unless another controller has given it one; calls
// for the same informer must not overlap. It is an error if inf has stopped.
func PodsByNode(inf cache.SharedIndexInformer) (func(node string) ([]*corev1.Pod, error), error) {
	if _, there := inf.GetIndexer().GetIndexers()[NodeNameIndex]; !there {
		if err := inf.AddIndexers(cache.Indexers{NodeNameIndex: nodeName}); err != nil {
			return nil, fmt.Errorf("index pods by node: %w", err)
		}
	}
	return func(node string) ([]*corev1.Pod, error) {
		objs, err := inf.GetIndexer().ByIndex(NodeNameIndex, node)
		if err != nil {
			return nil, fmt.Errorf("look up the pods of node %s: %w", node, err)
		}
		pods := make([]*corev1.Pod, 0, len(objs))
		for _, obj := range objs {
			if p, ok := obj.(*corev1.Pod); ok {
				pods = append(pods, p)
			}
		}
		return pods, nil
	}, nil
}

func nodeName(obj any) ([]string, error) {
	if p, ok := obj.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		return []string{p.Spec.NodeName}, nil
	}
	return nil, nil
}
