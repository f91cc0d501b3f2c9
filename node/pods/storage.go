// This file measures the local storage of pods, and evicts those that exceed their limits.

package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	componentresource "k8s.io/component-helpers/resource"

	"github.com/hawser-project/hawser/node/runtime"
)

const (
	// storagePeriod is how often the storage of a pod with limits is measured, as in the
	// kubelet.
	storagePeriod = 10 * time.Second
	// storageRest bounds the cost: a measurement of a pod is followed by a pause of at least
	// that many times its duration.
	storageRest = 20
	// storageTimeout bounds one measurement. What has not been read by then does not count.
	storageTimeout = 30 * time.Second
	// maxDirDepth bounds the open directories of a measurement. What is deeper does not count.
	maxDirDepth = 128

	reasonEvicted = "Evicted"
	evictionGrace = time.Second // as the kubelet's
)

// watchStorage measures pods one after the other until ctx is done. Pods without limits are
// not measured.
func (r *Runner) watchStorage(ctx context.Context) {
	ticker := time.NewTicker(storagePeriod)
	defer ticker.Stop()
	resting := map[types.UID]time.Time{} // until when
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		was := resting
		resting = map[types.UID]time.Time{}
		for _, w := range r.withStorageLimits() {
			uid := w.id.UID
			if resting[uid] = was[uid]; time.Now().Before(was[uid]) {
				continue
			}
			began := time.Now()
			if message := r.excess(ctx, w.current()); message != "" {
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

// excess returns which limit the pod exceeds, in the kubelet's words; empty for none.
func (r *Runner) excess(ctx context.Context, pod *corev1.Pod) string {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
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
		used := diskUsage(ctx, dir)
		if limit != nil && used > limit.Value() {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
		if v.EmptyDir.Medium == corev1.StorageMediumDefault {
			total += used
		}
	}
	whole := podStorageLimit(pod)
	if whole == nil {
		return ""
	}
	byName := r.containerStorage(ctx, pod)
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

// containerStorage returns the bytes that each container of the pod uses: its logs, and what
// its running attempt has written outside of volumes.
func (r *Runner) containerStorage(ctx context.Context, pod *corev1.Pod) map[string]int64 {
	used := map[string]int64{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			used[list[i].Name] = diskUsage(ctx, filepath.Dir(r.places.log(idOf(pod), list[i].Name, 0)))
		}
	}
	listed, err := r.lister.get(ctx)
	if err != nil {
		return used // the next measurement has it
	}
	for _, c := range listed[pod.UID] {
		if c.State == runtime.Running && c.Dir != "" {
			used[c.Name] += diskUsage(ctx, c.Dir)
		}
	}
	return used
}

// diskUsage returns the bytes on disk of the files below dir and on its file system. It
// follows no symbolic links. It leaves out what it cannot read, and what is left once ctx is
// done. A file with several hard links counts in equal parts for each.
func diskUsage(ctx context.Context, dir string) int64 {
	fd, err := unix.Open(dir, openDir, 0)
	if err != nil {
		return 0
	}
	return usageOf(ctx, fd, dir, nil, maxDirDepth)
}

const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// usageOf is diskUsage of an open directory, which it closes. It reads names in portions,
// because a container decides how many there are.
func usageOf(ctx context.Context, fd int, name string, top *unix.Stat_t, depth int) int64 {
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	if top == nil {
		top = &st
	}
	if st.Dev != top.Dev {
		return 0
	}
	sum := st.Blocks * 512
	for ctx.Err() == nil {
		names, err := d.Readdirnames(512)
		for _, name := range names {
			switch {
			case unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != top.Dev:
			case st.Mode&unix.S_IFMT != unix.S_IFDIR:
				sum += st.Blocks * 512 / int64(max(st.Nlink, 1)) //nolint:gosec // a count of links
			case depth > 0:
				if sub, failed := unix.Openat(fd, name, openDir, 0); failed == nil {
					sum += usageOf(ctx, sub, name, top, depth-1)
				}
			}
		}
		if err != nil {
			break // io.EOF, or it cannot be read any more
		}
	}
	return sum
}
