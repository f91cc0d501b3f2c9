// Tests of a server whose authorities are not those of the cluster in the store.

package apiserver_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

// TestForeignAuthorities: a server with authorities of its own, as one with an empty data directory
// makes them, does not serve a cluster of others, and moves nothing in it.
func TestForeignAuthorities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ownStore(t, dir)
	on := func(with *pki.PKI) func(*apiserver.Config) {
		return func(c *apiserver.Config) {
			c.Etcd = etcd.Config{}
			c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
			c.ClientCAFile, c.KubeletCAFile, c.RootCAFile = with.Path(pki.ClientCA, false), with.Path(pki.KubeletCA, false), with.Path(pki.CA, false)
		}
	}
	made := func(name string) *pki.PKI { return must(pki.Ensure(pki.Config{Dir: filepath.Join(dir, name)}))(t) }
	own, other := made("pki"), made("other")
	a := must(startWith(dir, on(own)))(t)
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	maps := a.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	before := must(maps.Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{}))(t)
	roots := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"},
		Data:       map[string]string{"ca.crt": string(must(os.ReadFile(own.Path(pki.CA, false)))(t))},
	}
	must(maps.Create(t.Context(), roots, metav1.CreateOptions{}))(t)
	for name, change := range map[string]func(*apiserver.Config){
		"all":         on(other),
		"of clients":  func(c *apiserver.Config) { c.ClientCAFile = other.Path(pki.ClientCA, false) },
		"of kubelets": func(c *apiserver.Config) { c.KubeletCAFile = other.Path(pki.KubeletCA, false) },
		"of servers":  func(c *apiserver.Config) { c.RootCAFile = other.Path(pki.CA, false) },
	} {
		_, err := startWith(dir, func(c *apiserver.Config) { on(own)(c); change(c) })
		if !errors.As(err, new(*apiserver.ForeignError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := must(maps.Get(t.Context(), before.Name, metav1.GetOptions{}))(t); now.ResourceVersion != before.ResourceVersion {
		t.Errorf("the cluster's authorities were written: %v", now.Data)
	}
	// While an authority is replaced, servers have one in common.
	both := filepath.Join(dir, "both.crt")
	if err := os.WriteFile(both, slices.Concat(must(os.ReadFile(other.Path(pki.ClientCA, false)))(t), must(os.ReadFile(own.Path(pki.ClientCA, false)))(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	b := must(startWith(dir, func(c *apiserver.Config) { on(own)(c); c.ClientCAFile = both }))(t)
	if err := b.stop(); err != nil {
		t.Error(err)
	}
}
