// This file has the methods by which other packages read the pods.

package pods

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// Pods lists the pods of the node with their current status, by namespace and
// name. The caller does not change them. Its error is always nil.
func (r *Runner) Pods(context.Context) ([]*corev1.Pod, error) { return r.list(), nil }

func (r *Runner) list() []*corev1.Pod {
	pods := r.wanted().pods
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

// Pod finds one pod, with its current status. An empty uid means any pod of that name,
// the youngest if there are several. The uid of a mirror finds the static pod. The error
// wraps runtime.ErrNotFound.
func (r *Runner) Pod(_ context.Context, name types.NamespacedName, uid types.UID) (*corev1.Pod, error) {
	if uid != "" {
		uid = r.translated(name, uid)
	}
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

// Declares reports whether a running container of a pod with that address declares the
// TCP port: as a container's port, or, at the node's addresses, as a host port.
func (r *Runner) Declares(addr netip.AddrPort) bool { return len(r.declarers(addr)) > 0 }

// DialDeclared connects to a port for which Declares is true. Where pods share the node's
// addresses it fails with runtime.ErrForeignPort if who listens there is none of the pods
// that declare it; one in the host's network stands for the whole machine.
func (r *Runner) DialDeclared(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	err := fmt.Errorf("no running pod declares %s any more: %w", addr, runtime.ErrNotRunning)
	for _, pod := range r.declarers(addr) {
		if pod.Spec.HostNetwork || hasOwnAddress(pod) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		}
		var conn net.Conn
		if conn, err = r.cfg.Runtime.DialPodAt(ctx, idOf(pod), addr); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// hasOwnAddress reports whether a pod has addresses that are not the node's. Its status has
// both as they were at one time: a node that roams has others by now.
func hasOwnAddress(pod *corev1.Pod) bool {
	nodes := func(ip corev1.PodIP) bool { return slices.Contains(pod.Status.HostIPs, corev1.HostIP(ip)) }
	return len(pod.Status.PodIPs) > 0 && !slices.ContainsFunc(pod.Status.PodIPs, nodes)
}

// declarers are the pods for which Declares is true.
func (r *Runner) declarers(addr netip.AddrPort) []*corev1.Pod {
	ip, port := addr.Addr().Unmap().String(), int32(addr.Port())
	host := slices.Contains(r.cfg.HostIPs(), ip)
	var list []*corev1.Pod
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.workers {
		pod := w.current()
		if terminal(pod.Status.Phase) {
			continue
		}
		own := slices.ContainsFunc(pod.Status.PodIPs, func(p corev1.PodIP) bool { return p.IP == ip })
		if (own || host) && declares(pod, ip, port, own, host) {
			list = append(list, pod)
		}
	}
	return list
}

// declares reports that for one pod. own is whether the address is the pod's, host
// whether it is the node's.
func declares(pod *corev1.Pod, ip string, port int32, own, host bool) bool {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if !isRunning(pod, list[i].Name) {
				continue
			}
			for _, p := range list[i].Ports {
				switch {
				case p.Protocol != "" && p.Protocol != corev1.ProtocolTCP:
				case own && p.ContainerPort == port:
					return true
				case host && p.HostPort == port && (p.HostIP == "" || p.HostIP == ip || p.HostIP == "0.0.0.0" || p.HostIP == "::"):
					return true
				}
			}
		}
	}
	return false
}

// isRunning reports whether a container of the pod is running by its status.
func isRunning(pod *corev1.Pod, name string) bool {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return list[i].State.Running != nil
			}
		}
	}
	return false
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
