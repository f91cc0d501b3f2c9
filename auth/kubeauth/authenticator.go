package kubeauth

// The authenticator: client certificates, then the two kinds of token, then nobody.

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

// accountsKept is how long a service account's token is believed without another look
// at it, and so how long it outlives what it is bound to. The cache holds 4,096 tokens
// in each of its 32 parts; none of them is a wrong one.
const accountsKept = 2 * time.Second

// AuthenticatorConfig configures an authenticator. ClientCAFile is required.
type AuthenticatorConfig struct {
	// ClientCAFile holds the certificates, in PEM, that sign clients: the one that
	// signs now, then its predecessors, see auth.Authorities. It is followed.
	ClientCAFile string
	// Files reads ClientCAFile and that of FrontProxy. Nil means one of its own.
	Files *auth.Files
	// Secrets finds the Secrets of bootstrap tokens, as they are now: a token must
	// work as soon as it is made. Nil means there are no bootstrap tokens.
	Secrets SecretLookup
	// Accounts believes tokens of service accounts. Nil means there are none.
	Accounts authenticator.Token
	// FrontProxy are proxies that say for whom they ask. Nil means there are none.
	FrontProxy *FrontProxy
	// Issuers believes tokens of others. Nil means none are.
	Issuers authenticator.Token
	// Audiences are those of the API server: bootstrap tokens are for no others.
	Audiences authenticator.Audiences
	// Names is asked, with each request of a node, whether the key of its certificate
	// holds the node's name, and with each one of a pod's token about the pod's node; an
	// error refuses the request. Nil means that each certificate of the authority is
	// believed, and the tokens of all nodes' pods.
	Names Names
}

// Names knows which keys hold the nodes' names. A *nodekeys.Keeper is one.
type Names interface {
	Admit(ctx context.Context, name string, key nodekeys.Key) error
	AdmitPods(ctx context.Context, name string) error
}

// NewAuthenticator returns an authenticator of requests.
//
// A request with a client certificate or a bearer token is who it proves to be,
// or is refused; one with neither is system:anonymous, which the Authorizer
// lets ask for health and version only.
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
