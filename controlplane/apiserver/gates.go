package apiserver

// Which of the library's features are off.

import (
	"sync"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// setGates is called before the first cache is made. Each write to a kind would leave a
// snapshot of it behind until the store is compacted, so that the further pages of a list
// need not be read from the store. A node writes its Lease every ten seconds, and lists of
// that many pages are rare.
var setGates = sync.OnceValue(func() error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.ListFromCacheSnapshot): false})
})
