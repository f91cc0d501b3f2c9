// This file turns a container of a pod into a container of the runtime.

package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/downward"
	"github.com/hawser-project/hawser/node/runtime"
)

// places are the directories of the pods on a node.
type places struct {
	dir  string
	hide []string // Config.Hide
}

// pods has one directory for each pod, with all of its files but the logs.
func (p places) pods() string { return filepath.Join(p.dir, "pods") }

func (p places) pod(uid types.UID) string { return filepath.Join(p.pods(), string(uid)) }

// Files in a pod's directory.
const (
	checkpointName = "pod.json"
	inputsName     = "inputs.json"
)

func (p places) checkpoint(uid types.UID) string { return filepath.Join(p.pod(uid), checkpointName) }

// inputs is the file of the objects that a pod's containers are made from.
func (p places) inputs(uid types.UID) string { return filepath.Join(p.pod(uid), inputsName) }

func (p places) logs() string { return filepath.Join(p.dir, "logs") }

// podLogs is the log directory of a pod. Its name is that in the kubelet's
// /var/log/pods, which log collectors expect.
func (p places) podLogs(id runtime.PodID) string {
	return filepath.Join(p.logs(), id.Namespace+"_"+id.Name+"_"+string(id.UID))
}

func (p places) log(id runtime.PodID, container string, attempt int) string {
	return filepath.Join(p.podLogs(id), container, strconv.Itoa(attempt)+".log")
}

func (p places) terminationLog(uid types.UID, container string, attempt int) string {
	return filepath.Join(p.pod(uid), "containers", container, strconv.Itoa(attempt)+".termination")
}

// assemble makes the container's next attempt. Its errors are those of the pod's
// configuration.
func (w *worker) assemble(ctx context.Context, pod *corev1.Pod, c *corev1.Container, attempt int, facts downward.Facts) (runtime.Container, error) {
	id, dirs := idOf(pod), w.r.places
	out := runtime.Container{
		Pod: id, Name: c.Name, Attempt: attempt, Image: c.Image,
		Stdin: c.Stdin, StdinOnce: c.StdinOnce, TTY: c.TTY,
		LogPath:        dirs.log(id, c.Name, attempt),
		TerminationLog: dirs.terminationLog(pod.UID, c.Name, attempt),
		Resources:      resourcesOf(c),
		Security:       securityOf(pod, c, w.r.cfg.SeccompDefault),
		OOMScoreAdj:    oomScore(pod, c, facts.Memory),
		StopSignal:     signalNumber(stopSignal(c)),
	}
	if err := containerSecurity(c); err != nil {
		return out, err
	}
	env := maps.Clone(w.r.apiServerVars)
	vars := newVariables(env)
	err := environment(ctx, w.inputs, w.volumes, pod, c, facts, vars)
	if err != nil {
		return out, err
	}
	if out.Argv, err = commandLine(c, vars); err != nil {
		return out, err
	}
	if _, ok := env["HOSTNAME"]; !ok {
		if env["HOSTNAME"] = hostname(pod); env["HOSTNAME"] == "" {
			if env["HOSTNAME"], err = os.Hostname(); err != nil {
				return out, err
			}
		}
	}
	out.Env = flat(env)
	out.WorkingDir = c.WorkingDir
	if err = identity(pod, c, &out, os.Geteuid(), os.Getegid()); err != nil {
		return out, err
	}
	if out.Mounts, err = w.mounts(ctx, pod, c, vars); err != nil {
		return out, err
	}
	out.Mounts = append(out.Mounts, runtime.Mount{
		HostPath: out.TerminationLog, ContainerPath: terminationPath(c), Optional: true,
	})
	return out, addHosts(pod, facts.PodIPs, &out)
}

func terminationPath(c *corev1.Container) string {
	if c.TerminationMessagePath != "" {
		return c.TerminationMessagePath
	}
	return corev1.TerminationMessagePathDefault
}

// hostname is the host name in the containers of the pod; empty if it is the machine's, as
// with hostNetwork.
func hostname(pod *corev1.Pod) string {
	switch override := pod.Spec.HostnameOverride; {
	case pod.Spec.HostNetwork:
		return ""
	case override != nil && *override != "":
		return *override
	}
	name := cmp.Or(pod.Spec.Hostname, pod.Name)
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

func (w *worker) mounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, vars *variables) ([]runtime.Mount, error) {
	var list []runtime.Mount
	for _, m := range c.VolumeMounts {
		if asked := m.RecursiveReadOnly; asked != nil && *asked == corev1.RecursiveReadOnlyEnabled && !w.r.recursive {
			return nil, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", m.Name)
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			var err error
			if sub, err = vars.expandPath(m.SubPathExpr); err != nil {
				return nil, err
			}
		}
		real := ""
		if at := hostPathOf(pod, m.Name); at != "" {
			err := w.r.cfg.Answers(ctx, filepath.Join(at, sub))
			if err != nil {
				return nil, fmt.Errorf("hostPath: %w", err)
			}
			// Before Resolve, which makes what is missing.
			if c.SecurityContext == nil || !isTrue(c.SecurityContext.Privileged) {
				if real, err = w.r.places.hostPathAllowed(filepath.Join(at, sub)); err != nil {
					return nil, err
				}
			}
		}
		host, sub, err := w.volumes.Resolve(pod, m.Name, sub)
		if err != nil {
			return nil, err
		}
		path := m.MountPath
		if !filepath.IsAbs(path) {
			path = "/" + path
		}
		list = append(list, runtime.Mount{
			HostPath: host, SubPath: sub, Resolved: real, ContainerPath: path, ReadOnly: m.ReadOnly || fromAPI(pod, m.Name), Optional: unasked(pod, &m),
		})
	}
	return list, nil
}

// fromAPI reports whether a volume has content from the API. Such a volume is read-only
// in every container, regardless of the mount, because the next refresh would undo a
// write.
func fromAPI(pod *corev1.Pod, volume string) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == volume {
			return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
		}
	}
	return false
}

// unasked reports whether m is the token that the API server's admission adds to each
// pod. Most pods do not need it. On a machine that cannot mount, pods run without it, and
// a pod that opens it finds no file. A token that the pod's author wrote is not left out.
func unasked(pod *corev1.Pod, m *corev1.VolumeMount) bool {
	if m.MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" || !strings.HasPrefix(m.Name, "kube-api-access-") || isTrue(pod.Spec.AutomountServiceAccountToken) {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name && v.Projected != nil })
}

// identity sets the user and groups of the container from its security context and
// the pod's. The agent's are euid and egid.
func identity(pod *corev1.Pod, c *corev1.Container, out *runtime.Container, euid, egid int) error {
	var nonRoot *bool
	if p := pod.Spec.SecurityContext; p != nil {
		out.UID, out.GID, nonRoot = p.RunAsUser, p.RunAsGroup, p.RunAsNonRoot
		out.Groups = append(out.Groups, p.SupplementalGroups...)
		if p.FSGroup != nil {
			out.Groups = append(out.Groups, *p.FSGroup)
		}
	}
	if s := c.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			out.UID = s.RunAsUser
		}
		if s.RunAsGroup != nil {
			out.GID = s.RunAsGroup
		}
		if s.RunAsNonRoot != nil {
			nonRoot = s.RunAsNonRoot
		}
		if isTrue(s.Privileged) && euid != 0 {
			return errors.New("container is privileged and the agent does not run as root")
		}
	}
	if !isTrue(nonRoot) {
		return nil
	}
	if out.UID == nil {
		// The runtime's choice may be root in a user namespace.
		uid, gid := int64(euid), int64(egid)
		out.UID, out.GID = &uid, cmp.Or(out.GID, &gid)
	}
	if *out.UID == 0 {
		return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s): set runAsUser to another user than 0", pod.Namespace+"/"+pod.Name, c.Name)
	}
	return nil
}

// prepareFiles makes the directories and files that an attempt needs.
func prepareFiles(c *runtime.Container) error {
	for _, path := range []string{c.LogPath, c.TerminationLog} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("prepare container %s: %w", c.Name, err)
		}
	}
	// Any user of the container may write the termination message.
	f, err := os.OpenFile(c.TerminationLog, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("prepare container %s: %w", c.Name, err)
	}
	return errors.Join(f.Chmod(0o666), f.Close())
}

func idOf(pod *corev1.Pod) runtime.PodID {
	return runtime.PodID{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID}
}
