// What is said when a cluster does not come up.

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/node"
)

func TestNotReadyIsOneLine(t *testing.T) {
	cause := errors.New("interrupt signal received")
	for _, tt := range []struct {
		last error
		want string
	}{
		{nil, "2 of 3 nodes are not Ready: interrupt signal received; see LOG"},
		{context.Canceled, "2 of 3 nodes are not Ready: interrupt signal received; see LOG"},
		{errors.New("refused"), "2 of 3 nodes are not Ready: interrupt signal received; last: refused; see LOG"},
	} {
		if err := notReady(2, 3, cause, tt.last, "LOG"); err.Error() != tt.want || !errors.Is(err, cause) {
			t.Errorf("last %v: %q, want %q", tt.last, err, tt.want)
		}
	}
}

// Flags that cannot work leave nothing behind, and a directory that is not Hawser's
// stays as it is.
func TestRefusedClusterMakesNothing(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "dir")
	for want, cfg := range map[string]clusterConfig{
		"--nodes -1":                    {dir: dir, nodes: -1, port: 6443},
		"--port 0":                      {dir: dir},
		"--server-arg: unknown flag":    {dir: dir, port: 6443, serverArgs: []string{"--nonsense"}},
		"--server-arg: --detach-window": {dir: dir, port: 6443, serverArgs: []string{"--detach-window=-1s"}},
		"--dir: " + parent + " is open": {dir: parent, port: 6443},
		"--dir: /tmp is open":           {dir: "/tmp", port: 6443},
	} {
		before, err := os.Stat(cfg.dir)
		c, serr := startCluster(t.Context(), cfg)
		if serr == nil || !strings.HasPrefix(serr.Error(), want) {
			t.Errorf("got %v, want %s", serr, want)
		}
		if c != nil {
			t.Errorf("%s: started", want)
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("%s: made %v, %v", want, left, err)
		}
		if err != nil {
			continue
		}
		if after, err := os.Stat(cfg.dir); err != nil || after.Mode() != before.Mode() {
			t.Errorf("%s: mode %v became %v, %v", want, before.Mode(), after.Mode(), err)
		}
	}
}

// The nodes of `up` share the disk of the machine: that it is nearly full is no reason to run
// no pod.
func TestUpKnowsNoDiskPressure(t *testing.T) {
	thresholds, err := node.ParseThresholds(upEviction)
	if err != nil || len(thresholds) == 0 {
		t.Fatalf("%v, %v", thresholds, err)
	}
	for _, h := range thresholds {
		if h.Signal != node.MemoryAvailable {
			t.Errorf("%s counts", h.Signal)
		}
	}
}
