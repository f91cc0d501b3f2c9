// Pods whose processes can be told apart: each writes down its start and is found
// by the uid of its pod.

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// holdGrace is how many seconds these pods have to end.
const holdGrace = 2

// hold is what such a pod's process does. Its name is the pod's uid.
const hold = `echo "$0" >> /diary/starts; trap 'exit 0' TERM; while :; do sleep 1000 & wait "$!"; done`

// diary is the directory in which such pods note their starts. They may not use the cluster's own.
func (c *cluster) diary() string { return filepath.Join(programs.dir, "diary", filepath.Base(c.dir)) }

// holding is the spec of such a pod on a node; with none the scheduler chooses.
func (c *cluster) holding(t *testing.T, node string, tolerations ...corev1.Toleration) corev1.PodSpec {
	t.Helper()
	if err := os.MkdirAll(c.diary(), 0o700); err != nil {
		t.Fatal(err)
	}
	grace := int64(holdGrace)
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Tolerations:                   tolerations,
		NodeName:                      node,
		Containers: []corev1.Container{{
			Name: "main", Image: "none", Command: []string{"sh", "-c", hold, "$(POD_UID)"},
			Env: []corev1.EnvVar{{
				Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}},
			}},
			VolumeMounts: []corev1.VolumeMount{{Name: "diary", MountPath: "/diary"}},
		}},
		Volumes: []corev1.Volume{{
			Name: "diary", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: c.diary()}},
		}},
	}
}

// unreachable tolerates the silence of a node for some seconds, or for ever.
func unreachable(seconds *int64) corev1.Toleration {
	return corev1.Toleration{
		Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds,
	}
}

func seconds(n int64) *int64 { return &n }

// hold makes such a pod.
func (c *cluster) hold(t *testing.T, name string, spec corev1.PodSpec) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: spec}
	if _, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// held waits until a pod of that app runs, on the node, and returns it.
func (c *cluster) held(t *testing.T, h *history, app, node string) *corev1.Pod {
	t.Helper()
	p := h.pod(t, app+" runs on "+node, func(p *corev1.Pod) bool {
		return p.Labels["app"] == app && p.Spec.NodeName == node && podReady(p) == corev1.ConditionTrue && p.DeletionTimestamp == nil
	})
	c.aliveIs(t, p, 1)
	return p
}

// aliveIs waits until that many processes of a pod are there.
func (c *cluster) aliveIs(t *testing.T, p *corev1.Pod, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has %d processes", p.Name, n), func() error {
		if has := processesOfPod(p.UID); len(has) != n {
			return fmt.Errorf("it has %v", has)
		}
		return nil
	})
}

// processesOfPod are the process ids of what a pod's container runs.
func processesOfPod(uid types.UID) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if err != nil || len(args) != 4 || args[2] != hold || args[3] != string(uid) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && alive(pid) {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// starts is how often a process of the pod was started.
func (c *cluster) starts(t *testing.T, uid types.UID) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.diary(), "starts"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == string(uid) {
			n++
		}
	}
	return n
}
