package apiserver

// What an extension server says of its documents, however much that is.

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-openapi/pkg/handler3"
)

// lines are what several goroutines have logged.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestEndlessList: a list of documents without an end takes neither memory nor time.
func TestEndlessList(t *testing.T) {
	var said, plain lines
	log.SetOutput(&plain)
	defer log.SetOutput(os.Stderr)
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
	got := elsewhereAt(srv, slog.New(slog.NewTextHandler(&said, nil))).root(extension())
	select {
	case <-ended:
	case <-time.After(rootTimeout + 30*time.Second):
		t.Fatal("the server was not asked, or is read on")
	}
	if got.ok {
		t.Errorf("believed: %+v", got.found)
	}
	if got := said.String(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, "apiservice=v1.example.com") {
		t.Errorf("logged: %q", got)
	}
	if got := plain.String(); got != "" {
		t.Errorf("said past the log: %q", got)
	}
	// Beyond what is read there is what buffers on the way hold.
	if n := sent.Load(); n < rootBytes || n > 4*rootBytes {
		t.Errorf("%d bytes were sent", n)
	}
}

// TestSlowList: while a server does not answer for a newer list of its documents one request waits
// for it, and others get the one before.
func TestSlowList(t *testing.T) {
	asked, end := make(chan struct{}, 10), make(chan struct{})
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-end
		_, _ = io.WriteString(w, `{"paths":{"apis/example.com/v1":{"serverRelativeURL":"/newer"}}}`)
	}))
	defer srv.Close()
	svc := extension()
	before := &root{uid: string(svc.UID), ok: true, found: handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: "/before"}}
	e := elsewhereAt(srv, slog.New(slog.DiscardHandler))
	e.roots[svc.Name] = before
	newer := make(chan *root)
	go func() { newer <- e.root(svc) }()
	<-asked
	for range 3 {
		if got := e.root(svc); got.found != before.found {
			t.Errorf("meanwhile: %+v", got)
		}
	}
	close(end)
	if got := <-newer; got.found.ServerRelativeURL != "/newer" || len(asked) != 0 {
		t.Errorf("in the end: %+v, asked %d more times", got, len(asked))
	}
}

func extension() *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "example.com", Version: "v1", Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "example"}, InsecureSkipTLSVerify: true,
		},
	}
}

// elsewhereAt asks srv for all services.
func elsewhereAt(srv *httptest.Server, log *slog.Logger) *elsewhere {
	return &elsewhere{
		dial: &transport.DialHolder{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, srv.Listener.Addr().String())
		}},
		certificate: func() (cert, key []byte) { return nil, nil },
		log:         log,
		roots:       make(map[string]*root),
	}
}
