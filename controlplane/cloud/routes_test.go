package cloud

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/route"
)

func ranged(name string, cidrs ...string) *corev1.Node {
	n := node(name, "")
	n.Spec.PodCIDRs = cidrs
	return n
}

// reconcile runs Kubernetes' route controller.
func (l *lab) reconcile(c *Cloud, pods ...string) {
	l.Helper()
	l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
		var nets []*net.IPNet
		var prefixes []netip.Prefix
		for _, s := range pods {
			_, n, err := net.ParseCIDR(s)
			if err != nil {
				return nil, err
			}
			nets, prefixes = append(nets, n), append(prefixes, netip.MustParsePrefix(s))
		}
		c.SetClusterCIDRs(prefixes)
		r, ok := c.Routes()
		if !ok {
			return nil, cloudprovider.NotImplemented
		}
		ctl, err := route.New(r, l.client, f.Core().V1().Nodes(), "kubernetes", nets)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) { ctl.Run(ctx, 10*time.Second, counted()) }, nil
	})
	l.later(time.Minute)
}

// networks says of each node what its condition NetworkUnavailable is.
func (l *lab) networks() string {
	l.Helper()
	all, err := l.client.CoreV1().Nodes().List(l.ctx, metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	var out []string
	for i := range all.Items {
		n, is := &all.Items[i], "nothing"
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				is = string(c.Status) + ":" + c.Reason
			}
		}
		out = append(out, n.Name+"="+is)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestRoutes: Kubernetes' route controller says of each node whether the hub leads to its
// pods, and why not, and no longer once that is mended.
func TestRoutes(t *testing.T) {
	inLab(t, func(l *lab) {
		c := l.provider("{}")
		l.reconcile(c, "10.244.0.0/16", "fd00::/48")
		const want = "apart=False:RouteCreated both=False:RouteCreated none=nothing outside=True:NoRouteCreated same-1=True:NoRouteCreated same-2=True:NoRouteCreated within=True:NoRouteCreated"
		if got := l.networks(); got != want {
			l.Errorf("%s\nwant\n%s", got, want)
		}
		said := strings.Join(l.events("FailedToCreateRoute"), "\n")
		for _, want := range []string{
			"same-1: Could not create route", "10.244.2.0/24 overlaps a range of node same-2: the hub leads to neither; give one of them another range",
			"10.244.2.0/24 overlaps a range of node same-1", "within: Could not create route", "10.9.0.0/24 is no part of --cluster-cidr",
		} {
			if !strings.Contains(said, want) {
				l.Errorf("%q is not said:\n%s", want, said)
			}
		}
		for _, name := range []string{"same-2", "within", "outside"} {
			if err := l.client.CoreV1().Nodes().Delete(l.ctx, name, metav1.DeleteOptions{}); err != nil {
				l.Fatal(err)
			}
		}
		l.later(time.Minute)
		if got, want := l.networks(), "apart=False:RouteCreated both=False:RouteCreated none=nothing same-1=False:RouteCreated"; got != want {
			l.Errorf("%s\nwant\n%s", got, want)
		}
	}, ranged("apart", "10.244.1.0/24"), ranged("both", "10.244.3.0/24", "fd00::/64"), ranged("none"),
		ranged("same-1", "10.244.2.0/24"), ranged("same-2", "10.244.2.0/24"), ranged("within", "10.244.2.128/25"), ranged("outside", "10.9.0.0/24"))
}

// TestRoutesAreNodes: to delete a route that a Node has is an error, and to make one that
// none has.
func TestRoutesAreNodes(t *testing.T) {
	c, _ := newCloud(t, "{}", ranged("a", "10.244.1.0/24"), ranged("broken", "here"), ranged("mapped", "::ffff:10.244.5.0/120"), ranged("local", "169.254.0.0/24"))
	r := (*routes)(c)
	all, err := r.ListRoutes(t.Context(), "kubernetes")
	if err != nil || len(all) != 1 || all[0].TargetNode != "a" || all[0].DestinationCIDR != "10.244.1.0/24" || all[0].Blackhole {
		t.Fatalf("%v, %v", all, err)
	}
	gone := &cloudprovider.Route{TargetNode: "b", DestinationCIDR: "10.244.1.0/24"}
	broken := &cloudprovider.Route{TargetNode: "broken", DestinationCIDR: "here"}
	mapped := &cloudprovider.Route{TargetNode: "mapped", DestinationCIDR: "::ffff:10.244.5.0/120"}
	local := &cloudprovider.Route{TargetNode: "local", DestinationCIDR: "169.254.0.0/24"}
	for what, tc := range map[string]struct {
		err  error
		want string
	}{
		"make mapped":    {r.CreateRoute(t.Context(), "", "", mapped), "::ffff:10.244.5.0/120 is an IPv4 range in IPv6"},
		"make local":     {r.CreateRoute(t.Context(), "", "", local), "169.254.0.0/24 holds addresses that are no one machine's"},
		"make":           {r.CreateRoute(t.Context(), "", "", all[0]), "<nil>"},
		"delete":         {r.DeleteRoute(t.Context(), "", all[0]), "the podCIDRs of node a have 10.244.1.0/24"},
		"make another's": {r.CreateRoute(t.Context(), "", "", gone), "the podCIDRs of node b do not have 10.244.1.0/24"},
		"delete, gone":   {r.DeleteRoute(t.Context(), "", gone), "<nil>"},
		"make no range":  {r.CreateRoute(t.Context(), "", "", broken), "here is no range"},
	} {
		if got := fmt.Sprint(tc.err); got != tc.want {
			t.Errorf("%s: %s, want %s", what, got, tc.want)
		}
	}
	if _, err := (*routes)(&Cloud{}).ListRoutes(t.Context(), ""); err == nil {
		t.Error("nobody knows the nodes, and there are no routes")
	}
}

// TestOverlaps: a range leads to its node if and only if no address in it is in another
// node's.
func TestOverlaps(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		all := make([]podRange, 1+r.IntN(8))
		for i := range all {
			bits := 24 + r.IntN(9)
			all[i] = podRange{node: string(rune('a' + r.IntN(3))), cidr: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(8) << 5)}), bits).Masked()}
		}
		overlaps(all)
		for i, c := range all {
			want := slices.ContainsFunc(all, func(o podRange) bool { return o.node != c.node && o.cidr.Overlaps(c.cidr) })
			if got := c.why() != ""; got != want {
				t.Fatalf("seed %d: range %d of %v: overlaps is %v", seed, i, all, got)
			}
		}
	}
}
