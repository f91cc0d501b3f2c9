package disruption

// How many pods a custom resource wants, which its scale subresource tells.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxScales is how many scales of custom resources are read at most for one budget.
	maxScales = 100
	// scaleTimeout bounds what is asked for one of them: an extension server may not answer.
	scaleTimeout = 5 * time.Second
)

// others is what the sums of one budget have read of custom resources.
type others struct {
	scales int
	kinds  map[string][]metav1.APIResource // by API version
}

// ofOther is of for kinds that are not watched here.
func (s *scales) ofOther(ctx context.Context, read *others, ns string, ref *metav1.OwnerReference) (types.UID, int, error) {
	if read.scales++; read.scales > maxScales {
		return "", 0, fmt.Errorf("more than %d custom resources control pods of the budget", maxScales)
	}
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	gvr, err := s.scalable(ctx, read, ref)
	if err != nil {
		return "", 0, err
	}
	scale, err := s.custom.Resource(gvr).Namespace(ns).Get(ctx, ref.Name, metav1.GetOptions{}, "scale")
	if apierrors.IsNotFound(err) || err == nil && scale.GetUID() != ref.UID {
		return "", 0, missing(ref)
	}
	if err != nil {
		return "", 0, fmt.Errorf("read the scale of its controller, %s %s: %w", ref.Kind, ref.Name, err)
	}
	n, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas") // none means zero
	if err != nil || n < 0 || n > math.MaxInt32 {
		return "", 0, fmt.Errorf("the scale of its controller, %s %s, has no number of replicas", ref.Kind, ref.Name)
	}
	return ref.UID, int(n), nil
}

// scalable returns the resource of ref's kind, which has a scale.
func (s *scales) scalable(ctx context.Context, read *others, ref *metav1.OwnerReference) (schema.GroupVersionResource, error) {
	var none schema.GroupVersionResource
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return none, fmt.Errorf("read its controller reference: %w", err)
	}
	kinds, known := read.kinds[ref.APIVersion]
	if !known && s.custom != nil {
		list, err := s.discovery.ServerResourcesForGroupVersionWithContext(ctx, ref.APIVersion)
		if err != nil {
			return none, fmt.Errorf("look up the kind of its controller, %s %s: %w", ref.Kind, ref.Name, err)
		}
		kinds = list.APIResources
		read.kinds[ref.APIVersion] = kinds
	}
	for i := range kinds {
		name := kinds[i].Name
		if kinds[i].Kind == ref.Kind && !strings.Contains(name, "/") && slices.ContainsFunc(kinds, func(r metav1.APIResource) bool {
			return r.Name == name+"/scale" && r.Group == autoscalingv1.GroupName && r.Version == "v1"
		}) {
			return gv.WithResource(name), nil
		}
	}
	return none, fmt.Errorf("its controller, %s %s, is of a kind that does not say how many pods it wants", ref.Kind, ref.Name)
}
