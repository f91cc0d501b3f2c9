// What is the matter between a hub and the cluster's API server, while the hub runs: it is
// looked for when a request fails, and told with its remedy.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
)

const (
	// settle is how long a fault must last before it is told: an API server that has just
	// started refuses everybody, until it has read its roles.
	settle = 5 * time.Second
	// lookAgain is the pause between two looks once all that was found has been told.
	lookAgain = time.Minute
	// maxAsked is how many permissions are kept in mind that the API server has refused.
	maxAsked = 64
)

// requestInfos tell what a request to an API server is about.
var requestInfos = &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis", "api"), GrouplessAPIPrefixes: sets.NewString("api")}

// A remark is something that is the matter, with its remedy.
type remark struct {
	text  string
	about string // tells apart remarks of one text
	attrs []any
}

func (r *remark) key() string { return r.text + " " + r.about }

func (r *remark) log(log *slog.Logger) { log.Warn(r.text, r.attrs...) }

// A trouble says what is the matter with the API server, or with what it permits the hub:
// once when it begins, and when it is over.
type trouble struct {
	o      *serverOptions
	client *clientrest.Config
	api    kubernetes.Interface
	log    *slog.Logger
	failed chan struct{} // has one element if a request has failed since the last look
	known  chan struct{} // closed once it has been looked for the first time

	mu    sync.Mutex
	asked map[string]*permit // guarded by mu: what was refused, by what it is about

	// The following are run's.
	last map[string]bool // found by the last look
	said map[string]bool
}

// newTrouble returns one that learns what fails of the clients that are made of client
// from now on.
func newTrouble(o *serverOptions, client *clientrest.Config, log *slog.Logger) (*trouble, error) {
	t := &trouble{
		o: o, client: clientrest.CopyConfig(client), log: log, failed: make(chan struct{}, 1), known: make(chan struct{}),
		asked: make(map[string]*permit), said: make(map[string]bool),
	}
	var err error
	if t.api, err = kubernetes.NewForConfig(clientrest.AddUserAgent(clientrest.CopyConfig(client), "hub")); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	client.Wrap(func(rt http.RoundTripper) http.RoundTripper { return &watched{rt, t} })
	return t, nil
}

// newClient returns a client of conf that tells t also of requests that there are no credentials
// for: a program is asked for them outside of what wraps conf's transport.
func (t *trouble) newClient(conf *clientrest.Config) (kubernetes.Interface, error) {
	conf = clientrest.AddUserAgent(clientrest.CopyConfig(conf), "hub")
	h, err := clientrest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	c, err := kubernetes.NewForConfigAndClient(conf, &http.Client{Transport: &watched{h.Transport, t}, Timeout: h.Timeout})
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return c, nil
}

// watched tells a trouble of requests that fail.
type watched struct {
	http.RoundTripper
	t *trouble
}

// WrappedRoundTripper lets client-go find the transport below.
func (w *watched) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.RoundTripper.RoundTrip(req)
	switch {
	case err != nil:
		if !errors.Is(err, context.Canceled) {
			w.t.look()
		}
	case resp.StatusCode == http.StatusForbidden:
		w.t.note(req)
		w.t.look()
	case resp.StatusCode == http.StatusUnauthorized:
		w.t.look()
	}
	return resp, err
}

// look has run look for what is the matter.
func (t *trouble) look() {
	select {
	case t.failed <- struct{}{}:
	default:
	}
}

// note remembers what has been refused: controllers that are asked for by name need more
// than the table of permits has.
func (t *trouble) note(req *http.Request) {
	info, err := requestInfos.NewRequestInfo(req)
	if err != nil || !info.IsResourceRequest {
		return
	}
	p := &permit{feature: "what asked for it", group: info.APIGroup, resource: info.Resource, verbs: []string{info.Verb}, namespace: info.Namespace}
	if info.Subresource != "" {
		p.resource += "/" + info.Subresource
	}
	key := info.Verb + " " + p.object()
	if info.Name != "" {
		p.names = []string{info.Name}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked[key] == nil && len(t.asked) < maxAsked {
		t.asked[key] = p
	}
}

// run adds the names of the API server to names when it answers for the first time, and
// says what is the matter until ctx is done.
func (t *trouble) run(ctx context.Context, names *auth.ServerNames) error {
	found, err := learnNames(ctx, t.client, names, t.log)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	if refused := notAccepted(t.client); !slices.ContainsFunc(found, func(r remark) bool { return r.text == refused }) {
		refused, _ := refusedPermits(ctx, t.o, t.api, nil)
		for i := range refused {
			refused[i].log(t.log)
		}
		found = append(found, refused...)
	}
	for i := range found {
		t.said[found[i].key()] = true
	}
	t.tell()
	close(t.known)
	if len(found) > 0 {
		t.look() // to tell when it is over
	}
	return t.follow(ctx)
}

// follow looks for what is the matter when a request has failed, until nothing is.
func (t *trouble) follow(ctx context.Context) error {
	for {
		select {
		case <-t.failed:
		case <-ctx.Done():
			return nil
		}
		for next := settle; ; {
			if !pause(ctx, next) {
				return nil
			}
			found, complete, err := t.find(ctx)
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
			if next = t.say(found, complete); len(found) == 0 {
				break
			}
		}
		if !pause(ctx, lookAgain) {
			return nil
		}
	}
}

// pause says whether ctx has outlasted d.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// tell has the log of the libraries know whether what is the matter has been said.
func (t *trouble) tell() {
	if t.o.beside.told != nil {
		t.o.beside.told.Store(len(t.said) > 0)
	}
}

// find returns all that is the matter now, or not all that is if it is not complete.
func (t *trouble) find(ctx context.Context) (found []remark, complete bool, err error) {
	transport, url, err := asker(t.client)
	if err != nil {
		return nil, false, err
	}
	resp, err := ask(ctx, transport, url)
	if err != nil {
		return []remark{unanswered(err, t.client)}, false, nil
	}
	found = answered(resp, t.client)
	if resp.StatusCode == http.StatusUnauthorized {
		return found, false, nil
	}
	t.mu.Lock()
	asked := maps.Clone(t.asked)
	t.mu.Unlock()
	refused, complete := refusedPermits(ctx, t.o, t.api, slices.Collect(maps.Values(asked)))
	found = append(found, refused...)
	if !complete {
		return found, false, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, p := range asked { // what is permitted, or told for the table, need not be asked for again
		if !slices.ContainsFunc(found, func(r remark) bool { return r.about == p.about(p.verbs[0]) }) {
			delete(t.asked, key)
		}
	}
	return found, true, nil
}

// say tells what was found by the last look as well and has not been told, and whether all
// is over. It returns how long to wait for the next look. What a look that is not complete has not
// found may go on.
func (t *trouble) say(found []remark, complete bool) time.Duration {
	now, next := make(map[string]bool), lookAgain
	for i := range found {
		key := found[i].key()
		now[key] = true
		switch {
		case t.said[key]:
		case t.last[key]:
			found[i].log(t.log)
			t.said[key] = true
		default:
			next = settle
		}
	}
	if len(found) == 0 && len(t.said) > 0 {
		t.log.Info("the API server serves the hub again", "cluster", t.client.Host)
	}
	if complete {
		maps.DeleteFunc(t.said, func(key string, _ bool) bool { return !now[key] })
	}
	t.last = now
	t.tell()
	return next
}
