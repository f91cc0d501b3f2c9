// This file decides which containers that have ended are removed. Everything in it is
// pure.

package pods

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// A Retention has the rules for keeping ended containers. Its fields are the kubelet's
// flags --minimum-container-ttl-duration, --maximum-dead-containers-per-container and
// --maximum-dead-containers.
type Retention struct {
	// MinAge is how old a container is at least when it is removed, counted from when
	// it was made. It holds for containers of deleted pods as well.
	MinAge time.Duration
	// PerContainer is how many ended attempts of each container of a pod are kept;
	// negative for all.
	PerContainer int
	// Total is how many are kept on the node; negative for any number.
	Total int
}

// The kubelet's defaults for Retention, whose MinAge is 0.
const (
	DefaultPerContainer = 1
	DefaultTotal        = -1
)

// young reports whether the container is not old enough to be removed.
func (r Retention) young(c *runtime.ContainerStatus, now time.Time) bool {
	return r.MinAge > 0 && now.Sub(c.CreatedAt) < r.MinAge
}

// owned reports whether a Runner has started a container: those belong to a pod and have
// a name.
func owned(c *runtime.ContainerStatus) bool { return c.Pod.UID != "" && c.Name != "" }

// A unit is one container of one pod, with all of its attempts: PerContainer is per unit.
type unit struct {
	pod  types.UID
	name string
}

// candidates are the containers that may be removed, by unit, newest attempt first, and
// those that will be.
type candidates struct {
	units   map[unit][]runtime.ContainerStatus
	garbage []runtime.ContainerStatus
}

// garbage returns the containers to remove, those of deleted pods first and then in the
// order of the exceeded limits, each oldest first. Containers that run, that are younger
// than MinAge or that no Runner has started are neither removed nor counted.
func garbage(all []runtime.ContainerStatus, deleted func(types.UID) bool, keep Retention, now time.Time) []runtime.ContainerStatus {
	h := candidates{units: map[unit][]runtime.ContainerStatus{}}
	for i := range all {
		if c := &all[i]; owned(c) && c.State == runtime.Exited && !keep.young(c, now) {
			u := unit{c.Pod.UID, c.Name}
			h.units[u] = append(h.units[u], *c)
		}
	}
	h.trim(0, func(u unit) bool { return deleted(u.pod) })
	everyUnit := func(unit) bool { return true }
	if keep.PerContainer >= 0 {
		h.trim(keep.PerContainer, everyUnit)
	}
	if keep.Total < 0 || h.size() <= keep.Total {
		return h.garbage
	}
	h.trim(max(keep.Total/len(h.units), 1), everyUnit)
	if rest := h.flat(); len(rest) > keep.Total {
		h.garbage = append(h.garbage, oldestFirst(rest)[:len(rest)-keep.Total]...)
	}
	return h.garbage
}

// trim keeps the newest n containers of the units for which which returns true.
func (h *candidates) trim(n int, which func(unit) bool) {
	var cut []runtime.ContainerStatus
	for u, list := range h.units {
		if len(list) <= n || !which(u) {
			continue
		}
		slices.SortFunc(list, func(a, b runtime.ContainerStatus) int {
			return cmp.Or(b.Attempt-a.Attempt, b.CreatedAt.Compare(a.CreatedAt))
		})
		cut = append(cut, list[n:]...)
		if h.units[u] = list[:n]; n == 0 {
			delete(h.units, u)
		}
	}
	h.garbage = append(h.garbage, oldestFirst(cut)...)
}

func (h *candidates) size() int {
	n := 0
	for _, list := range h.units {
		n += len(list)
	}
	return n
}

func (h *candidates) flat() []runtime.ContainerStatus {
	var all []runtime.ContainerStatus
	for _, list := range h.units {
		all = append(all, list...)
	}
	return all
}

// oldestFirst sorts a list and returns it.
func oldestFirst(list []runtime.ContainerStatus) []runtime.ContainerStatus {
	slices.SortFunc(list, func(a, b runtime.ContainerStatus) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), a.Attempt-b.Attempt, cmp.Compare(a.ID, b.ID))
	})
	return list
}
