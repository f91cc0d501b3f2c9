// Tests of a stop while the store does not answer.

package apiserver_test

import (
	"context"
	"io"
	"net"
	"net/http"
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

// A valve is a listener in front of a store. Once it is shut nothing passes, and
// connections stay: so it is when the store's machine is gone.
type valve struct {
	addr  string
	shut  chan struct{}
	group sync.WaitGroup
}

func newValve(t *testing.T, dir, store string) *valve {
	t.Helper()
	v := &valve{addr: "unix://" + filepath.Join(dir, "valve"), shut: make(chan struct{})}
	l := must(net.Listen("unix", filepath.Join(dir, "valve")))(t)
	v.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("unix", store)
			if err != nil {
				_ = c.Close()
				continue
			}
			t.Cleanup(func() { _, _ = c.Close(), s.Close() })
			v.group.Go(func() { v.pass(c, s) })
			v.group.Go(func() { v.pass(s, c) })
		}
	})
	t.Cleanup(v.group.Wait)
	t.Cleanup(func() { _ = l.Close() })
	return v
}

func (v *valve) pass(to io.Writer, from io.Reader) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-v.shut:
		default:
			_, _ = to.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// TestStopWhileTheStoreIsGone: requests that wait for a store that says nothing do not
// hold the stop for as long as they may last.
func TestStopWhileTheStoreIsGone(t *testing.T) {
	t.Parallel()
	const oneNamespace = "/api/v1/namespaces/default/configmaps"
	dir := t.TempDir()
	ownStore(t, dir)
	v := newValve(t, dir, filepath.Join(dir, "e", etcd.SocketName))
	came := make(chan struct{}, 64)
	in := must(startWith(dir, func(c *apiserver.Config) {
		c.Wrap = func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, oneNamespace) {
					came <- struct{}{}
				}
				next.ServeHTTP(w, r)
			})
		}
		c.Etcd = etcd.Config{}
		c.EtcdServers.Servers = []string{v.addr}
		c.DrainTimeout = time.Second
	}))(t)
	close(v.shut)
	maps := in.client.CoreV1().ConfigMaps("default")
	ctx := context.WithoutCancel(t.Context())
	var asked sync.WaitGroup
	for name, ask := range map[string]func() error{
		"create": func() error {
			_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{})
			return err
		},
		"get":    func() error { _, err := maps.Get(ctx, "none", metav1.GetOptions{}); return err },
		"list":   func() error { _, err := maps.List(ctx, metav1.ListOptions{}); return err },
		"delete": func() error { return maps.Delete(ctx, "none", metav1.DeleteOptions{}) },
	} {
		asked.Go(func() {
			if err := ask(); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "the store (etcd)") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for range 4 {
		<-came
	}
	began := time.Now()
	if err := in.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("stopped after %v", took)
	}
	asked.Wait()
}
