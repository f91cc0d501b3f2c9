// How the tests find what belongs to a kind.

package kinds

import (
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	eventsv1 "k8s.io/api/events/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// kindOf is the kind that is right, or the zero Kind.
func kindOf(right func(k *Kind) bool) Kind {
	all := All()
	if i := slices.IndexFunc(all, func(k Kind) bool { return right(&k) }); i >= 0 {
		return all[i]
	}
	return Kind{}
}

// For are the rules of a kind, stored or not.
func For(gk schema.GroupKind) Rules {
	switch gk {
	case schema.GroupKind{Kind: "Binding"}:
		return Rules{Create: create(validatePodBinding)}.complete()
	}
	return kindOf(func(k *Kind) bool { return k.GVK().GroupKind() == gk }).rules.complete()
}

// NameFunc is the rule for the names of a kind.
func NameFunc(gk schema.GroupKind) apivalidation.ValidateNameFunc {
	k := kindOf(func(k *Kind) bool { return k.GVK().GroupKind() == gk })
	return newStrategy(runtime.NewScheme(), &k).name
}

// TableOf is the convertor of a resource, stored or not; nil if it has no columns of its own.
func TableOf(gr schema.GroupResource) rest.TableConvertor {
	switch gr {
	case schema.GroupResource{Group: eventsv1.GroupName, Resource: "events"}:
		return eventTable(gr)
	case schema.GroupResource{Group: autoscalingv1.GroupName, Resource: "scales"}:
		return scaleTable(gr)
	case metricsv1beta1.Resource("nodes"), metricsv1beta1.Resource("pods"):
		return UsageTable(gr)
	}
	if k := kindOf(func(k *Kind) bool { return k.gr() == gr }); k.table != nil {
		return k.table(gr)
	}
	return nil
}
