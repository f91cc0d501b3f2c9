package kubeauth

// The authenticator: client certificates, then the kinds of token, then anonymous.

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

// accountsKept is how long a service account's token is cached, and so how long it may be
// valid after the object that it is bound to was deleted. The cache holds 4,096 valid
// tokens in each of its 32 parts.
const accountsKept = 2 * time.Second

// AuthenticatorConfig configures an authenticator. ClientCAFile is required.
type AuthenticatorConfig struct {
	// ClientCAFile has the authorities of clients, in PEM: the one that signs now, then its
	// predecessors, see auth.Authorities. It is followed.
	ClientCAFile string
	// Files reads ClientCAFile and that of FrontProxy. Nil means one of its own.
	Files *auth.Files
	// Secrets returns the present Secrets of bootstrap tokens: a token must be valid as
	// soon as it is made. Nil means there are no bootstrap tokens.
	Secrets SecretLookup
	// Accounts authenticates tokens of service accounts. Nil means there are none.
	Accounts authenticator.Token
	// FrontProxy configures front proxies. Nil means there are none.
	FrontProxy *FrontProxy
	// Issuers authenticates tokens of other issuers. Nil means there are none.
	Issuers authenticator.Token
	// Audiences are those of the API server: bootstrap tokens are for no others.
	Audiences authenticator.Audiences
	// Names checks, with each request of a node, whether the key of its certificate holds
	// the node's name, and with each request of a pod's token the pod's node; an error
	// refuses the request. Nil means that every certificate of the authority is accepted,
	// and the tokens of all nodes' pods.
	Names Names
}

// Names checks which keys hold the nodes' names. *nodekeys.Keeper implements it.
type Names interface {
	Admit(ctx context.Context, name string, key nodekeys.Key) error
	AdmitPods(ctx context.Context, name string, issued func() time.Time) error
}

// NewAuthenticator returns an authenticator of requests.
//
// A request with a client certificate or a bearer token is authenticated by it or refused.
// One with neither is system:anonymous, which the Authorizer allows health and version
// only.
func NewAuthenticator(c AuthenticatorConfig) (authenticator.Request, error) {
	if c.Files == nil {
		c.Files = &auth.Files{}
	}
	ca, err := c.Files.Authorities(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("authenticator: %w", err)
	}
	var known []authenticator.Request
	if c.FrontProxy != nil {
		proxies, err := newFrontProxy(c.FrontProxy, c.Files)
		if err != nil {
			return nil, fmt.Errorf("authenticator: %w", err)
		}
		known = append(known, proxies)
	}
	known = append(known, newVerifiedCertificates(ca, c.Names, certificatesKept))
	var tokens []authenticator.Token
	if c.Secrets != nil {
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(c.Audiences, &bootstrapTokens{secrets: c.Secrets}))
	}
	if c.Accounts != nil {
		accounts := tokencache.New(c.Accounts, false, accountsKept, 0)
		if c.Names != nil {
			accounts = ofAdmitted(accounts, c.Names)
		}
		tokens = append(tokens, accounts)
	}
	if c.Issuers != nil {
		tokens = append(tokens, c.Issuers)
	}
	if len(tokens) > 0 {
		known = append(known, bearertoken.New(tokenunion.New(tokens...)))
	}
	return group.NewAuthenticatedGroupAdder(
		union.NewFailOnError(union.New(known...), anonymous.NewAuthenticator(nil)),
	), nil
}
