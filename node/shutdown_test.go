package node

// Tests of a node whose machine shuts down.

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func (w *world) wantReady(want string) {
	w.t.Helper()
	for _, c := range w.node().Status.Conditions {
		if c.Type == corev1.NodeReady {
			if got := string(c.Status) + " " + c.Reason + " " + c.Message; got != want {
				w.t.Errorf("Ready is %s, want %s", got, want)
			}
			return
		}
	}
	w.t.Error("no Ready condition")
}

// TestShutdownIsInTheStatus: the API knows at once, not at the next update.
func TestShutdownIsInTheStatus(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		advance(time.Minute + time.Second)
		w.wantReady("True KubeletReady kubelet is posting ready status")
		w.n.shutDown(w.t.Context())
		advance(100 * time.Millisecond)
		w.wantReady("False KubeletNotReady node is shutting down")
		if !w.sawEvent("Shutdown manager detected shutdown event") {
			t.Error("no event of the shutdown")
		}
		w.n.resume()
		advance(100 * time.Millisecond)
		w.wantReady("True KubeletReady kubelet is posting ready status")
		if !w.sawEvent("Shutdown manager detected shutdown cancellation") {
			t.Error("no event of the cancellation")
		}
	})
}
