// This file makes the /etc/hosts of containers whose pod has host aliases.

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

	"github.com/hawser-project/hawser/node/runtime"
)

const hostsPath = "/etc/hosts"

// addHosts gives c the machine's /etc/hosts with the pod's aliases behind it, as a kubelet
// does it for a pod with the network of its node. A volume that is mounted there goes before.
func addHosts(pod *corev1.Pod, c *runtime.Container) error {
	if len(pod.Spec.HostAliases) == 0 ||
		slices.ContainsFunc(c.Mounts, func(m runtime.Mount) bool { return filepath.Clean(m.ContainerPath) == hostsPath }) {
		return nil
	}
	text, err := os.ReadFile(hostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("host aliases: %w", err)
	}
	b := bytes.NewBuffer(text)
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	file := filepath.Join(filepath.Dir(c.TerminationLog), "hosts")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("host aliases: %w", err)
	}
	if err := errors.Join(os.WriteFile(file, b.Bytes(), 0o644), os.Chmod(file, 0o644)); err != nil { //nolint:gosec // any user of the container reads it
		return fmt.Errorf("host aliases: %w", err)
	}
	c.Mounts = append(c.Mounts, runtime.Mount{HostPath: file, ContainerPath: hostsPath})
	return nil
}
