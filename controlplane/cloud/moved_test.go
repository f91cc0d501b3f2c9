package cloud

// Tests of Services whose address leaves the inventory.

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	servicecontroller "k8s.io/cloud-provider/controllers/service"
	"k8s.io/utils/ptr"
)

// TestPoolChanges: a Service whose address is none of the inventory's any more gets another
// soon, or keeps it as long as no other has its ports free, which an event says. Services of
// others are left alone.
func TestPoolChanges(t *testing.T) {
	foreign := service("foreign", had("198.51.100.1"), 80)
	foreign.Spec.LoadBalancerClass = ptr.To("other.example.com/lb")
	inLab(t, func(l *lab) {
		c, file, err := open(l.T, "loadBalancers: {addresses: [192.0.2.1]}")
		if err != nil {
			l.Fatal(err)
		}
		l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
			ctl, err := servicecontroller.New(c, l.client, f.Core().V1().Services(), f.Core().V1().Nodes(), "kubernetes", utilfeature.DefaultFeatureGate)
			return func(ctx context.Context) { ctl.Run(ctx, 1, counted()) }, err
		})
		services := l.client.CoreV1().Services("ns")
		for name, port := range map[string]int32{"first": 80, "second": 81} {
			if _, err := services.Create(l.ctx, service(name, nil, port), metav1.CreateOptions{}); err != nil {
				l.Fatal(err)
			}
		}
		expect := func(when, first, second string) {
			l.Helper()
			l.later(25 * time.Second)
			for name, want := range map[string]string{"first": first, "second": second, "foreign": "198.51.100.1"} {
				s, err := services.Get(l.ctx, name, metav1.GetOptions{})
				if err != nil {
					l.Fatal(err)
				}
				if in := s.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != want {
					l.Errorf("%s: %s has %v, want %s", when, name, in, want)
				}
				moves := strings.HasPrefix(when, "none") && name != "foreign"
				if len(s.Annotations) > 0 != moves {
					l.Errorf("%s: %s is annotated with %v", when, name, s.Annotations)
				}
			}
		}
		set := func(text string) {
			l.Helper()
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				l.Fatal(err)
			}
		}
		expect("at first", "192.0.2.1", "192.0.2.1")
		set("loadBalancers: {addresses: [192.0.2.2, 192.0.2.33]}")
		expect("another", "192.0.2.2", "192.0.2.2")
		set("{}")
		expect("none", "192.0.2.2", "192.0.2.2")
		const want = "first: Error syncing load balancer: failed to ensure load balancer: the inventory has no loadBalancers.addresses"
		if got := l.events("SyncLoadBalancerFailed"); len(got) == 0 || got[0] != want {
			l.Errorf("%q, want %q", got, want)
		}
		set("loadBalancers: {addresses: [192.0.2.111]}")
		expect("one again", "192.0.2.111", "192.0.2.111")
		before := len(l.client.Actions())
		expect("afterwards", "192.0.2.111", "192.0.2.111")
		for _, a := range l.client.Actions()[before:] {
			if a.GetVerb() != "get" && a.GetResource() == corev1.SchemeGroupVersion.WithResource("services") {
				l.Errorf("it goes on writing: %v", a)
			}
		}
	}, foreign)
}
