// This file removes containers and directories of pods that have no worker.

package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// sweep makes workers for pods that the runtime has and the API does not list, so that
// they are stopped and removed. It starts the removal of directories of deleted pods. It
// is called only once all pods that are to run are known.
func (r *Runner) sweep(ctx context.Context, wg *sync.WaitGroup) {
	traces, err := r.trace(ctx)
	if err != nil {
		r.log.Warn("cannot look for leftovers, will try again", "err", err)
		return
	}
	dirs, err := r.places.podDirs()
	if err != nil {
		r.log.Warn("cannot look for leftovers, will try again", "err", err)
	}
	pods := r.wanted().pods
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
		r.clearLocked(ctx, wg, id)
	}
	if len(r.removing) > 0 {
		return // the last sweep's leftovers are still being removed
	}
	for uid := range dirs {
		if pods[uid] == nil && r.workers[uid] == nil {
			r.removing[uid] = dirs[uid]
		}
	}
	if len(r.removing) > 0 {
		leftovers := maps.Clone(r.removing)
		wg.Go(func() { r.remove(ctx, leftovers) })
	}
}

// remove removes the directories of deleted pods, which may take long. No pod with such
// a uid gets a worker meanwhile.
func (r *Runner) remove(ctx context.Context, leftovers map[types.UID][]string) {
	var errs []error
	for uid, dirs := range leftovers {
		if ctx.Err() != nil {
			break
		}
		err := r.volumes.TearDown(uid)
		for _, dir := range dirs {
			if err == nil {
				err = removeDir(dir)
			}
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("cannot remove leftovers, will try again", "err", err)
	}
	r.mu.Lock()
	clear(r.removing)
	r.mu.Unlock()
	r.Wake()
}

// removeDir is a seam of tests.
var removeDir = runtime.RemoveAll

// podDirs lists the directories that pods have, those of their logs included.
func (p places) podDirs() (map[types.UID][]string, error) {
	found := map[types.UID][]string{}
	names, err1 := readDirs(p.pods())
	for _, name := range names {
		uid := types.UID(name)
		found[uid] = append(found[uid], p.pod(uid))
	}
	names, err2 := readDirs(p.logs())
	for _, name := range names {
		// The uid has no underscore, and neither have the other two parts.
		uid := types.UID(name[strings.LastIndexByte(name, '_')+1:])
		found[uid] = append(found[uid], filepath.Join(p.logs(), name))
	}
	return found, errors.Join(err1, err2)
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
