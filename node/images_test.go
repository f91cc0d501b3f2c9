package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestImagesOf(t *testing.T) {
	image := func(size int64, names ...string) runtime.Image { return runtime.Image{Names: names, SizeBytes: size} }
	long := strings.Repeat("x", maxImageName+1)
	all := []runtime.Image{
		image(1, "b"), image(3, "c1", "c2", "c3", "c4", "c5", "c6"), image(1, "a"), image(9, long), image(8), image(7, long, "short"), image(6, ""),
	}
	for limit, want := range map[int]string{
		50: "7 [short] 3 [c1 c2 c3 c4 c5] 1 [a] 1 [b]",
		2:  "7 [short] 3 [c1 c2 c3 c4 c5]",
		0:  "",
		-1: "7 [short] 3 [c1 c2 c3 c4 c5] 1 [a] 1 [b]",
	} {
		var got []string
		for _, i := range imagesOf(all, limit) {
			got = append(got, fmt.Sprint(i.SizeBytes, " ", i.Names))
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("limit %d: %q, want %q", limit, s, want)
		}
	}
}

// TestImagesAreReported: the status has what the runtime has, as many as it may.
func TestImagesAreReported(t *testing.T) {
	for limit, want := range map[*int]string{nil: "[large] [small]", ptr.To(1): "[large]", ptr.To(0): ""} {
		inWorld(t, func(w *world) {
			w.rt = memory.New(memory.Options{Images: []runtime.Image{{Names: []string{"small"}, SizeBytes: 1}, {Names: []string{"large"}, SizeBytes: 2}}})
			w.cfg.Runtime, w.cfg.MaxImages = w.rt, limit
		}, func(w *world) {
			advance(15 * time.Second)
			var got []string
			for _, i := range w.node().Status.Images {
				got = append(got, fmt.Sprint(i.Names))
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("status lists %q, want %q", s, want)
			}
		})
	}
}
