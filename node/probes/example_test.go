// Example: one attempt of a probe.

package probes_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/probes"
)

// The exit code of a command is the verdict.
func ExampleOnce() {
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/ready"}}}, TimeoutSeconds: 1}
	for exit := range 2 {
		ok, _, err := probes.Once(context.Background(), p, probes.Target{
			Exec: func(_ context.Context, argv []string, out *probes.Output) (int, error) {
				_, _ = fmt.Fprintln(out, argv[0], "says") // never fails
				return exit, nil
			},
		})
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}
