package process

import (
	"strings"
	"testing"

	"github.com/hawser-project/hawser/node/runtime"
)

// TestOptionalMountFails: an optional mount is not left out for what is wrong with the pod's other mounts.
func TestOptionalMountFails(t *testing.T) {
	withNamespaces(t, func(t *testing.T, iso Isolation) {
		g := newRig(t, Config{Isolation: iso})
		c := g.container("c", "true")
		c.Mounts = []runtime.Mount{
			{HostPath: t.TempDir(), ContainerPath: "/outer", ReadOnly: true},
			{HostPath: t.TempDir(), ContainerPath: "/outer/no/place", Optional: true},
		}
		if _, err := g.Start(g.ctx, c); err == nil || !strings.Contains(err.Error(), `at "/outer/no/place": `) || !strings.Contains(err.Error(), "read-only file system") {
			t.Errorf("started: %v", err)
		}
	})
}
