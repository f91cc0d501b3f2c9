package kubeauth

// Requests that last: they end when the node that made them loses its name.

import (
	"context"
	"net/http"
	"strings"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

// Tenure tells when a key loses a node's name. A *nodekeys.Keeper is one.
type Tenure interface {
	// Watch returns a context that is done once key has lost the name. Whether it holds
	// it now is for the authenticator, which is asked after that. The caller calls stop.
	Watch(ctx context.Context, name string, key nodekeys.Key) (_ context.Context, stop func())
}

// EndWatches ends the watches of a node once its key does not hold its name any more.
// The other requests of nodes are short.
func EndWatches(names Tenure, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && lasts(r) {
			cert := r.TLS.PeerCertificates[0]
			if node, is := strings.CutPrefix(cert.Subject.CommonName, nodeUserPrefix); is {
				ctx, stop := names.Watch(r.Context(), node, nodekeys.KeyOf(cert))
				defer stop()
				r = r.WithContext(ctx)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// lasts says whether a request may be a watch.
func lasts(r *http.Request) bool {
	return strings.Contains(r.URL.RawQuery, "watch") || strings.Contains(r.URL.Path, "/watch/")
}
