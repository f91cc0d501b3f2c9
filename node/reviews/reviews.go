// Package reviews lets others than the API server use a node's kubelet API, as far as
// roles allow: it asks the API server whose a token is (TokenReview) and what a user
// may (SubjectAccessReview), as a kubelet does with webhook authentication and
// authorization.
//
// The API server's own certificate and administrators' are believed without asking, so
// that logs and exec do not depend on an answer. All others need what Kubernetes asks
// for: a subresource of nodes by the path, and nodes/proxy for what has none (KEP-2862).
//
// Answers are remembered for the kubelet's times in bounded caches. Questions are
// bounded as well, so that made-up tokens cost the API server little.
package reviews

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/node/kubeletapi"
)

const (
	// How long answers are remembered, as the kubelet's defaults have it. A no to a token
	// is not for long: its account may be on its way.
	tokenTTL   = 2 * time.Minute
	badTTL     = 10 * time.Second
	allowedTTL = 5 * time.Minute
	deniedTTL  = 30 * time.Second
	// How many answers are remembered.
	maxTokens  = 1024
	maxAnswers = 4096
	// How many questions of a kind a node asks, a second and at once.
	asks  = 20
	burst = 100
	// timeout bounds one question.
	timeout = 10 * time.Second
	// maxToken is longer than any token, in bytes.
	maxToken = 16 << 10
)

// Config configures an Access. All is required.
type Config struct {
	NodeName string
	Tokens   apiclient.TokenReviews
	Access   apiclient.AccessReviews
}

// An Access decides about requests to one kubelet API. Authorize may be called at the
// same time.
type Access struct {
	cfg     Config
	asked   rated                 // about tokens; whoever makes some up uses these up for no user
	tried   rated                 // about what users may
	tokens  *cache.LRUExpireCache // of *authenticationv1.UserInfo, nil if it is nobody's, by the token's hash
	answers *cache.LRUExpireCache // of answer, by question
}

// New returns an Access that has asked nothing yet.
func New(c Config) *Access {
	return &Access{
		cfg: c, asked: rated{rate.NewLimiter(asks, burst)}, tried: rated{rate.NewLimiter(asks, burst)},
		tokens: cache.NewLRUExpireCache(maxTokens), answers: cache.NewLRUExpireCache(maxAnswers),
	}
}

// Authorize is a kubeletapi.Authorizer.
func (a *Access) Authorize(r *http.Request) error {
	if kubeletapi.ControlPlaneOnly(r) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	u, err := a.user(ctx, r)
	if err != nil {
		return err
	}
	var refused error
	for _, sub := range subresources(r.URL.Path) {
		if refused = a.may(ctx, u, verb(r.Method), sub); refused == nil {
			return nil
		}
	}
	return refused
}

// user is who asks, by certificate or by token.
func (a *Access) user(ctx context.Context, r *http.Request) (*authenticationv1.UserInfo, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		s := r.TLS.VerifiedChains[0][0].Subject
		return &authenticationv1.UserInfo{Username: s.CommonName, Groups: append([]string{"system:authenticated"}, s.Organization...)}, nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token = strings.TrimSpace(token); !ok || token == "" || len(token) > maxToken {
		return nil, &kubeletapi.RefusedError{Status: http.StatusUnauthorized}
	}
	u, err := a.holder(ctx, token)
	if err != nil {
		return nil, err
	}
	if u == nil {
		return nil, &kubeletapi.RefusedError{Status: http.StatusUnauthorized}
	}
	return u, nil
}

// holder is whose a token is; nil if it is nobody's.
func (a *Access) holder(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	key := sha256.Sum256([]byte(token))
	if u, ok := a.tokens.Get(key); ok {
		return u.(*authenticationv1.UserInfo), nil
	}
	if err := a.asked.take(); err != nil {
		return nil, err
	}
	review, err := a.cfg.Tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, unanswered(err)
	}
	if !review.Status.Authenticated {
		a.tokens.Add(key, (*authenticationv1.UserInfo)(nil), badTTL)
		return nil, nil
	}
	a.tokens.Add(key, &review.Status.User, tokenTTL)
	return &review.Status.User, nil
}

// An answer is nil, or why not.
type answer struct{ refused error }

// may asks whether a user may do verb to a subresource of this node.
func (a *Access) may(ctx context.Context, u *authenticationv1.UserInfo, verb, sub string) error {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: u.Username, UID: u.UID, Groups: u.Groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: a.cfg.NodeName,
		},
	}
	for k, v := range u.Extra {
		if spec.Extra == nil {
			spec.Extra = make(map[string]authorizationv1.ExtraValue)
		}
		spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	key := sha256.Sum256([]byte(spec.String()))
	if got, ok := a.answers.Get(key); ok {
		return got.(answer).refused
	}
	if err := a.tried.take(); err != nil {
		return err
	}
	review, err := a.cfg.Access.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return unanswered(err)
	}
	if review.Status.Allowed {
		a.answers.Add(key, answer{}, allowedTTL)
		return nil
	}
	refused := &kubeletapi.RefusedError{
		Status: http.StatusForbidden, Text: fmt.Sprintf("user %q may not %s nodes/%s of %s", u.Username, verb, sub, a.cfg.NodeName),
	}
	a.answers.Add(key, answer{refused}, deniedTTL)
	return refused
}

// rated questions are as many as there may be.
type rated struct{ limit *rate.Limiter }

func (r rated) take() error {
	if r.limit.Allow() {
		return nil
	}
	return &kubeletapi.RefusedError{Status: http.StatusTooManyRequests, Text: "too many who are not known: try again in a second"}
}

// unanswered is the answer while the API server gives none.
func unanswered(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &kubeletapi.RefusedError{Status: http.StatusServiceUnavailable, Text: fmt.Sprintf("cannot ask the API server who you are and what you may: %v", err)}
}

// verb is what a method is in a role.
func verb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	default:
		return "get"
	}
}

// subresources are those of nodes of which one allows a path.
func subresources(path string) []string {
	within := func(root string) bool { return path == root || strings.HasPrefix(path, root+"/") }
	switch {
	case within("/stats"):
		return []string{"stats"}
	case within("/metrics"):
		return []string{"metrics"}
	case within("/healthz"):
		return []string{"healthz", "proxy"}
	case within("/configz"):
		return []string{"configz", "proxy"}
	case within("/pods"), within("/runningpods"):
		return []string{"pods", "proxy"}
	default:
		return []string{"proxy"}
	}
}
