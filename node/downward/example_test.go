// Example: what a pod asks about itself.

package downward_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/downward"
)

// The paths are those of the Kubernetes downward API.
func ExampleField() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "shop"}}}
	facts := downward.Facts{HostIPs: []string{"192.0.2.1"}}
	for _, path := range []string{"metadata.name", "metadata.labels['app']", "metadata.labels['tier']", "status.hostIP"} {
		value, err := downward.Field(pod, facts, path)
		fmt.Printf("%q %v\n", value, err)
	}
	// Output:
	// "web" <nil>
	// "shop" <nil>
	// "" <nil>
	// "192.0.2.1" <nil>
}
