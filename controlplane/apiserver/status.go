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

// serveStatus serves Config.Status, if there is one.
func (s *Server) serveStatus(to *mux.PathRecorderMux) {
	if s.cfg.Status != nil {
		to.HandlePrefix(StatusPath, NotForNodes(s.cfg.Status))
	}
}

// NotForNodes refuses nodes, also if a role that is meant for people reaches them, such as
// one that all are bound to who are known: a node sees nothing of the others.
func NotForNodes(next http.Handler) http.Handler {
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
