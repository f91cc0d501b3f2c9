package node

// Tests of a node whose machine shuts down.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/pods"
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

// TestShutdownTimes: when a shutdown begins and ends is shown, and kept in a file for the
// agent that starts after it.
func TestShutdownTimes(t *testing.T) {
	dir := t.TempDir()
	metrics := prometheus.NewRegistry()
	shown := func() string {
		t.Helper()
		all, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, f := range all {
			if name, ok := strings.CutPrefix(f.GetName(), "kubelet_graceful_shutdown_"); ok {
				out = append(out, fmt.Sprintf("%s=%.0f", name, f.Metric[0].Gauge.GetValue()))
			}
		}
		return strings.Join(out, " ")
	}
	inWorld(t, func(w *world) { w.cfg.DataDir, w.cfg.Registerer = dir, metrics }, func(w *world) {
		if got, want := shown(), "end_time_seconds=0 start_time_seconds=0"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		began := time.Now()
		w.n.shutDown(w.t.Context())
		want := fmt.Sprintf("end_time_seconds=%d start_time_seconds=%d", time.Now().Unix(), began.Unix())
		if got := shown(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		w.n.metrics.shutdown.set(shutdownTimes{})
		w.n.recallShutdown()
		if got := shown(); got != want {
			t.Errorf("after the boot %s, want %s", got, want)
		}
	})
	file := filepath.Join(dir, "graceful_node_shutdown_state")
	if text, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(text), `{"startTime":"`) {
		t.Errorf("%s, %v", text, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readShutdown(dir); err == nil || got != (shutdownTimes{}) {
		t.Errorf("a broken file says %+v", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".graceful*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
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

// TestNoGrace: without any time for pods there is no lock, and nothing to wait for.
func TestNoGrace(t *testing.T) {
	none := []pods.Phase{{}, {Priority: pods.CriticalPriority}}
	inWorld(t, func(w *world) { w.cfg.Shutdown = none }, func(w *world) {
		if err := w.n.watchShutdown(w.t.Context()); err != nil {
			t.Error(err)
		}
	})
}
