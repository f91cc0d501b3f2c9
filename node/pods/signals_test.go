package pods

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

func TestSignalNumber(t *testing.T) {
	for name, want := range map[corev1.Signal]int{
		"": 0, "SIGNONE": 0, corev1.SIGTERM: 15, corev1.SIGKILL: 9, corev1.SIGUSR1: 10, corev1.SIGCLD: 17, corev1.SIGIOT: 6, corev1.SIGPOLL: 29,
		corev1.SIGSTKFLT: 16, corev1.SIGPWR: 30, corev1.SIGRTMIN: 34, corev1.SIGRTMINPLUS15: 49, corev1.SIGRTMAXMINUS14: 50, corev1.SIGRTMAX: 64, "SIGRTMAX+1": 0, "SIGRTMIN+x": 0,
	} {
		if got := signalNumber(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// TestStopSignal: the runtime is told the signal of a container, and the status names it.
func TestStopSignal(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.OS = &corev1.PodOS{Name: corev1.Linux}
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: ptr.To(corev1.SIGUSR1)}
			p.Spec.Containers = append(p.Spec.Containers, container1("other"))
		}))
		advance(time.Second)
		w.wantPhase("a", corev1.PodRunning)
		for _, c := range w.rt.Specs() {
			if want := map[bool]int{true: 0, false: 10}[c.Name == "other"]; c.StopSignal != want {
				t.Errorf("container %s: signal %d, want %d", c.Name, c.StopSignal, want)
			}
		}
		for _, s := range w.pod("a").Status.ContainerStatuses {
			if got, want := ptr.Deref(s.StopSignal, ""), map[bool]corev1.Signal{false: corev1.SIGUSR1}[s.Name == "other"]; got != want {
				t.Errorf("status of %s: %q, want %q", s.Name, got, want)
			}
		}
	})
}

// TestNoNamesOfItsOwn: a pod has its node's /etc/resolv.conf whatever it says of DNS, and its
// host name has no domain.
func TestNoNamesOfItsOwn(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "sub", ptr.To(true)
			p.Spec.DNSPolicy, p.Spec.DNSConfig = corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}
		}))
		advance(time.Second)
		w.wantPhase("a", corev1.PodRunning)
		for _, c := range w.rt.Specs() {
			if slices.ContainsFunc(c.Mounts, func(m runtime.Mount) bool { return m.ContainerPath == "/etc/resolv.conf" }) {
				t.Errorf("mounts %+v", c.Mounts)
			}
			if !slices.Contains(c.Env, "HOSTNAME=a") {
				t.Errorf("environment %q", c.Env)
			}
		}
	})
}
