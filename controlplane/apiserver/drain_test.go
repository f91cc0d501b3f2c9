package apiserver_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

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

// TestNothingIsLeft: a connection on which nothing was said ends with the server too. The
// library waits for such a one longer than for the server's end, and then forgets it.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) { c.DrainTimeout = time.Second }))(t)
	u := must(url.Parse(in.config.Host))(t)
	c := must((&net.Dialer{}).DialContext(t.Context(), "tcp", u.Host))(t)
	defer c.Close()
	// The server has accepted it before the connection of this request.
	transport := must(rest.HTTPClientFor(in.config))(t)
	resp := must(transport.Do(must(http.NewRequestWithContext(t.Context(), http.MethodGet, in.config.Host+"/readyz", nil))(t)))(t)
	_ = resp.Body.Close()
	if err := in.stop(); err != nil {
		t.Error(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection outlives the server")
	}
}
