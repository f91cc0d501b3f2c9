// This file measures the local storage of pods, and evicts those that exceed their limits.

package pods

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	componentresource "k8s.io/component-helpers/resource"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/volumes"
)

const (
	// storagePeriod is how often the storage of a pod with limits is measured, as in the
	// kubelet.
	storagePeriod = 10 * time.Second
	// storageRest bounds the cost: measuring a pod is followed by a pause of at least that many
	// times its duration.
	storageRest = 20
	// storageTimeout bounds a portion of the measurement of one pod, and so what a pod with
	// many files delays the others by. The next portion goes on from there.
	storageTimeout = 5 * time.Second

	reasonEvicted = "Evicted"
	evictionGrace = time.Second // as the kubelet's
)

// watchStorage measures pods one after the other until ctx is done. Pods without limits are
// not measured.
func (r *Runner) watchStorage(ctx context.Context) {
	ticker := time.NewTicker(storagePeriod)
	defer ticker.Stop()
	resting := map[types.UID]time.Time{} // until when
	measured := map[types.UID]*measurement{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		was, had := resting, measured
		resting, measured = map[types.UID]time.Time{}, map[types.UID]*measurement{}
		for _, w := range r.withStorageLimits() {
			uid := w.id.UID
			if measured[uid] = had[uid]; measured[uid] == nil {
				measured[uid] = &measurement{}
			}
			if resting[uid] = was[uid]; time.Now().Before(was[uid]) {
				continue
			}
			began := time.Now()
			if message := r.excess(ctx, measured[uid], w.current()); message != "" {
				w.post(func() { w.evict(message) })
			}
			resting[uid] = time.Now().Add(storageRest * time.Since(began))
		}
	}
}

// withStorageLimits lists the workers of running pods that have limits of storage. As with
// the kubelet, critical and static pods are not evicted.
func (r *Runner) withStorageLimits() []*worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*worker
	for _, w := range r.workers {
		pod, active := w.claim()
		critical := pod.Spec.Priority != nil && *pod.Spec.Priority >= CriticalPriority
		if active && !w.static && !critical && hasStorageLimits(pod) {
			list = append(list, w)
		}
	}
	return list
}

func hasStorageLimits(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if emptyDirLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	return podStorageLimit(pod) != nil
}

// emptyDirLimit is the limit of a volume; nil for none.
func emptyDirLimit(v *corev1.Volume) *resource.Quantity {
	if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return v.EmptyDir.SizeLimit
}

// podStorageLimit is the sum of the containers' limits; nil if there are none.
func podStorageLimit(pod *corev1.Pod) *resource.Quantity {
	limits := componentresource.PodLimits(pod, componentresource.PodResourcesOptions{})
	if q, ok := limits[corev1.ResourceEphemeralStorage]; ok {
		return &q
	}
	return nil
}

// evict ends the pod because of its use of storage.
func (w *worker) evict(message string) {
	if w.kill != nil || w.ended {
		return
	}
	w.event(nil, corev1.EventTypeWarning, reasonEvicted, message)
	w.end(time.Now().Add(evictionGrace), &kill{reason: reasonEvicted, message: message, failed: true})
}

// excess measures a portion and returns which limit the pod exceeds, in the kubelet's words;
// empty for none.
func (r *Runner) excess(ctx context.Context, m *measurement, pod *corev1.Pod) string {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	m.begin()
	var total int64
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		limit := emptyDirLimit(v)
		if v.EmptyDir == nil || limit == nil && podStorageLimit(pod) == nil {
			continue
		}
		dir, _, err := r.volumes.Resolve(pod, v.Name, "")
		if err != nil {
			continue // it is of no container
		}
		used := m.usage(ctx, dir)
		if limit != nil && used > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
		if volumes.OnDisk(dir, v.EmptyDir) {
			total += used
		}
	}
	whole := podStorageLimit(pod)
	if whole == nil {
		return ""
	}
	byName := r.containerStorage(ctx, m, pod)
	for _, used := range byName {
		total += used
	}
	if total > whole.Value() {
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", whole)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && byName[c.Name] > limit.Value() {
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return ""
}

// containerStorage returns the bytes that each container of the pod uses: its logs, its
// termination messages and /etc/hosts, and what its running attempt has written outside of
// volumes.
func (r *Runner) containerStorage(ctx context.Context, m *measurement, pod *corev1.Pod) map[string]int64 {
	used := map[string]int64{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, file := range []string{r.places.log(idOf(pod), list[i].Name, 0), r.places.terminationLog(pod.UID, list[i].Name, 0)} {
				used[list[i].Name] += m.usage(ctx, filepath.Dir(file))
			}
		}
	}
	listed, err := r.lister.get(ctx)
	if err != nil {
		return used // the next measurement has it
	}
	for _, c := range listed[pod.UID] {
		if c.State == runtime.Running && c.Dir != "" {
			used[c.Name] += m.usage(ctx, c.Dir)
		}
	}
	return used
}
