package kubeauth

// Tenure: what a node has begun ends when it loses its name.

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

// EndRequests ends the requests of a node once its key does not hold its name any more:
// all of them, so that it does not matter how long one may last, or how it is written.
func EndRequests(names Tenure, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
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
