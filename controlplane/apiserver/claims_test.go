// Two servers on one store, and what a server that ended in between leaves behind.

package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

// ranges is where claims lie.
const ranges = "/registry/hawser/ranges/"

func nodePortService(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}},
	}}
}

func TestTwoServersOnOneStore(t *testing.T) {
	dir := t.TempDir()
	store := ownStore(t, dir)
	leave := func(key string, since time.Time) {
		t.Helper()
		text := must(json.Marshal(map[string]any{"owner": "nobody", "since": since}))(t)
		must(store.Client().Put(t.Context(), ranges+key, string(text)))(t)
	}
	// Of a range of 30, its first is default/kubernetes'.
	leave("service-ips/10.96.0.2", time.Now().Add(-time.Hour)) // by a server that ended
	leave("service-ips/10.96.0.3", time.Now())                 // by one that is just making a service
	leave("service-ips/nonsense", time.Now())
	must(store.Client().Put(t.Context(), ranges+"node-ports/30000", "nonsense"))(t)
	var servers []*instance
	for range 2 {
		in := must(startWith(dir, func(c *apiserver.Config) {
			c.Etcd = etcd.Config{}
			c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
			c.ServiceCIDR = netip.MustParsePrefix("10.96.0.0/27")
		}))(t)
		t.Cleanup(func() {
			if err := in.stop(); err != nil {
				t.Error(err)
			}
		})
		servers = append(servers, in)
	}
	var mu sync.Mutex
	given := map[string]string{}
	var wg sync.WaitGroup
	for i := range 28 {
		wg.Go(func() {
			s, err := servers[i%2].client.CoreV1().Services("default").Create(t.Context(), nodePortService(fmt.Sprint("s", i)), metav1.CreateOptions{})
			if err != nil {
				t.Errorf("s%d: %v", i, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, number := range []string{s.Spec.ClusterIP, fmt.Sprint(s.Spec.Ports[0].NodePort)} {
				if other := given[number]; other != "" {
					t.Errorf("%s is of %s and of %s", number, other, s.Name)
				}
				given[number] = s.Name
			}
		})
	}
	wg.Wait()
	if given["10.96.0.2"] == "" || given["10.96.0.3"] != "" {
		t.Errorf("what a server left behind is of %q, what one is about to use is of %q", given["10.96.0.2"], given["10.96.0.3"])
	}
	// Now none is left but what one is about to use, whichever server is asked.
	for i, in := range servers {
		_, err := in.client.CoreV1().Services("default").Create(t.Context(), nodePortService("more"), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "is full") {
			t.Errorf("server %d: %v", i, err)
		}
	}
	testHandedOver(t, servers[0], servers[1])
}

// testHandedOver: what one server gives back the other one may give out, and not before.
func testHandedOver(t *testing.T, a, b *instance) {
	mine, theirs := a.client.CoreV1().Services("default"), b.client.CoreV1().Services("default")
	s := must(mine.Get(t.Context(), "s0", metav1.GetOptions{}))(t)
	same := nodePortService("same")
	same.Spec.ClusterIP, same.Spec.Ports[0].NodePort = s.Spec.ClusterIP, s.Spec.Ports[0].NodePort
	for _, dry := range [][]string{{metav1.DryRunAll}, nil} {
		if _, err := theirs.Create(t.Context(), same, metav1.CreateOptions{DryRun: dry}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated") {
			t.Errorf("what the other one's service has, dry %q: %v", dry, err)
		}
	}
	if err := mine.Delete(t.Context(), "s0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(theirs.Create(t.Context(), same, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	must(theirs.Create(t.Context(), same, metav1.CreateOptions{}))(t)
}

// A store of a server that kept no claims goes on: what its services have is theirs.
func TestClaimsOfOldStore(t *testing.T) {
	dir := t.TempDir()
	store := ownStore(t, dir)
	on := func(c *apiserver.Config) {
		c.Etcd = etcd.Config{}
		c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
	}
	in := must(startWith(dir, on))(t)
	s := must(in.client.CoreV1().Services("default").Create(t.Context(), nodePortService("old"), metav1.CreateOptions{}))(t)
	if err := in.stop(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"service-ips/" + s.Spec.ClusterIP, fmt.Sprint("node-ports/", s.Spec.Ports[0].NodePort)} {
		if got := must(store.Client().Delete(t.Context(), ranges+key))(t); got.Deleted != 1 {
			t.Errorf("%s was not claimed", key)
		}
	}
	in = must(startWith(dir, on))(t)
	defer func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	}()
	again := nodePortService("again")
	again.Spec.ClusterIP = s.Spec.ClusterIP
	if _, err := in.client.CoreV1().Services("default").Create(t.Context(), again, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an address that a service has: %v", err)
	}
	s.Spec.Type = corev1.ServiceTypeClusterIP // and it gives its port back
	must(in.client.CoreV1().Services("default").Update(t.Context(), s, metav1.UpdateOptions{}))(t)
	again = nodePortService("again")
	again.Spec.Ports[0].NodePort = s.Spec.Ports[0].NodePort
	must(in.client.CoreV1().Services("default").Create(t.Context(), again, metav1.CreateOptions{}))(t)
}
