// Example: a template is recorded and read back.

package revision_test

import (
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/hawser-project/hawser/controlplane/revision"
)

// A revision has a patch that contains the template.
func ExampleData() {
	t := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}}}
	data, err := revision.Data(t)
	if err != nil {
		log.Fatal(err)
	}
	all := []*revision.Revision{{Revision: 1, Data: runtime.RawExtension{Raw: data}}}
	again, err := revision.Template(all[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(again.Spec.Containers[0].Image)
	for _, image := range []string{"web:1", "web:2"} {
		t.Spec.Containers[0].Image = image
		same, err := revision.Same(all, t)
		fmt.Println(image, len(same), err)
	}
	// Output:
	// web:1
	// web:1 1 <nil>
	// web:2 0 <nil>
}
