// Example: a volume with the content of a ConfigMap.

package volumes_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/volumes"
)

// objects reads one ConfigMap. A node reads the API server's.
type objects struct {
	volumes.Objects
	data map[string]string
}

func (o *objects) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	return &corev1.ConfigMap{Data: o.data}, nil
}

// Setup brings a volume up to date.
func ExampleSet() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // nothing depends on it
	source := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"},
		Spec: corev1.PodSpec{
			Volumes:    []corev1.Volume{{Name: "settings", VolumeSource: source}},
			Containers: []corev1.Container{{Name: "web", VolumeMounts: []corev1.VolumeMount{{Name: "settings", MountPath: "/settings"}}}},
		},
	}
	api := &objects{}
	set := volumes.New(dir, api, nil, nil)
	for _, color := range []string{"red", "blue"} {
		api.data = map[string]string{"color": color}
		if err := set.Setup(context.Background(), pod, downward.Facts{NodeName: "node-1"}); err != nil {
			log.Fatal(err)
		}
		base, _, err := set.Resolve(pod, "settings", "") // what the runtime mounts
		if err != nil {
			log.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join(base, "color"))
		fmt.Println(string(content), err)
	}
	fmt.Println(set.TearDown(pod.UID))
	// Output:
	// red <nil>
	// blue <nil>
	// <nil>
}
