package pods

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// A port is declared by a container that runs, at the addresses of its pod; a port of
// the host at those of the node.
func TestDeclares(t *testing.T) {
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("web", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{
				{Name: "http", ContainerPort: 8080},
				{ContainerPort: 8053, Protocol: corev1.ProtocolUDP},
				{ContainerPort: 9090, Protocol: corev1.ProtocolTCP, HostPort: 9091},
				{ContainerPort: 9092, HostPort: 9092, HostIP: "10.9.9.9"},
			}
		}))
		want := func(addr string, want bool) {
			w.t.Helper()
			if got := w.runner.Declares(netip.MustParseAddrPort(addr)); got != want {
				w.t.Errorf("%s: %v, want %v", addr, got, want)
			}
		}
		w.wantPhase("web", corev1.PodRunning)
		ip := w.pod("web").Status.PodIP
		for _, port := range []string{"8080", "9090"} {
			want(netip.MustParseAddr(ip).String()+":"+port, true)
			want("[::ffff:"+ip+"]:"+port, true)
		}
		for _, port := range []string{"22", "8053", "9093"} {
			want(ip+":"+port, false)
		}
		want("10.1.1.1:9091", true)
		for port, want := range map[int32]bool{9091: true, 9090: false, 8080: false, 9092: false} { // of a pod that has an address of its own
			if got := declares(w.pod("web"), "10.1.1.1", port, false, true); got != want {
				w.t.Errorf("port %d of the host: %v, want %v", port, got, want)
			}
		}
		want("10.7.7.7:8080", false)
		w.remove("web", 0)
		advance(0)
		want(ip+":8080", false)
		want("10.1.1.1:9091", false)
	})
}

// TestDialDeclared: a declared port of the node is its pod's only if the pod listens there.
func TestDialDeclared(t *testing.T) {
	for name, tt := range map[string]struct {
		ips     []string // of pods
		network bool     // of the host
		asked   bool     // whether the runtime is, whose port it is
	}{
		"shared":         {nil, false, true},
		"host's network": {nil, true, false},
		"own address":    {[]string{"192.0.2.7"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			o := memory.Options{SandboxIPs: tt.ips, Dial: func(_ context.Context, _ runtime.PodID, port uint16, also []netip.Addr) (net.Conn, error) {
				asked = port == 22 && len(also) == 1 && also[0] == netip.MustParseAddr("10.1.1.1")
				return nil, runtime.ErrForeignPort
			}}
			inWorld(t, o, func(w *world) {
				w.create(newPod("web", func(p *corev1.Pod) {
					p.Spec.HostNetwork = tt.network
					p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 22}}
				}))
				w.wantPhase("web", corev1.PodRunning)
				ctx, cancel := context.WithCancel(w.t.Context())
				cancel() // nobody else is dialed
				addr := netip.AddrPortFrom(netip.MustParseAddr(w.pod("web").Status.PodIP), 22)
				_, err := w.runner.DialDeclared(ctx, addr)
				if asked != tt.asked || errors.Is(err, runtime.ErrForeignPort) != tt.asked {
					w.t.Errorf("asked %v, want %v: %v", asked, tt.asked, err)
				}
				if _, err := w.runner.DialDeclared(ctx, netip.AddrPortFrom(addr.Addr(), 23)); !errors.Is(err, runtime.ErrNotRunning) {
					w.t.Errorf("a port that nobody declares any more: %v", err)
				}
			})
		})
	}
}
