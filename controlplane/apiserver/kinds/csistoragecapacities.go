// The kind CSIStorageCapacity.

package kinds

import (
	storagev1 "k8s.io/api/storage/v1"
)

func csiStorageCapacities() Kind {
	return of[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](storagev1.SchemeGroupVersion, "CSIStorageCapacity", "csistoragecapacities", "csistoragecapacity", Kind{
		conditional: true,
	})
}
