package kubelet

// Locations: which URL on which node a subresource means.

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// scoped returns the host of an address that has a meaning on node only, as in
// 10.0.0.7%node-1: the notation of RFC 4007 with the node for a zone.
func scoped(ip, node string) string {
	if node == "" {
		return ip
	}
	return ip + "%" + node
}

// kubeletURL returns the address of path in node's kubelet API. The host is the
// node's name: that is what the tunnel routes by and what the kubelet's
// certificate must be for.
func (b *backend) kubeletURL(ctx context.Context, node string, path []string, query url.Values) (*url.URL, error) {
	n, err := b.Nodes(ctx, node)
	if err != nil {
		return nil, err
	}
	u := &url.URL{
		Scheme:   "https",
		Host:     net.JoinHostPort(n.Name, strconv.Itoa(kubeletPort(n))),
		RawQuery: query.Encode(),
	}
	u.Path = "/" + strings.Join(path, "/")
	return u, nil
}

func kubeletPort(n *corev1.Node) int {
	if p := n.Status.DaemonEndpoints.KubeletEndpoint.Port; p > 0 {
		return int(p)
	}
	return DefaultPort
}

// boundPod returns the named pod if it is on a node.
func (b *backend) boundPod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod, err := b.Pods(ctx, name)
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	return pod, nil
}

// container returns the name of the container that is meant: the one asked for,
// or the only one. Ephemeral containers can be named and are never the default.
func container(pod *corev1.Pod, name string) (string, error) {
	if name == "" {
		return onlyContainer(pod)
	}
	for _, known := range [][]string{
		names(pod.Spec.Containers), names(pod.Spec.InitContainers), ephemeralNames(pod),
	} {
		for _, n := range known {
			if n == name {
				return name, nil
			}
		}
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
}

func onlyContainer(pod *corev1.Pod) (string, error) {
	if len(pod.Spec.Containers) == 1 {
		return pod.Spec.Containers[0].Name, nil
	}
	msg := fmt.Sprintf("a container name must be specified for pod %s", pod.Name)
	if len(pod.Spec.Containers) > 1 {
		msg += fmt.Sprintf(", choose one of: %v", names(pod.Spec.Containers))
		if init := names(pod.Spec.InitContainers); len(init) > 0 {
			msg += fmt.Sprintf(" or one of the init containers: %v", init)
		}
	}
	return "", apierrors.NewBadRequest(msg)
}

func names(cs []corev1.Container) []string {
	var out []string
	for i := range cs {
		out = append(out, cs[i].Name)
	}
	return out
}

func ephemeralNames(pod *corev1.Pod) []string {
	var out []string
	for i := range pod.Spec.EphemeralContainers {
		out = append(out, pod.Spec.EphemeralContainers[i].Name)
	}
	return out
}
