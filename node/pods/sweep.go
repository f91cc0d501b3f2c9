// This file removes what nobody takes care of any more.

package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// sweep makes workers for pods that the runtime holds something of and the API
// does not list, so that they are stopped and removed, and removes directories of
// pods that are gone. It is called only after the API has been listed.
func (r *Runner) sweep(ctx context.Context, wg *sync.WaitGroup) {
	traces, err := r.trace(ctx)
	if err != nil {
		r.log.Warn("cannot look for leftovers, will try again", "err", err)
		return
	}
	pods, _ := r.source.snapshot()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traces = traces
	for uid, id := range r.traces {
		if r.ended[uid] {
			delete(r.traces, uid) // since they were listed
			continue
		}
		if pods[uid] != nil || r.workers[uid] != nil {
			continue
		}
		r.log.Info("stopping a pod that the server does not know", "namespace", id.Namespace, "pod", id.Name, "uid", string(uid))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name, UID: uid}}
		r.startLocked(ctx, wg, newWorker(r, pod, workerOptions{admitted: true, gone: true}))
	}
	keep := func(uid types.UID) bool { return pods[uid] != nil || r.workers[uid] != nil }
	if err := r.removeLeftovers(keep); err != nil {
		r.log.Warn("cannot remove leftovers, will try again", "err", err)
	}
}

// removeLeftovers removes the directories of pods that keep does not want.
func (r *Runner) removeLeftovers(keep func(types.UID) bool) error {
	var errs []error
	dirs, err := readDirs(r.places.pods())
	errs = append(errs, err)
	for _, name := range dirs {
		if uid := types.UID(name); !keep(uid) {
			if err = r.volumes.TearDown(uid); err == nil {
				err = os.RemoveAll(r.places.pod(uid))
			}
			errs = append(errs, err)
		}
	}
	dirs, err = readDirs(r.places.logs())
	errs = append(errs, err)
	for _, name := range dirs {
		// The uid has no underscore, and neither have the other two parts.
		if uid := types.UID(name[strings.LastIndexByte(name, '_')+1:]); !keep(uid) {
			errs = append(errs, os.RemoveAll(filepath.Join(r.places.logs(), name)))
		}
	}
	return errors.Join(errs...)
}

func readDirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// removeAttempt removes the log of an attempt, rotated parts included, and its
// termination message.
func (p places) removeAttempt(id runtime.PodID, container string, attempt int) error {
	logs, err := filepath.Glob(escapeGlob(p.log(id, container, attempt)) + "*")
	if err != nil {
		return fmt.Errorf("remove log: %w", err)
	}
	errs := []error{}
	for _, path := range append(logs, p.terminationLog(id.UID, container, attempt)) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove log: %w", err))
		}
	}
	return errors.Join(errs...)
}

// escapeGlob keeps a path from being read as a pattern.
func escapeGlob(path string) string {
	var b []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			b = append(b, '\\')
		}
		b = append(b, path[i])
	}
	return string(b)
}
