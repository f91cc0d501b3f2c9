// Package quota measures what objects take of a ResourceQuota, as Kubernetes does.
//
// An evaluator belongs to one kind. It says which requests cost something, which
// quotas an object counts against and how much it takes. Pods, services and claims
// have evaluators of their own. Of every other kind only the objects are counted, as
// count/RESOURCE.GROUP; four kinds have an older name for that besides.
//
// The API server asks evaluators about one object at a time, before it stores it. The
// resourcequota-controller has them add up all objects of a namespace. Both go by the
// same functions, or a quota would be charged one amount and be found to hold another.
//
// What it is not: nothing is refused or written here.
package quota

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// A Lister lists the objects of one kind in a namespace. The API server, which asks
// about single objects, needs none.
type Lister = generic.ListFuncByNamespace

// aliases are the older names for the number of objects of a kind.
var aliases = map[schema.GroupResource]corev1.ResourceName{
	{Resource: "configmaps"}:             corev1.ResourceConfigMaps,
	{Resource: "resourcequotas"}:         corev1.ResourceQuotas,
	{Resource: "replicationcontrollers"}: corev1.ResourceReplicationControllers,
	{Resource: "secrets"}:                corev1.ResourceSecrets,
}

// Ignored are kinds of which objects are stored and never counted: they come and go in
// numbers.
func Ignored() []schema.GroupResource {
	return []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}
}

// ForAdmission are the evaluators of requests. The library makes those of the kinds
// that are only counted by itself, but for the older names.
func ForAdmission() []quota.Evaluator {
	all := []quota.Evaluator{Pods(nil), Services(nil), Claims(nil)}
	for gr := range aliases {
		all = append(all, Count(gr, nil))
	}
	return all
}

// Count is the evaluator of a kind of which the objects are counted and nothing else.
func Count(gr schema.GroupResource, list Lister) quota.Evaluator {
	return generic.NewObjectCountEvaluator(gr, list, aliases[gr])
}

// Counted returns the kind whose objects the resource counts, if it counts objects of a
// kind without an evaluator of its own.
func Counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	for gr, alias := range aliases {
		if name == alias {
			return gr, true
		}
	}
	kind, ok := strings.CutPrefix(string(name), "count/")
	if !ok {
		return schema.GroupResource{}, false
	}
	gr := schema.ParseGroupResource(kind)
	switch gr {
	case corev1.Resource("pods"), corev1.Resource("services"), corev1.Resource("persistentvolumeclaims"):
		return schema.GroupResource{}, false
	}
	for _, ignored := range Ignored() {
		if gr == ignored {
			return schema.GroupResource{}, false
		}
	}
	return gr, true
}

// objects is the name for the number of stored objects of a kind of the core group.
func objects(plural string) corev1.ResourceName {
	return generic.ObjectCountQuotaResourceNameFor(corev1.Resource(plural))
}

func number(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// unscoped is the part of an evaluator whose objects no scope selects and that demands
// nothing of them.
type unscoped struct{}

func (unscoped) Constraints([]corev1.ResourceName, runtime.Object) error { return nil }

func (unscoped) MatchingScopes(runtime.Object, []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

func (unscoped) UncoveredQuotaScopes(_, _ []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

// as is obj if it is a T.
func as[T any](obj runtime.Object) (*T, error) {
	o, ok := any(obj).(*T)
	if !ok {
		return nil, fmt.Errorf("measure for quota: not a %T: %T", o, obj)
	}
	return o, nil
}
