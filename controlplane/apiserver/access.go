// Who gets in before anybody is asked.

package apiserver

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// openPaths may be read by everybody, known or not. They tell how the server is
// and which version it has, and nothing of what it holds.
var openPaths = []string{"/healthz", "/livez", "/readyz", "/version"}

// openToAll wraps the authenticator and the authorizer of c so that openPaths are, and
// so that the group system:masters, which the loopback client is in, may do everything.
// They tell c.Seen.
func openToAll(c *Config) (authenticator.Request, authorizer.Authorizer) {
	authn, authz, seen := c.Authenticator, c.Authorizer, c.Seen
	everybody := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := authn.AuthenticateRequest(r)
		if ok || !isOpen(r.URL.Path) {
			if !ok {
				seen(r.Context(), false) // unless it has the loopback client's token, which the library asks for
			}
			return resp, ok, err
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
	})
	allowed := authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		anonymous := a.GetUser().GetName() == user.Anonymous
		if !anonymous {
			seen(ctx, true)
		}
		if slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) || !a.IsResourceRequest() && isOpen(a.GetPath()) {
			return authorizer.DecisionAllow, "", nil
		}
		decision, reason, err := authz.Authorize(ctx, a)
		if anonymous && decision != authorizer.DecisionAllow {
			seen(ctx, false)
		}
		return decision, reason, err
	})
	return everybody, allowed
}

// isOpen takes a path only as it is written, not what it might be cleaned to.
func isOpen(p string) bool {
	return path.Clean(p) == p && slices.ContainsFunc(openPaths, func(open string) bool {
		return p == open || strings.HasPrefix(p, open+"/")
	})
}
