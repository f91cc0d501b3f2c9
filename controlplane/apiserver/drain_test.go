package apiserver_test

import (
	"context"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// TestLeave: a server that is told to stop says so, answers until Leave has returned, and
// has clients make other connections; only then it takes no more.
func TestLeave(t *testing.T) {
	left, may := make(chan struct{}), make(chan struct{})
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		c.Leave = func() { close(left); <-may }
	}))(t)
	config := rest.CopyConfig(in.config)
	config.NextProtos = []string{"http/1.1"} // whose answers show what becomes of the connection
	client := must(rest.HTTPClientFor(config))(t)
	get := func(path string) *http.Response {
		t.Helper()
		req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, in.config.Host+path, nil))(t)
		resp := must(client.Do(req))(t)
		_ = resp.Body.Close()
		return resp
	}
	const one = "/api/v1/namespaces/default"
	if resp := get(one); resp.StatusCode != http.StatusOK || resp.Close {
		t.Errorf("before: %s, close %v", resp.Status, resp.Close)
	}
	in.cancel()
	<-left
	// The library calls Leave beside that it says so.
	until(t, "/readyz fails", func() bool { return get("/readyz").StatusCode == http.StatusInternalServerError })
	if resp := get(one); resp.StatusCode != http.StatusOK || !resp.Close {
		t.Errorf("while it leaves: %s, close %v", resp.Status, resp.Close)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
	if _, err := in.client.CoreV1().ConfigMaps("default").Create(context.Background(), m, metav1.CreateOptions{}); err != nil {
		t.Errorf("write while it leaves: %v", err)
	}
	select {
	case <-in.server.Closed():
		t.Error("closed before Leave has returned")
	default:
	}
	close(may)
	<-in.server.Closed()
	if err := <-in.done; err != nil {
		t.Error(err)
	}
}
