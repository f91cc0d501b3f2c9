// Features that are behind a gate, and which of the library's are off.

package apiserver

import (
	"sync"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// TaintTolerationComparisonOperators lets pods tolerate taints by Lt and Gt.
const TaintTolerationComparisonOperators featuregate.Feature = "TaintTolerationComparisonOperators"

// FeatureGates are the gates that Config.FeatureGates has. Names and defaults are Kubernetes'.
func FeatureGates() featuregate.MutableFeatureGate {
	g := featuregate.NewFeatureGate()
	_ = g.Add(map[featuregate.Feature]featuregate.FeatureSpec{ // it fails only if they are there
		TaintTolerationComparisonOperators: {PreRelease: featuregate.Alpha},
	})
	return g
}

// setGates is called before the first cache is made. Each write to a kind would leave a
// snapshot of it behind until the store is compacted, so that the further pages of a list
// need not be read from the store. A node writes its Lease every ten seconds, and lists of
// that many pages are rare.
var setGates = sync.OnceValue(func() error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.ListFromCacheSnapshot): false})
})
