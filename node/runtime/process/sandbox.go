package process

// Sandboxes: the settings of a pod that its containers share.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-project/hawser/node/runtime"
)

// A sandbox is kept in a file of its own.
type sandbox struct {
	Sandbox   runtime.Sandbox `json:"sandbox"`
	CreatedAt time.Time       `json:"createdAt"`
}

func (r *Runtime) sandboxPath(id runtime.PodID) (string, error) {
	uid := string(id.UID)
	if uid == "" || strings.ContainsAny(uid, "/\x00") || strings.HasPrefix(uid, ".") {
		return "", fmt.Errorf("pod %s: malformed uid %q", id.NamespacedName, uid)
	}
	return filepath.Join(r.podsDir(), uid+".json"), nil
}

// EnsureSandbox stores s; see runtime.Runtime.
func (r *Runtime) EnsureSandbox(ctx context.Context, s runtime.Sandbox) (runtime.SandboxStatus, error) {
	if err := r.wait(ctx); err != nil {
		return runtime.SandboxStatus{}, err
	}
	path, err := r.sandboxPath(s.Pod)
	if err != nil {
		return runtime.SandboxStatus{}, fmt.Errorf("make sandbox: %w", err)
	}
	r.mu.Lock()
	old := r.sandboxes[string(s.Pod.UID)]
	r.mu.Unlock()
	if old != nil && old.Sandbox == s {
		return runtime.SandboxStatus{CreatedAt: old.CreatedAt}, nil
	}
	sb := &sandbox{Sandbox: s, CreatedAt: time.Now().UTC()}
	if old != nil {
		sb.CreatedAt = old.CreatedAt
	}
	if err := writeJSON(path, sb); err != nil {
		return runtime.SandboxStatus{}, fmt.Errorf("make sandbox: %w", err)
	}
	r.mu.Lock()
	r.sandboxes[string(s.Pod.UID)] = sb
	r.mu.Unlock()
	return runtime.SandboxStatus{CreatedAt: sb.CreatedAt}, nil
}

// RemoveSandbox removes a sandbox; see runtime.Runtime.
func (r *Runtime) RemoveSandbox(ctx context.Context, id runtime.PodID) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	path, err := r.sandboxPath(id)
	if err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	r.mu.Lock()
	for _, c := range r.containers {
		if c.spec.Container.Pod == id {
			r.mu.Unlock()
			return fmt.Errorf("remove sandbox of pod %s: container %s is still there", id.NamespacedName, c.spec.Container.Name)
		}
	}
	delete(r.sandboxes, string(id.UID))
	r.mu.Unlock()
	r.dropPodGroup(id)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	return nil
}

// Sandboxes lists the pods that have a sandbox or a container.
func (r *Runtime) Sandboxes(ctx context.Context) ([]runtime.PodID, error) {
	if err := r.wait(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[runtime.PodID]bool{}
	var ids []runtime.PodID
	add := func(id runtime.PodID) {
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	for _, sb := range r.sandboxes {
		add(sb.Sandbox.Pod)
	}
	for _, c := range r.containers {
		add(c.spec.Container.Pod)
	}
	return ids, nil
}

func (r *Runtime) loadSandboxes() error {
	entries, err := os.ReadDir(r.podsDir())
	if err != nil {
		return fmt.Errorf("look for sandboxes: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		var sb sandbox
		if err := readJSON(filepath.Join(r.podsDir(), e.Name()), &sb); err != nil {
			r.log.Error("sandbox left behind cannot be read", "err", err)
			continue
		}
		r.mu.Lock()
		r.sandboxes[string(sb.Sandbox.Pod.UID)] = &sb
		r.mu.Unlock()
	}
	return nil
}
