package cloud

// Addresses of nodes: their order, and how they are followed.

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/cloud-provider/api"
	nodecontroller "k8s.io/cloud-provider/controllers/node"
)

// TestAddresses: the address that a node's agent was given comes first and is the only one of its
// type; a node whose machine does not have it keeps the taint until the machine does. Addresses
// are the cloud's again after each period, and not before; the host name stays.
func TestAddresses(t *testing.T) {
	const often = 5 * time.Minute
	const machines = `machines:
- {name: given, addresses: [{type: ExternalIP, address: 198.51.100.1}, {type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: 10.0.0.2}]}
- {name: wrong, addresses: [{type: InternalIP, address: 10.0.0.3}]}
- {name: none, addresses: [{type: ExternalIP, address: 198.51.100.4}, {type: InternalIP, address: 10.0.0.4}]}
`
	const others = `machines:
- {name: given, addresses: [{type: InternalIP, address: 10.0.0.2}, {type: ExternalIP, address: 198.51.100.11}]}
- {name: wrong, addresses: [{type: InternalIP, address: 10.0.0.3}, {type: InternalIP, address: 10.0.0.9}]}
- {name: none, addresses: [{type: InternalIP, address: 10.0.0.40}]}
`
	arrived := func(name, given string) *corev1.Node {
		n := node(name, "")
		n.Spec.Taints = []corev1.Taint{{Key: api.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "host-of-" + name}}
		if given != "" {
			n.Annotations = map[string]string{api.AnnotationAlphaProvidedIPAddr: given}
		}
		return n
	}
	inLab(t, func(l *lab) {
		c, file, err := open(l.T, machines)
		if err != nil {
			l.Fatal(err)
		}
		l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
			ctl, err := nodecontroller.NewCloudNodeController(f.Core().V1().Nodes(), l.client, c, often, 1, 1)
			return func(ctx context.Context) { ctl.RunWithContext(ctx, counted()) }, err
		})
		expect := func(when, name string, tainted bool, want ...corev1.NodeAddress) {
			l.Helper()
			n, err := l.client.CoreV1().Nodes().Get(l.ctx, name, metav1.GetOptions{})
			if err != nil {
				l.Fatal(err)
			}
			if got := n.Status.Addresses; !slices.Equal(got, append(want, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "host-of-" + name})) {
				l.Errorf("%s: %s has %v, want %v", when, name, got, want)
			}
			if got := len(n.Spec.Taints) > 0; got != tainted {
				l.Errorf("%s: %s is tainted: %v", when, name, got)
			}
		}
		internal := func(s string) corev1.NodeAddress { return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: s} }
		external := func(s string) corev1.NodeAddress { return corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: s} }
		first := func(when string) {
			l.Helper()
			expect(when, "given", false, internal("10.0.0.2"), external("198.51.100.1"))
			expect(when, "wrong", true)
			expect(when, "none", false, external("198.51.100.4"), internal("10.0.0.4"))
		}
		l.later(time.Minute)
		first("at first")
		if err := os.WriteFile(file, []byte(others), 0o600); err != nil {
			l.Fatal(err)
		}
		l.later(often / 2)
		expect("before the period is over", "given", false, internal("10.0.0.2"), external("198.51.100.1"))
		l.later(2 * often)
		expect("after it", "given", false, internal("10.0.0.2"), external("198.51.100.11"))
		expect("after it", "wrong", false, internal("10.0.0.9"))
		expect("after it", "none", false, internal("10.0.0.40"))
	}, arrived("given", "10.0.0.2"), arrived("wrong", "10.0.0.9"), arrived("none", ""))
}
