// The port of health, metrics, profiles and the status page beside another API server. Everybody may
// read health, and those whom the cluster allows may read the rest.

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	genericfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/component-base/configz"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/hawser-project/hawser/cmd/internal/doorman"
	"github.com/hawser-project/hawser/controlplane/apiserver"
)

const (
	// goodbye is how long requests that are underway may take when the process stops.
	goodbye = 5 * time.Second
	// reviewCache is how long an answer of the cluster about a caller is good for.
	reviewCache = 10 * time.Second
	// reviewQPS and reviewBurst bound how often the cluster is asked about callers, as in
	// k8s.io/apiserver/pkg/server/options/authentication.go.
	reviewQPS, reviewBurst = 200, 400
	// healthStrangers is how many connections to the port may be there that have shown no
	// user yet.
	healthStrangers = 256
)

// reviewRetry bounds how often the cluster is asked about one request.
var reviewRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// health is the port and what answers there.
type health struct {
	listener net.Listener
	server   *http.Server
}

// newHealth opens the port.
func newHealth(ctx context.Context, b *hubBeside) (*health, error) {
	authn, authz, err := b.reviews()
	if err != nil {
		return nil, fmt.Errorf("the authorization of --health-port: %w", err)
	}
	door, err := doorman.New(doorman.Config{Server: "health", Limit: healthStrangers, Log: b.log, Metrics: b.metrics})
	if err != nil {
		return nil, err
	}
	h := &health{server: &http.Server{
		Handler: door.Handler(guarded(b.pages(), authn, authz)), ReadHeaderTimeout: goodbye, IdleTimeout: time.Minute,
		// A certificate is verified, like a token, by the authenticator: the authority
		// may change while connections stand.
		TLSConfig: &tls.Config{GetCertificate: b.shown.GetCertificate, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		ErrorLog:  slog.NewLogLogger(b.log.Handler(), slog.LevelDebug),
	}}
	l, err := listen(ctx, "--health-port", b.o.listenAddress(b.o.beside.healthPort))
	if err != nil {
		return nil, err
	}
	h.listener = door.Listener(l)
	return h, nil
}

// reviews ask the cluster who a caller is and what that may read (TokenReview,
// SubjectAccessReview). The cluster also says by which authority it knows client
// certificates. Their client is their own: strangers have them ask, and what the hub itself
// asks must not wait for that.
func (b *hubBeside) reviews() (authenticator.Request, authorizer.Authorizer, error) {
	conf := clientrest.AddUserAgent(clientrest.CopyConfig(b.client), "hub-reviews")
	conf.QPS, conf.Burst = reviewQPS, reviewBurst
	api, err := kubernetes.NewForConfig(conf)
	if err != nil {
		return nil, nil, err
	}
	authn, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:               &apiserverapi.AnonymousAuthConfig{Enabled: true},
		TokenAccessReviewClient: api.AuthenticationV1(), TokenAccessReviewTimeout: reviewCache,
		WebhookRetryBackoff: &reviewRetry, CacheTTL: reviewCache,
		ClientCertificateCAContentProvider: b.clients,
	}.New()
	if err != nil {
		return nil, nil, err
	}
	public, err := path.NewAuthorizer([]string{"/healthz", "/livez", "/readyz", "/livez/*", "/readyz/*"})
	if err != nil {
		return nil, nil, err
	}
	asked, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: api.AuthorizationV1(),
		AllowCacheTTL:             reviewCache, DenyCacheTTL: reviewCache, WebhookRetryBackoff: &reviewRetry,
	}.New()
	if err != nil {
		return nil, nil, err
	}
	authz, err := union.New(
		union.NamedAuthorizer{AuthorizerName: "public", Authorizer: public},
		union.NamedAuthorizer{AuthorizerName: "cluster", Authorizer: asked})
	return seen(authn), refusing(authz), err
}

// seen tells the doorman of each caller whom the cluster knows, and of each that shows
// what is of nobody's.
func seen(authn authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := authn.AuthenticateRequest(r)
		switch {
		case !ok:
			doorman.Seen(r.Context(), false)
		case resp.User.GetName() != user.Anonymous:
			doorman.Seen(r.Context(), true)
		}
		return resp, ok, err
	})
}

// refusing tells the doorman of each caller who shows nothing and may not have what it asks for.
func refusing(authz authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := authz.Authorize(ctx, a)
		if decision != authorizer.DecisionAllow && a.GetUser().GetName() == user.Anonymous {
			doorman.Seen(ctx, false)
		}
		return decision, reason, err
	})
}

// pages are what the port serves.
func (b *hubBeside) pages() http.Handler {
	m := mux.NewPathRecorderMux("hub")
	healthz.InstallHandler(m)
	healthz.InstallLivezHandler(m)
	healthz.InstallReadyzHandler(m, healthz.NamedCheck("hub", func(*http.Request) error {
		select {
		case <-b.stopping:
			return errors.New("the hub has been told to stop")
		default:
		}
		select {
		case <-b.ready:
			return nil
		default:
			return errors.New("the hub has not read yet what it needs of the cluster: see its log")
		}
	}))
	m.Handle("/metrics", legacyregistry.Handler())
	configz.InstallHandler(m) // what the program has registered
	routes.Profiling{}.Install(m)
	apiserver.ServeStatus(m, b.tunnels.page.Handler(apiserver.StatusPath))
	return m
}

func guarded(h http.Handler, authn authenticator.Request, authz authorizer.Authorizer) http.Handler {
	codecs := serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	h = genericfilters.WithAuthorization(h, authz, codecs)
	h = genericfilters.WithAuthentication(h, authn, genericfilters.Unauthorized(codecs), nil, nil)
	return genericfilters.WithRequestInfo(h, requestInfos)
}

// run serves until ctx is done.
func (h *health) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := h.server.ServeTLS(h.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("--health-port: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		if h.server.Shutdown(last) != nil {
			_ = h.server.Close() // what is still underway has had its time
		}
		return nil
	})
	return group.Wait()
}
