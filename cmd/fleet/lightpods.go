// The pods of a light node.

package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/node/runtime"
)

const (
	// podRetry bounds how long a pod waits that something has failed for.
	podRetry = 10 * time.Second
	// stopGrace is how long a container may take to stop; here none takes any.
	stopGrace = time.Second
)

// lightPods starts the containers of the pods bound to a node, says how they are
// and stops them. A container that has ended is not started again, whatever the
// restart policy: under Always its pod stays, not ready. Init containers are taken for
// done. It is what the kubelet API asks.
type lightPods struct {
	m    *member
	api  *apiclient.API
	wake chan struct{} // holds one if there is something to do

	mu     sync.Mutex // guards the following
	pods   map[types.UID]*corev1.Pod
	listed bool
}

func newLightPods(m *member, api *apiclient.API) *lightPods {
	return &lightPods{m: m, api: api, wake: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{}}
}

// run watches the pods and does what they need until ctx is done.
func (p *lightPods) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ended := make(chan runtime.PodID)
	wg.Go(func() { _ = p.m.runtime.Watch(ctx, ended) }) // never fails
	wg.Go(func() { p.watch(ctx) })
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
		case <-p.wake:
		case <-again.C:
		}
		if err := p.sync(ctx); err != nil && ctx.Err() == nil {
			p.m.fleet.cfg.Log.Debug("pods of a simulated node, will try again", "node", p.m.name, "err", err)
			again.Reset(podRetry)
		}
	}
}

func (p *lightPods) watch(ctx context.Context) {
	selector := fields.OneTermEqualSelector("spec.nodeName", p.m.name).String()
	api := p.api.Pods(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (apiruntime.Object, error) {
			o.FieldSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return api.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(lw, &corev1.Pod{}, p, cache.ReflectorOptions{Name: "pods"}).RunWithContext(ctx)
}

// change changes the pods and asks for a look at them.
func (p *lightPods) change(f func()) error {
	p.mu.Lock()
	f()
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (p *lightPods) Add(obj any) error { return p.Update(obj) }

// Update implements cache.ReflectorStore.
func (p *lightPods) Update(obj any) error {
	return p.change(func() {
		if pod, ok := obj.(*corev1.Pod); ok {
			p.pods[pod.UID] = pod
		}
	})
}

// Delete implements cache.ReflectorStore.
func (p *lightPods) Delete(obj any) error {
	return p.change(func() {
		if pod, ok := obj.(*corev1.Pod); ok {
			delete(p.pods, pod.UID)
		}
	})
}

// Replace implements cache.ReflectorStore.
func (p *lightPods) Replace(list []any, _ string) error {
	return p.change(func() {
		clear(p.pods)
		for _, obj := range list {
			if pod, ok := obj.(*corev1.Pod); ok {
				p.pods[pod.UID] = pod
			}
		}
		p.listed = true
	})
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (p *lightPods) Resync() error { return nil }

// snapshot lists the pods, the oldest first, and says whether the API has been
// listed.
func (p *lightPods) snapshot() ([]*corev1.Pod, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*corev1.Pod, 0, len(p.pods))
	for _, pod := range p.pods {
		list = append(list, pod)
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return list, p.listed
}

// Pods implements kubeletapi.Pods.
func (p *lightPods) Pods(context.Context) ([]*corev1.Pod, error) {
	list, _ := p.snapshot()
	return list, nil
}

// Pod implements kubeletapi.Pods.
func (p *lightPods) Pod(_ context.Context, name types.NamespacedName, uid types.UID) (*corev1.Pod, error) {
	list, _ := p.snapshot()
	for _, pod := range slices.Backward(list) {
		if pod.Namespace == name.Namespace && pod.Name == name.Name && (uid == "" || pod.UID == uid) {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("pod %q: %w", name.String(), runtime.ErrNotFound)
}

func podID(p *corev1.Pod) runtime.PodID {
	return runtime.PodID{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID}
}

// sync does what all pods need.
func (p *lightPods) sync(ctx context.Context) error {
	list, listed := p.snapshot()
	all, err := p.m.runtime.Containers(ctx)
	if err != nil {
		return err
	}
	running := map[types.UID][]runtime.ContainerStatus{}
	for _, c := range all {
		running[c.Pod.UID] = append(running[c.Pod.UID], c)
	}
	var errs []error
	for _, pod := range list {
		have := running[pod.UID]
		delete(running, pod.UID)
		errs = append(errs, p.one(ctx, pod, have))
	}
	if listed {
		for _, left := range running { // of pods that the API has no more
			errs = append(errs, p.remove(ctx, left[0].Pod, left))
		}
	}
	return errors.Join(errs...)
}

// one does what one pod needs.
func (p *lightPods) one(ctx context.Context, pod *corev1.Pod, have []runtime.ContainerStatus) error {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	var err error
	switch {
	case pod.DeletionTimestamp != nil:
		return p.end(ctx, pod, have)
	case ended:
		return nil
	case len(have) < len(pod.Spec.Containers):
		if have, err = p.start(ctx, pod, have); err != nil {
			return err
		}
	}
	return p.tell(ctx, pod, have)
}

func (p *lightPods) logDir(id runtime.PodID) string {
	return filepath.Join(p.m.fleet.dir(p.m.name), "logs", id.Namespace+"_"+id.Name+"_"+string(id.UID))
}

// start starts the containers of a pod that have not been started.
func (p *lightPods) start(ctx context.Context, pod *corev1.Pod, have []runtime.ContainerStatus) ([]runtime.ContainerStatus, error) {
	id := podID(pod)
	if _, err := p.m.runtime.EnsureSandbox(ctx, runtime.Sandbox{Pod: id}); err != nil {
		return nil, err
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if slices.ContainsFunc(have, func(h runtime.ContainerStatus) bool { return h.Name == c.Name }) {
			continue
		}
		dir := filepath.Join(p.logDir(id), c.Name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("start pod %s: %w", id.Name, err)
		}
		env := []string{"HOSTNAME=" + pod.Name}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				env = append(env, e.Name+"="+e.Value)
			}
		}
		if _, err := p.m.runtime.Start(ctx, runtime.Container{
			Pod: id, Name: c.Name, Image: c.Image, Argv: append(slices.Clone(c.Command), c.Args...), Env: env,
			LogPath: filepath.Join(dir, "0.log"),
		}); err != nil {
			return nil, fmt.Errorf("start pod %s: %w", id.Name, err)
		}
	}
	all, err := p.m.runtime.Containers(ctx)
	return slices.DeleteFunc(all, func(c runtime.ContainerStatus) bool { return c.Pod != id }), err
}

// end stops a pod that is being deleted, says how it has ended and deletes it.
func (p *lightPods) end(ctx context.Context, pod *corev1.Pod, have []runtime.ContainerStatus) error {
	id := podID(pod)
	for i, c := range have {
		if err := p.m.runtime.Stop(ctx, c.ID, stopGrace); err != nil {
			return err
		}
		if c.State != runtime.Exited {
			have[i].State, have[i].EndedAt, have[i].ExitCode = runtime.Exited, time.Now(), 143
		}
	}
	if len(have) > 0 {
		if err := p.tell(ctx, pod, have); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	o := metav1.NewPreconditionDeleteOptions(string(pod.UID))
	o.GracePeriodSeconds = new(int64)
	err := p.api.Pods(pod.Namespace).Delete(ctx, pod.Name, *o)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w", pod.Name, err)
	}
	return p.remove(ctx, id, have)
}

// remove forgets the containers of a pod, its sandbox and its logs.
func (p *lightPods) remove(ctx context.Context, id runtime.PodID, have []runtime.ContainerStatus) error {
	for _, c := range have {
		if err := errors.Join(p.m.runtime.Stop(ctx, c.ID, stopGrace), p.m.runtime.Remove(ctx, c.ID)); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
	}
	if err := p.m.runtime.RemoveSandbox(ctx, id); err != nil {
		return err
	}
	if err := os.RemoveAll(p.logDir(id)); err != nil {
		return fmt.Errorf("remove logs of pod %s: %w", id.Name, err)
	}
	return nil
}

// tell writes the status of a pod if it is not what the API has.
func (p *lightPods) tell(ctx context.Context, pod *corev1.Pod, have []runtime.ContainerStatus) error {
	want := lightStatus(pod, have, p.m.ip.String(), time.Now())
	if sameStatus(&pod.Status, want) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": want})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	out, err := p.api.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or another pod by now: the watch tells
	}
	if err != nil {
		return fmt.Errorf("patch status of pod %s: %w", pod.Name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods[out.UID] == pod { // the watch has nothing newer
		p.pods[out.UID] = out
	}
	return nil
}
