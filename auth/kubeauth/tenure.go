package kubeauth

// Tenure: the requests of a node end when it loses its name.

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/hawser-project/hawser/auth/kubeauth/accounttoken"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

// Tenure reports when a key loses a node's name. *nodekeys.Keeper implements it.
type Tenure interface {
	// Watch returns a context that is done once key has lost the name. The authenticator
	// checks after that whether it holds the name now. The caller calls stop.
	Watch(ctx context.Context, name string, key nodekeys.Key) (_ context.Context, stop func())
	// WatchPods is Watch for the tokens of the node's pods.
	WatchPods(ctx context.Context, name string) (_ context.Context, stop func())
}

// EndRequests ends the requests of a node once its key has lost its name, and those with
// tokens of its pods once it is revoked. It covers all requests, of any duration and form.
func EndRequests(names Tenure, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			cert := r.TLS.PeerCertificates[0]
			if node, is := strings.CutPrefix(cert.Subject.CommonName, nodeUserPrefix); is {
				held, stop := names.Watch(ctx, node, nodekeys.KeyOf(cert))
				defer stop()
				ctx = held
			}
		}
		if node := nodeOfToken(r); node != "" {
			held, stop := names.WatchPods(ctx, node)
			defer stop()
			ctx = held
		}
		if ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		next.ServeHTTP(w, r)
	})
}

// nodeOfToken is the node of the pod in a request's token; empty if there is none. The
// token is not verified yet.
func nodeOfToken(r *http.Request) (node string) {
	if len(r.Header["Authorization"]) == 0 {
		return ""
	}
	find := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		node = accounttoken.ClaimedNode(token)
		return nil, false, nil
	})
	_, _, _ = bearertoken.New(find).AuthenticateRequest(r) // the token is found in the same way as by the authenticator
	return node
}

// ofAdmitted accepts the tokens that accounts accepts, except those of pods of a node that
// names refuses, and those that are bound to such a node. accounts verifies the token.
func ofAdmitted(accounts authenticator.Token, names Names) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		resp, ok, err := accounts.AuthenticateToken(ctx, token)
		if err != nil || !ok {
			return nil, false, err
		}
		if node := resp.User.GetExtra()[serviceaccount.NodeNameKey]; len(node) > 0 {
			issued := func() time.Time { return accounttoken.Issued(token) }
			if err := names.AdmitPods(ctx, node[0], issued); err != nil {
				return nil, false, fmt.Errorf("service account token: %w", err)
			}
		}
		return resp, true, nil
	})
}
