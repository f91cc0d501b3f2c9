package kubeauth

// The authenticator: client certificates, then bootstrap tokens, then nobody.

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

// AuthenticatorConfig configures an authenticator. ClientCAFile is required.
type AuthenticatorConfig struct {
	// ClientCAFile holds the certificates, in PEM, that sign clients: the one that
	// signs now, then its predecessors, see auth.Authorities. It is read again when
	// it changes.
	ClientCAFile string
	// Secrets finds the Secrets of bootstrap tokens, as they are now: a token must
	// work as soon as it is made. Nil means there are no bootstrap tokens.
	Secrets SecretLookup
	// Names is asked, with each request of a node, whether the key of its certificate
	// holds the node's name; an error refuses the request. Nil means that each
	// certificate of the authority is believed.
	Names Names
}

// Names knows which keys hold the nodes' names. A *nodekeys.Keeper is one.
type Names interface {
	Admit(ctx context.Context, name string, key nodekeys.Key) error
}

// NewAuthenticator returns an authenticator of requests.
//
// A request with a client certificate or a bearer token is who it proves to be,
// or is refused; one with neither is system:anonymous, which the Authorizer
// lets ask for health and version only.
func NewAuthenticator(c AuthenticatorConfig) (authenticator.Request, error) {
	ca, err := auth.LoadAuthorities(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("authenticator: %w", err)
	}
	known := []authenticator.Request{newVerifiedCertificates(ca, c.Names, certificatesKept)}
	if c.Secrets != nil {
		known = append(known, bearertoken.New(&bootstrapTokens{secrets: c.Secrets}))
	}
	return group.NewAuthenticatedGroupAdder(
		union.NewFailOnError(union.New(known...), anonymous.NewAuthenticator(nil)),
	), nil
}
