// Example: what a pod takes of a quota.

package quota_test

import (
	"fmt"
	"log"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hawser-project/hawser/controlplane/quota"
)

// The requests of all containers are added up.
func ExamplePods() {
	needs := func(cpu string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{needs("500m"), needs("250m")}}}
	usage, err := quota.Pods(nil).Usage(pod) // the API server lists nothing
	if err != nil {
		log.Fatal(err)
	}
	var lines []string
	for name, amount := range usage {
		lines = append(lines, fmt.Sprintf("%s %s", name, amount.String()))
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
	// Output:
	// count/pods 1
	// cpu 750m
	// pods 1
	// requests.cpu 750m
}
