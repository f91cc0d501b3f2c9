// The OpenAPI documents of extension servers, which they are asked for.

package apiserver

import (
	"encoding/json"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	apiregistration "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	openapiv3aggregator "k8s.io/kube-aggregator/pkg/controllers/openapiv3/aggregator"
	remoteavailability "k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/kube-openapi/pkg/handler3"

	"github.com/hawser-project/hawser/auth/answers"
)

const (
	// rootTimeout bounds the wait for an extension server's list of its documents.
	rootTimeout = 5 * time.Second
	// rootBytes bounds that list: the server is a pod on some node, and may say anything.
	rootBytes = 4 << 20
	// rootKept is how long the list, or that there was none, is believed.
	rootKept = time.Minute
)

// elsewhere are the documents of group versions that extension servers serve.
type elsewhere struct {
	services    apiregistration.APIServiceLister
	dial        *transport.DialHolder
	certificate func() (cert, key []byte)
	log         *slog.Logger

	mu    sync.Mutex // guards the following
	roots map[string]*root
}

// A root is an extension server's list of its documents.
type root struct {
	until time.Time
	uid   string
	found handler3.OpenAPIV3DiscoveryGroupVersion
	ok    bool
}

// available are the APIServices of extension servers that answer.
func (e *elsewhere) available() []*apiregistrationv1.APIService {
	all, err := e.services.List(labels.Everything())
	if err != nil {
		return nil // a lister of a cache has no errors
	}
	var out []*apiregistrationv1.APIService
	for _, svc := range all {
		if svc.Spec.Service != nil && helper.IsAPIServiceConditionTrue(svc, apiregistrationv1.Available) {
			out = append(out, svc)
		}
	}
	return out
}

// beside serves documents of group versions that are elsewhere, and the list of all; local
// serves the others.
func (e *elsewhere) beside(local http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := e.available()
		if r.URL.Path == "/openapi/v3" && len(all) > 0 {
			e.list(w, r, local, all)
			return
		}
		for _, svc := range all {
			if strings.TrimPrefix(r.URL.Path, "/openapi/v3/") == documentName(svc) {
				e.ask(w, r, svc, math.MaxInt64)
				return
			}
		}
		local.ServeHTTP(w, r)
	})
}

func documentName(svc *apiregistrationv1.APIService) string {
	return "apis/" + svc.Spec.Group + "/" + svc.Spec.Version
}

// list serves the list of all documents. Servers are asked at the same time.
func (e *elsewhere) list(w http.ResponseWriter, r *http.Request, local http.Handler, all []*apiregistrationv1.APIService) {
	d := openapiv3aggregator.NewDownloader()
	merged, _, err := d.OpenAPIV3Root(local)
	if err != nil || merged == nil {
		local.ServeHTTP(w, r)
		return
	}
	found := make([]*root, len(all))
	var wg sync.WaitGroup
	for i, svc := range all {
		wg.Go(func() { found[i] = e.root(svc) })
	}
	wg.Wait()
	for i, svc := range all {
		if found[i].ok {
			merged.Paths[documentName(svc)] = found[i].found
		}
	}
	body, err := json.Marshal(merged)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client has gone if it fails
}

// root asks the server of svc for its list, unless that is known. While one request waits for a
// newer list others get the one before.
func (e *elsewhere) root(svc *apiregistrationv1.APIService) *root {
	e.mu.Lock()
	have, now := e.roots[svc.Name], time.Now()
	if have != nil && have.uid == string(svc.UID) {
		if now.Before(have.until) {
			e.mu.Unlock()
			return have
		}
		again := *have
		again.until = now.Add(rootTimeout)
		e.roots[svc.Name] = &again
	}
	e.mu.Unlock()
	d := openapiv3aggregator.NewDownloader()
	asked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.ask(w, r, svc, rootBytes) })
	fresh := &root{until: now.Add(rootKept), uid: string(svc.UID)}
	if got, _, err := d.OpenAPIV3Root(http.TimeoutHandler(asked, rootTimeout, "")); err == nil && got != nil {
		fresh.found, fresh.ok = got.Paths[documentName(svc)]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, old := range e.roots {
		if now.Sub(old.until) > rootKept {
			delete(e.roots, name)
		}
	}
	e.roots[svc.Name] = fresh
	return fresh
}

// ask passes r on to the server of svc, for the user who asks. Of the answer it passes on at
// most so many bytes.
func (e *elsewhere) ask(w http.ResponseWriter, r *http.Request, svc *apiregistrationv1.APIService, most int64) {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		http.Error(w, "no user", http.StatusInternalServerError)
		return
	}
	cert, key := e.certificate()
	rt, err := transport.New(remoteavailability.BuildTransportConfig(e.dial, cert, key, svc))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	ref, port := svc.Spec.Service, 443
	if ref.Port != nil {
		port = int(*ref.Port)
	}
	to := &url.URL{Scheme: "https", Host: net.JoinHostPort(ref.Name+"."+ref.Namespace+".svc", strconv.Itoa(port))}
	proxy := httputil.ReverseProxy{
		Transport: transport.NewAuthProxyRoundTripper(user.GetName(), user.GetUID(), user.GetGroups(), user.GetExtra(), rt),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.Header.Del("Authorization")
		},
		ModifyResponse: func(answer *http.Response) error {
			answer.Body = answers.Body(answer.Body, most)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		},
		ErrorLog: slog.NewLogLogger(e.log.With("apiservice", svc.Name).Handler(), slog.LevelWarn),
	}
	proxy.ServeHTTP(w, r)
}
