// This file answers questions of others about the pods.

package pods

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// Pods lists the pods of the node with their current status, by namespace and
// name. The caller does not change them. Its error is always nil.
func (r *Runner) Pods(context.Context) ([]*corev1.Pod, error) { return r.list(), nil }

func (r *Runner) list() []*corev1.Pod {
	pods, _ := r.source.snapshot()
	r.mu.Lock()
	for uid, w := range r.workers {
		pods[uid] = w.current()
	}
	r.mu.Unlock()
	list := make([]*corev1.Pod, 0, len(pods))
	for _, p := range pods {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return list
}

// Pod finds one, with its current status; an empty uid means whichever incarnation
// there is, the youngest if there are several. The error wraps runtime.ErrNotFound.
func (r *Runner) Pod(_ context.Context, name types.NamespacedName, uid types.UID) (*corev1.Pod, error) {
	var found *corev1.Pod
	for _, p := range r.list() {
		if p.Namespace != name.Namespace || p.Name != name.Name || uid != "" && p.UID != uid {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp) {
			found = p
		}
	}
	if found == nil {
		return nil, fmt.Errorf("pod %q: %w", name.String(), runtime.ErrNotFound)
	}
	return found, nil
}

// IPs returns the addresses of the running pods that have addresses of their own.
func (r *Runner) IPs() []string {
	host := r.cfg.HostIPs()
	var ips []string
	for _, p := range r.list() {
		for _, ip := range p.Status.PodIPs {
			if !terminal(p.Status.Phase) && !slices.Contains(host, ip.IP) {
				ips = append(ips, ip.IP)
			}
		}
	}
	return ips
}
