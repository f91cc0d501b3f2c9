package apiserver

// What an extension server says of its documents, however much that is.

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// TestEndlessList: a list of documents without an end takes neither memory nor time.
func TestEndlessList(t *testing.T) {
	var sent atomic.Int64
	ended := make(chan struct{})
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for chunk := bytes.Repeat([]byte("x"), 64<<10); ; {
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	defer srv.Close()
	e := &elsewhere{
		dial: &transport.DialHolder{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, srv.Listener.Addr().String())
		}},
		certificate: func() (cert, key []byte) { return nil, nil },
		roots:       make(map[string]*root),
	}
	got := e.root(&apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "example.com", Version: "v1", Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "example"}, InsecureSkipTLSVerify: true,
		},
	})
	select {
	case <-ended:
	case <-time.After(rootTimeout + 30*time.Second):
		t.Fatal("the server was not asked, or is read on")
	}
	if got.ok {
		t.Errorf("believed: %+v", got.found)
	}
	// Beyond what is read there is what buffers on the way hold.
	if n := sent.Load(); n < rootBytes || n > 4*rootBytes {
		t.Errorf("%d bytes were sent", n)
	}
}
