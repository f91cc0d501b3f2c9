// Statuses that the API server refuses for good.

package pods

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestRejectedStatus: a pod whose status is refused for good is removed once it is deleted, and the
// log says why it is not shown. One whose status may be written later is kept until it was.
func TestRejectedStatus(t *testing.T) {
	large := apierrors.NewRequestEntityTooLargeError("limit is 3145728")
	for name, tc := range map[string]struct {
		err      error
		takes    int // bytes of a patch
		gone     bool
		rejected int // how often it is said
	}{
		"too large":           {large, 300, true, 1},
		"always too large":    {large, 0, true, 1},
		"busy, not too large": {apierrors.NewServiceUnavailable("no leader"), 0, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, memory.Options{}, func(w *world) {
				var on atomic.Bool
				w.hopeless = tc.takes == 0
				w.api.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, apiruntime.Object, error) {
					return on.Load() && len(a.(k8stesting.PatchAction).GetPatch()) > tc.takes, nil, tc.err
				})
				w.create(newPod("a", nil))
				advance(time.Minute)
				on.Store(true)
				w.remove("a", 30)
				advance(5 * time.Minute)
				if gone := w.find("default", "a") == nil; gone != tc.gone {
					t.Errorf("gone: %t, want %t", gone, tc.gone)
				}
				if n := len(w.logged("refuses the pod's status")); n != tc.rejected {
					t.Errorf("it was said %d times, want %d", n, tc.rejected)
				}
				on.Store(false)
				advance(5 * time.Minute)
				if w.find("default", "a") != nil {
					t.Error("it is there")
				}
			})
		})
	}
}

// TestStatusIsBounded: messages of many containers, and long names of images, fit into a status.
func TestStatusIsBounded(t *testing.T) {
	pod := newPod("a", nil)
	var facts []fact
	for range 100 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "c", Image: strings.Repeat("i", 10_000)})
	}
	for i := range pod.Spec.Containers {
		attempt := &runtime.ContainerStatus{
			ID: "x", State: runtime.Exited, Image: pod.Spec.Containers[i].Image, Message: strings.Repeat("ü", maxTermination/2), StartedAt: time.Now(), EndedAt: time.Now(),
		}
		facts = append(facts, fact{spec: &pod.Spec.Containers[i], kind: mainContainer, newest: attempt})
	}
	messages := 0
	for i := range facts {
		cs := containerStatus(&facts[i], situation{pod: pod, facts: facts}, intent{}, surroundings{})
		if len(cs.Image) > maxStatusImage || len(cs.ImageID) > maxStatusImage {
			t.Fatalf("images of %d and %d bytes", len(cs.Image), len(cs.ImageID))
		}
		m := cs.State.Terminated.Message
		if !strings.HasPrefix(m, "üü") || strings.ToValidUTF8(m, "") != m {
			t.Fatalf("message %q", m)
		}
		messages += len(m)
	}
	if messages > maxStatusMessages {
		t.Errorf("messages of %d bytes", messages)
	}
}
