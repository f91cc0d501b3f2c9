// This file makes the /etc/hosts of containers.

package pods

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/auth/atomicfile"
	"github.com/hawser-project/hawser/node/runtime"
)

const hostsPath = "/etc/hosts"

// serviceDomain is the domain of the subdomains of namespaces.
const serviceDomain = "svc.cluster.local"

// addHosts gives c the machine's /etc/hosts with the pod's host name and its aliases behind it. A
// volume that is mounted there goes before. The host name alone is left out if the file cannot be
// mounted: then the container has no host name of its own, or a read-only /etc.
func addHosts(pod *corev1.Pod, ips []string, c *runtime.Container) error {
	aliases := len(pod.Spec.HostAliases) > 0
	mounted := func(m runtime.Mount) bool {
		path := filepath.Clean(m.ContainerPath)
		return path == hostsPath || path == filepath.Dir(hostsPath) && m.ReadOnly && !aliases
	}
	if hostname(pod) == "" && !aliases || slices.ContainsFunc(c.Mounts, mounted) {
		return nil
	}
	text, err := hostsFile(pod, ips)
	switch {
	case err != nil && !aliases:
		return nil // the machine's is no file
	case err != nil:
		return fmt.Errorf("make hosts file: %w", err)
	}
	file := filepath.Join(filepath.Dir(c.TerminationLog), "hosts")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make hosts file: %w", err)
	}
	// A container may have changed the mode of the last one. Any user reads the new one.
	if err := atomicfile.Write(file, text, 0o644); err != nil {
		return fmt.Errorf("make hosts file: %w", err)
	}
	c.Mounts = append(c.Mounts, runtime.Mount{HostPath: file, ContainerPath: hostsPath, Optional: !aliases})
	return nil
}

// hostsFile is the machine's file with the entries of the pod behind it, which are a kubelet's.
func hostsFile(pod *corev1.Pod, ips []string) ([]byte, error) {
	text, err := os.ReadFile(hostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	b := bytes.NewBuffer(text)
	if len(text) > 0 && text[len(text)-1] != '\n' {
		b.WriteByte('\n')
	}
	if name := hostname(pod); name != "" {
		if pod.Spec.Subdomain != "" && pod.Spec.HostnameOverride == nil {
			name = strings.Join([]string{name, pod.Spec.Subdomain, pod.Namespace, serviceDomain}, ".") + "\t" + name
		}
		if len(ips) == 0 {
			ips = []string{"127.0.0.1"}
		}
		for _, ip := range ips {
			fmt.Fprintf(b, "%s\t%s\n", ip, name)
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
	}
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.Bytes(), nil
}
