// Warnings about objects that give reason for many.

package kinds

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestWarningsArePerItem: an item that is at odds with many is warned of once, not once for each.
func TestWarningsArePerItem(t *testing.T) {
	t.Parallel()
	pod := goodPod(t)()
	pod.Spec.Containers[0].Ports = slices.Repeat([]corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}}, 4)
	const ports = "spec.containers[0].ports[%d]: %s port definition with spec.containers[0].ports[%d]"
	warned(t, pods(), pod, fmt.Sprintf(ports, 1, "duplicate", 0), fmt.Sprintf(ports, 2, "duplicate", 0), fmt.Sprintf(ports, 3, "duplicate", 0))

	bound := func(hostPort int32, hostIP string) corev1.ContainerPort {
		return corev1.ContainerPort{ContainerPort: 80, Protocol: "TCP", HostPort: hostPort, HostIP: hostIP}
	}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{
		bound(0, ""), bound(1, "10.0.0.1"), bound(1, "10.0.0.2"), bound(1, ""), bound(2, "10.0.0.1"), bound(1, "10.0.0.3"), bound(2, "10.0.0.2"),
	}
	var want []string
	for i := 1; i < 7; i++ {
		want = append(want, fmt.Sprintf(ports, i, "overlapping", 0))
		switch i {
		case 3:
			want = append(want, fmt.Sprintf(ports, 3, "dangerously ambiguous", 1))
		case 5:
			want = append(want, fmt.Sprintf(ports, 5, "dangerously ambiguous", 3))
		}
	}
	warned(t, pods(), pod, want...)

	pod = goodPod(t)()
	volume := func(paths ...string) {
		source := &corev1.SecretVolumeSource{SecretName: "s"}
		for _, p := range paths {
			source.Items = append(source.Items, corev1.KeyToPath{Key: "k", Path: p})
		}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: source}}}
	}
	const overlap = `volume "v" (Secret "s"): overlapping paths: `
	volume("a", "a", "a", "a")
	warned(t, pods(), pod, overlap+`"a" with "a"`, overlap+`"a" with "a"`, overlap+`"a" with "a"`)
	volume("a/b/c", "x", "a-b", "a", "a/b", "ab", "a/c", "")
	warned(t, pods(), pod, overlap+`"a/b" with "a"`, overlap+`"a/b" with "a/b/c"`, overlap+`"a/c" with "a"`)
}

// TestWarningsAreBounded: whatever an object gives reason for, few and short warnings are kept.
func TestWarningsAreBounded(t *testing.T) {
	t.Parallel()
	spec := func(change func(c *corev1.Container, s *corev1.PodSpec)) *corev1.PodSpec {
		p := goodPod(t)()
		change(&p.Spec.Containers[0], &p.Spec)
		return &p.Spec
	}
	for name, s := range map[string]*corev1.PodSpec{
		"ports":     spec(func(c *corev1.Container, _ *corev1.PodSpec) { c.Ports = make([]corev1.ContainerPort, 3000) }),
		"variables": spec(func(c *corev1.Container, _ *corev1.PodSpec) { c.Env = make([]corev1.EnvVar, 3000) }),
		"secrets": spec(func(_ *corev1.Container, s *corev1.PodSpec) {
			s.ImagePullSecrets = make([]corev1.LocalObjectReference, 3000)
		}),
		"addresses": spec(func(_ *corev1.Container, s *corev1.PodSpec) {
			s.HostAliases = slices.Repeat([]corev1.HostAlias{{IP: "FD00::1"}}, 3000)
		}),
		"files": spec(func(_ *corev1.Container, s *corev1.PodSpec) {
			items := slices.Repeat([]corev1.KeyToPath{{Key: "k", Path: "p"}}, 3000)
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{Items: items}}}}
		}),
		"terms": spec(func(_ *corev1.Container, s *corev1.PodSpec) {
			s.TopologySpreadConstraints = make([]corev1.TopologySpreadConstraint, 3000)
		}),
	} {
		job := batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: *s}}
		for _, c := range []struct {
			kind Kind
			obj  runtime.Object
		}{
			{pods(), &corev1.Pod{Spec: *s}},
			{deployments(), &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: job.Template}}},
			{statefulSets(), &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: job.Template}}},
			{jobs(), &batchv1.Job{Spec: job}},
			{cronJobs(), &batchv1.CronJob{Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: job}}}},
		} {
			got := newStrategy(runtime.NewScheme(), &c.kind).WarningsOnCreate(t.Context(), c.obj)
			if len(got) != 51 || got[50] != "there are more warnings than are told here" {
				t.Errorf("%s of a %s: %d warnings", name, c.kind.kind, len(got))
			}
		}
	}

	long := goodPod(t)()
	long.Spec.ImagePullSecrets = slices.Repeat([]corev1.LocalObjectReference{{Name: strings.Repeat("é", 9000)}}, 2)
	got := newStrategy(runtime.NewScheme(), ptr(pods())).WarningsOnCreate(t.Context(), long)
	if len(got) != 1 || len(got[0]) > 1100 || !strings.HasSuffix(got[0], "é...") {
		t.Errorf("a long warning is %.2000q", got)
	}
}
