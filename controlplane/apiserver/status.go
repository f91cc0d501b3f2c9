// The place of the status page among the paths of the server.

package apiserver

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"

	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
)

// StatusPath is what the paths of Config.Status begin with.
const StatusPath = "/hawser/status/"

// statusRoot is StatusPath without its last slash.
var statusRoot = strings.TrimSuffix(StatusPath, "/")

// StatusPaths are the NonResourceURLs of a role that may see the status page.
func StatusPaths() []string { return []string{statusRoot, StatusPath + "*"} }

// ServeStatus registers page below StatusPath, for whoever is no node. The path without its last
// slash is redirected there.
func ServeStatus(to *mux.PathRecorderMux, page http.Handler) {
	to.HandlePrefix(StatusPath, notForNodes(page))
	to.Handle(statusRoot, http.RedirectHandler(StatusPath, http.StatusMovedPermanently))
}

// notForNodes refuses nodes, also if a role that is meant for people reaches them, such as
// one that all are bound to who are known: a node sees nothing of the others.
func notForNodes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, ok := apirequest.UserFrom(r.Context()); ok && slices.Contains(u.GetGroups(), user.NodesGroup) {
			http.Error(w, "nodes may not see the fleet", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// longRunning says which requests have no timeout of the server's.
func longRunning() apirequest.LongRunningRequestCheck {
	known := kubelet.LongRunning()
	return func(r *http.Request, info *apirequest.RequestInfo) bool {
		return known(r, info) || !info.IsResourceRequest && strings.HasPrefix(info.Path, StatusPath)
	}
}
