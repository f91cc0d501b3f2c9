package controlplane

// Who wrote, as the audit log of a cluster's API server would show it.

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// writers are the user agents of requests that write, and what each wrote last.
type writers struct {
	mu   sync.Mutex
	last map[string]string // guarded by mu
	// refused is what controllers asked that their roles do not grant, and what they wrote
	// that the table of their kinds does not have.
	refused map[string]bool // guarded by mu
}

// note notes who writes, who asks what roles do not grant, and who writes what no document
// has.
func (w *writers) note(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		refused, more := asked(r), unlisted(r)
		w.mu.Lock()
		if r.Method != http.MethodGet {
			w.last[r.UserAgent()] = r.Method + " " + r.URL.Path
		}
		for _, text := range []string{refused, more} {
			if text != "" {
				w.refused[text] = true
			}
		}
		w.mu.Unlock()
		next.ServeHTTP(rw, r)
	})
}

// check wants each write of the control plane to be by a controller of the table, but for
// the lease and the events of who leads.
func (w *writers) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for text := range w.refused {
		t.Error(text)
	}
	for agent, last := range w.last {
		name, ok := controllerOf(agent)
		if component, _, _ := strings.Cut(agent, "/"); ok && (component == schedulerAgent) != (name == "kube-scheduler") {
			t.Errorf("%s writes as %s", name, component)
		}
		switch {
		case !ok: // a test's client
		case name == "leader-election" && (strings.Contains(last, "/leases") || strings.Contains(last, "/events")):
		case !slices.Contains(Names(), name):
			t.Errorf("%s by %q", last, agent)
		}
	}
}

// wrote tells whether a controller has written.
func (w *writers) wrote(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for agent := range w.last {
		if n, ok := controllerOf(agent); ok && n == name {
			return true
		}
	}
	return false
}

// controllerOf is the name at the end of a controller's user agent; false for others.
func controllerOf(agent string) (name string, ok bool) {
	component, _, _ := strings.Cut(agent, "/")
	_, version, _ := strings.Cut(rest.DefaultKubernetesUserAgent(), "/")
	if component != managerAgent && component != schedulerAgent {
		return "", false
	}
	return strings.CutPrefix(agent, component+"/"+version+"/")
}
