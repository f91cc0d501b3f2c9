// Tests of where default/kubernetes leads when several servers share a store.

package apiserver_test

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

// TestSeveralServersOneService: default/kubernetes leads to all servers that are alive,
// nobody writes it while they are the same, and one that stops or falls silent goes.
func TestSeveralServersOneService(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := ownStore(t, dir)
	one := func(addr string) *instance {
		return must(startWith(dir, func(c *apiserver.Config) {
			c.Etcd = etcd.Config{}
			c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
			c.AdvertiseAddress, c.AdvertisePort = netip.MustParseAddr(addr), 6443
			c.BuiltinPeriod = 50 * time.Millisecond
		}))(t)
	}
	a, b := one("192.0.2.1"), one("192.0.2.2")
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	leads := func(want ...string) func() bool {
		return func() bool {
			slice := must(a.client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
			var have []string
			for _, e := range slice.Endpoints {
				have = append(have, e.Addresses...)
			}
			old := must(a.client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
			var had []string
			for _, subset := range old.Subsets {
				for _, address := range subset.Addresses {
					had = append(had, address.IP)
				}
			}
			return slices.Equal(have, want) && slices.Equal(had, want)
		}
	}
	until(t, "the service leads to both servers", leads("192.0.2.1", "192.0.2.2"))

	written := func() string {
		slice := must(a.client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
		old := must(a.client.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}))(t)
		return slice.ResourceVersion + " " + old.ResourceVersion
	}
	rounds := func(addr string) int64 {
		got := must(store.Client().Get(t.Context(), "/registry/masterleases/"+addr+":6443"))(t)
		if len(got.Kvs) == 0 {
			return 0
		}
		return got.Kvs[0].Version
	}
	before, first, second := written(), rounds("192.0.2.1"), rounds("192.0.2.2")
	until(t, "each server has looked five times", func() bool { return rounds("192.0.2.1") > first+5 && rounds("192.0.2.2") > second+5 })
	if after := written(); after != before {
		t.Errorf("versions %s became %s without a change", before, after)
	}

	lease := must(store.Client().Grant(t.Context(), 60))(t)
	must(store.Client().Put(t.Context(), "/registry/masterleases/192.0.2.3:6443", "", clientv3.WithLease(lease.ID)))(t)
	until(t, "a third server is there", leads("192.0.2.1", "192.0.2.2", "192.0.2.3"))
	must(store.Client().Revoke(t.Context(), lease.ID))(t)
	until(t, "a server that is silent goes", leads("192.0.2.1", "192.0.2.2"))

	if err := b.stop(); err != nil {
		t.Error(err)
	}
	until(t, "a server that has stopped goes", leads("192.0.2.1"))
}
