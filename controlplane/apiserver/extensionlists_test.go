// What controllers read of an extension server's objects, however many that says there are.

package apiserver_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/controlplane/apiserver"
)

// A hoard is an extension server that has no end of things.
type hoard struct {
	*httptest.Server
	read chan int // how much was written of a list of them, before that is compressed
}

func newHoard(t *testing.T) *hoard {
	t.Helper()
	h := &hoard{read: make(chan int, 2)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+stuffGroup+"/v1", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: stuffGroup + "/v1",
			APIResources: []metav1.APIResource{{Name: "things", SingularName: "thing", Kind: "Thing", Namespaced: true, Verbs: metav1.Verbs{"list", "watch", "delete"}}},
		})
	})
	mux.HandleFunc("GET /apis/"+stuffGroup+"/v1/things", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		most, err := strconv.Atoi(r.FormValue("most"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var to io.Writer = w
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			to = z // a connection has room for a gigabyte of this that nobody has read
		}
		n, err := io.WriteString(to, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[{}`)
		for chunk := bytes.Repeat([]byte(",{}"), 1<<14); err == nil && n < most; {
			var more int
			more, err = to.Write(chunk)
			n += more
		}
		_, _ = io.WriteString(to, "]}")
		h.read <- n
	})
	mux.HandleFunc("GET /apis/"+stuffGroup+"/v1/leaves", h.leaves)
	h.Server = httptest.NewTLSServer(mux)
	t.Cleanup(h.Close)
	return h
}

// leaves answers one page of a list of so many pages, each with an object of so many bytes,
// as the label selector says.
func (h *hoard) leaves(w http.ResponseWriter, r *http.Request) {
	var pages, bytes, page int
	_, err := fmt.Sscanf(r.FormValue("labelSelector"), "pages=%d,bytes=%d", &pages, &bytes)
	if next := r.FormValue("continue"); err == nil && next != "" {
		page, err = strconv.Atoi(next)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.FormValue("watch") == "true" {
		h.events(w, r, pages, bytes)
		return
	}
	list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
	list.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("x", bytes)}}}
	if page++; page < pages {
		list.Continue = strconv.Itoa(page)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

// events sends so many events of so many bytes, and then waits for the watcher to go. Zero
// stands for one event without end.
func (h *hoard) events(w http.ResponseWriter, r *http.Request, count, size int) {
	const head, tail = `{"type":"ADDED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"`, `"}}}`
	w.Header().Set("Content-Type", "application/json")
	if count == 0 {
		n, err := io.WriteString(w, head)
		for chunk := bytes.Repeat([]byte("x"), 1<<16); err == nil && n < mostSent; {
			var more int
			more, err = w.Write(chunk)
			n += more
		}
		h.read <- n
		return
	}
	for range count {
		_, _ = io.WriteString(w, head+strings.Repeat("x", size)+tail+"\n")
	}
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// taken is how much was taken of an answer that err ended.
func (h *hoard) taken(t *testing.T, err error) int {
	t.Helper()
	select {
	case n := <-h.read:
		return n
	case <-time.After(time.Minute):
		t.Fatalf("the extension server was not asked, or its answer is not over: %v", err)
		return 0
	}
}

// TestEndless is about what extension servers send without end, by one server.
func TestEndless(t *testing.T) {
	h := newHoard(t)
	in := h.begin(t)
	for name, test := range map[string]func(*testing.T, *hoard, *instance){
		"pages": testEndlessPages, "events": testEndlessEvents, "objects": testEndlessObjects,
	} {
		t.Run(name, func(t *testing.T) { test(t, h, in) })
	}
}

// begin starts an API server with the hoard behind it.
func (h *hoard) begin(t *testing.T) *instance {
	t.Helper()
	in := must(startWith(t.TempDir(), func(c *apiserver.Config) {
		c.ToServices = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, h.Listener.Addr().String())
		}
	}))(t)
	t.Cleanup(func() {
		if err := in.stop(); err != nil {
			t.Error(err)
		}
	})
	registry := must(aggregatorclient.NewForConfig(in.config))(t)
	must(registry.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: stuffService},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: stuffGroup, Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "stuff", Port: ptr.To[int32](443)},
		},
	}, metav1.CreateOptions{}))(t)
	serveAt(t, in.client, "stuff", "10.9.9.9")
	condition(t, registry, apiregistrationv1.ConditionTrue, "Passed")
	person := h.of(t, in.config, "leaves")
	until(t, "what finds the extension server available leads to it", func() bool {
		_, err := person.List(t.Context(), metav1.ListOptions{LabelSelector: "pages=1,bytes=1"})
		return err == nil
	})
	return in
}

// available is what f returns once it is not that the extension server is unavailable, which
// is so for a moment after a check of it was late.
func available[T any](f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if !apierrors.IsServiceUnavailable(err) {
			return v, err
		}
		<-time.After(100 * time.Millisecond)
	}
}

// of lists the objects of a kind as somebody.
func (h *hoard) of(t *testing.T, c *rest.Config, resource string) metadata.Getter {
	t.Helper()
	return must(metadata.NewForConfig(c))(t).Resource(schema.GroupVersionResource{Group: stuffGroup, Version: "v1", Resource: resource})
}

// testEndlessPages: a controller's list of an extension server's objects fails once it has too
// many pages, or too much in them. The next list is read again. A person gets all of it.
func testEndlessPages(t *testing.T, h *hoard, in *instance) {
	controllers := as(in.config, "system:kube-controller-manager", "testers")
	manager := h.of(t, controllers, "leaves")
	read := func(of metadata.Getter, pages, bytes int) (n int, err error) {
		p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := available(func() (*metav1.PartialObjectMetadataList, error) { return of.List(ctx, o) })
			if err == nil {
				n++
			}
			return list, err
		})
		_, _, err = p.List(t.Context(), metav1.ListOptions{LabelSelector: fmt.Sprintf("pages=%d,bytes=%d", pages, bytes)})
		return n, err
	}
	decoded := func(pages, bytes int) (int, error) { return read(manager, pages, bytes) }
	// bulk reads pages without decoding them, which takes more than all else.
	raw := must(kubernetes.NewForConfig(controllers))(t).RESTClient()
	bulk := func(pages, bytes int) (n int, err error) {
		for ; n < pages; n++ {
			if _, err = available(func() ([]byte, error) {
				r := raw.Get().AbsPath("/apis/"+stuffGroup+"/v1/leaves").Param("labelSelector", fmt.Sprintf("pages=%d,bytes=%d", pages, bytes))
				if n > 0 {
					r = r.Param("continue", strconv.Itoa(n))
				}
				return r.DoRaw(t.Context())
			}); err != nil {
				break
			}
		}
		return n, err
	}
	for _, c := range []struct {
		read               func(pages, bytes int) (int, error)
		pages, bytes, want int
	}{
		{decoded, 201, 1, 200}, {decoded, 20, 1, 20}, {bulk, 33, 1 << 20, 32}, {decoded, 9, 1 << 20, 9},
	} {
		n, err := c.read(c.pages, c.bytes)
		if n > c.want || n < c.want-1 || (err == nil) != (n == c.pages) {
			t.Errorf("of %d pages of %d bytes %d were read, want %d: %v", c.pages, c.bytes, n, c.want, err)
		}
	}
	if _, err := manager.List(t.Context(), metav1.ListOptions{LabelSelector: "pages=9,bytes=1", Continue: "8"}); err != nil {
		t.Errorf("the last page of a list that was begun: %v", err)
	}
	if _, err := h.of(t, rest.AddUserAgent(controllers, "another"), "leaves").List(t.Context(), metav1.ListOptions{LabelSelector: "pages=9,bytes=1", Continue: "8"}); !apierrors.IsInternalError(err) {
		t.Errorf("the last page of a list of which nothing is known: %v", err)
	}
	if n, err := read(h.of(t, in.config, "leaves"), 202, 1); n != 202 || err != nil {
		t.Errorf("a person gets %d pages: %v", n, err)
	}
	yes := true
	_, err := manager.Watch(t.Context(), metav1.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a list as a watch: %v", err)
	}
}

// testEndlessEvents: a controller's watch of an extension server's objects ends after 4 MiB, and
// after 32 MiB the controller has to list again. A person gets all of it.
func testEndlessEvents(t *testing.T, h *hoard, in *instance) {
	// What another test has read is another client's.
	controllers := rest.AddUserAgent(as(in.config, "system:kube-controller-manager", "testers"), "events")
	raw := must(kubernetes.NewForConfig(controllers))(t).RESTClient()
	manager, other, person := h.of(t, controllers, "leaves"), h.of(t, rest.AddUserAgent(controllers, "another"), "leaves"), h.of(t, in.config, "leaves")
	list := func(of metadata.Getter) {
		t.Helper()
		must(available(func() (*metav1.PartialObjectMetadataList, error) {
			return of.List(t.Context(), metav1.ListOptions{LabelSelector: "pages=1,bytes=1"})
		}))(t)
	}
	read := func(of metadata.Getter, count, bytes int) (n int, err error) {
		t.Helper()
		w, err := available(func() (watch.Interface, error) {
			return of.Watch(t.Context(), metav1.ListOptions{LabelSelector: fmt.Sprintf("pages=%d,bytes=%d", count, bytes)})
		})
		if err != nil {
			return 0, err
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if e.Type != watch.Added {
				continue
			}
			if n++; n == count {
				break
			}
		}
		return n, nil
	}
	// bulk is read without decoding, which takes more than all else.
	bulk := func() (n int, err error) {
		body, err := available(func() (io.ReadCloser, error) {
			return raw.Get().AbsPath("/apis/"+stuffGroup+"/v1/leaves").Param("watch", "true").Param("labelSelector", fmt.Sprintf("pages=10,bytes=%d", 1<<20)).Stream(t.Context())
		})
		if err != nil {
			return 0, err
		}
		defer body.Close()
		b, _ := io.ReadAll(body) // the answer may end within an event
		return bytes.Count(b, []byte("\n")), nil
	}
	if n, err := read(manager, 1, 1); n != 1 || err != nil {
		t.Errorf("%d events without a list before: %v", n, err)
	}
	list(manager)
	if n, err := read(manager, 0, 0); n != 0 || err != nil {
		t.Errorf("an event without end is %d events: %v", n, err)
	}
	if n := h.taken(t, nil); n > mostSent/2 {
		t.Errorf("%d bytes of an event were read", n)
	}
	list(manager)
	for i := range 8 {
		if n, err := bulk(); n < 2 || n > 3 || err != nil {
			t.Errorf("watch %d had %d events: %v", i, n, err)
		}
	}
	if _, err := bulk(); !apierrors.IsResourceExpired(err) {
		t.Errorf("after 32 MiB: %v", err)
	}
	if _, err := read(manager, 1, 1); !apierrors.IsResourceExpired(err) {
		t.Errorf("after 32 MiB a client that decodes: %v", err)
	}
	list(manager)
	if n, err := read(manager, 10, 1<<20); n < 2 || n > 3 || err != nil {
		t.Errorf("after another list there were %d events: %v", n, err)
	}
	if n, err := read(other, 1, 1); n != 1 || err != nil {
		t.Errorf("%d events for another controller: %v", n, err)
	}
	if n, err := read(person, 10, 1<<20); n != 10 || err != nil {
		t.Errorf("a person gets %d events: %v", n, err)
	}
}

// testEndlessObjects: a controller's list of an extension server's objects fails once it is
// too long. A person gets all of it.
func testEndlessObjects(t *testing.T, h *hoard, in *instance) {
	things := "/apis/" + stuffGroup + "/v1/things"
	controller := must(kubernetes.NewForConfig(as(in.config, "system:kube-controller-manager", "testers")))(t)
	for _, most := range []int{mostSent / 2, math.MaxInt} {
		list, err := available(func() ([]byte, error) {
			return controller.RESTClient().Get().AbsPath(things).Param("most", strconv.Itoa(most)).DoRaw(t.Context())
		})
		if err == nil {
			t.Fatalf("%d bytes of a list of %d were read", len(list), most)
		}
		h.taken(t, err) // one without end is over once it is not read on
	}
	plain := rest.CopyConfig(in.config)
	plain.DisableCompression = true
	person := must(kubernetes.NewForConfig(plain))(t)
	body := must(available(func() (io.ReadCloser, error) {
		return person.RESTClient().Get().AbsPath(things).Param("most", strconv.Itoa(mostSent/2)).Stream(t.Context())
	}))(t)
	defer body.Close()
	if n := must(io.Copy(io.Discard, body))(t); n < mostSent/2 {
		t.Errorf("a person gets %d bytes", n)
	}
	h.taken(t, nil) // what a person took is not for the next test
}
