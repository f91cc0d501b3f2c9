// Tests of a server whose authorities are not those of the cluster in the store.

package apiserver_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/etcd"
)

// onStore has a server of a directory's authorities use the store in dir.
func onStore(dir string, with *pki.PKI) func(*apiserver.Config) {
	return func(c *apiserver.Config) {
		c.Etcd = etcd.Config{}
		c.EtcdServers.Servers = []string{"unix://" + filepath.Join(dir, "e", etcd.SocketName)}
		c.ClientCAFile, c.KubeletCAFile = with.Path(pki.ClientCA, false), with.Path(pki.KubeletCA, false)
		c.ClusterFile = filepath.Join(filepath.Dir(c.ClientCAFile), "cluster")
	}
}

// TestForeignAuthorities: a server with authorities of its own, as one with an empty data directory
// makes them, does not serve a cluster of others, and moves nothing in it.
func TestForeignAuthorities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ownStore(t, dir)
	made := func(name string) *pki.PKI { return must(pki.Ensure(pki.Config{Dir: filepath.Join(dir, name)}))(t) }
	own, other, mixed := made("pki"), made("other"), made("mixed")
	a := must(startWith(dir, onStore(dir, own)))(t)
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	maps := a.client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	before := must(maps.Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{}))(t)
	for name, change := range map[string]func(*apiserver.Config){
		"all":         func(*apiserver.Config) {},
		"of clients":  func(c *apiserver.Config) { c.KubeletCAFile = own.Path(pki.KubeletCA, false) },
		"of kubelets": func(c *apiserver.Config) { c.ClientCAFile = own.Path(pki.ClientCA, false) },
	} {
		_, err := startWith(dir, func(c *apiserver.Config) { onStore(dir, other)(c); change(c) })
		if !errors.As(err, new(*apiserver.ForeignError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := must(maps.Get(t.Context(), before.Name, metav1.GetOptions{}))(t); now.ResourceVersion != before.ResourceVersion {
		t.Errorf("the cluster's authorities were written: %v", now.Data)
	}
	// While an authority is replaced, servers have one in common. One of the same key is the same.
	both := must(os.ReadFile(mixed.Path(pki.ClientCA, false)))(t)
	if err := os.Remove(own.Path(pki.ClientCA, false)); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Ensure(pki.Config{Dir: filepath.Join(dir, "pki")}); err != nil {
		t.Fatal(err)
	}
	both = append(both, must(os.ReadFile(own.Path(pki.ClientCA, false)))(t)...)
	if err := os.WriteFile(mixed.Path(pki.ClientCA, false), both, 0o600); err != nil {
		t.Fatal(err)
	}
	b := must(startWith(dir, func(c *apiserver.Config) {
		onStore(dir, mixed)(c)
		c.KubeletCAFile = own.Path(pki.KubeletCA, false)
	}))(t)
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	// A directory that has served the cluster is not asked: its authority may have been replaced.
	if err := os.WriteFile(mixed.Path(pki.ClientCA, false), must(os.ReadFile(other.Path(pki.ClientCA, false)))(t), 0o600); err != nil {
		t.Fatal(err)
	}
	b = must(startWith(dir, onStore(dir, mixed)))(t)
	if err := b.stop(); err != nil {
		t.Error(err)
	}
}

// TestOneBegins: of servers that begin one cluster, each with authorities of its own, one has it.
func TestOneBegins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ownStore(t, dir)
	var (
		all    sync.WaitGroup
		serves atomic.Int32
	)
	for _, name := range []string{"one", "two", "three"} {
		keys := must(pki.Ensure(pki.Config{Dir: filepath.Join(dir, name)}))(t)
		all.Go(func() {
			in, err := startWith(dir, onStore(dir, keys))
			switch {
			case err == nil:
				serves.Add(1)
				if err = in.stop(); err != nil {
					t.Error(err)
				}
			case !errors.As(err, new(*apiserver.ForeignError)):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := serves.Load(); n != 1 {
		t.Errorf("%d servers have the cluster", n)
	}
}
