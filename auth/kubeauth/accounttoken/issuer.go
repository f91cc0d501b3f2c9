package accounttoken

// The issuer: it signs tokens, and publishes the keys for verifying them.

import (
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// DefaultIssuer is the issuer of tokens, unless configured otherwise.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Config configures an Issuer.
type Config struct {
	// Issuers are https URLs. Tokens are issued by the first; those of the others are
	// accepted too. None means DefaultIssuer.
	Issuers []string
	// Audiences are those of the API server, none means the first issuer. A token has
	// them unless its request says otherwise.
	Audiences []string
	// MaxLife bounds the life of tokens. 0 means as long as the API allows.
	MaxLife time.Duration
	// Signer and Public are required; Signer's public key is one of Public. Use replaces
	// them.
	Signer crypto.Signer
	Public []crypto.PublicKey
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// An Issuer makes and verifies tokens.
type Issuer struct {
	cfg  Config
	keys atomic.Pointer[keys]
}

// New returns an Issuer.
func New(c Config) (*Issuer, error) {
	if len(c.Issuers) == 0 {
		c.Issuers = []string{DefaultIssuer}
	}
	for _, issuer := range c.Issuers {
		if err := CheckIssuer(issuer); err != nil {
			return nil, err
		}
	}
	if len(c.Audiences) == 0 {
		c.Audiences = c.Issuers[:1]
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	i := &Issuer{cfg: c}
	if err := i.Use(c.Signer, c.Public); err != nil {
		return nil, err
	}
	return i, nil
}

// Use replaces the keys: signer signs from now on, and signatures of public are accepted.
// After an error the keys are unchanged.
func (i *Issuer) Use(signer crypto.Signer, public []crypto.PublicKey) error {
	if signer == nil {
		return errors.New("no signing key of service accounts")
	}
	k := &keys{}
	var err error
	if k.signer, err = newSigner(signer); err != nil {
		return err
	}
	if k.public, err = newPublicKeys(public); err != nil {
		return err
	}
	if id, err := keyID(signer.Public()); err != nil || len(k.public.candidates(id)) != 1 || k.public.candidates(id)[0].KeyID != id {
		return errors.New("the signing key of service accounts is none of the public keys: add its public half to them")
	}
	i.keys.Store(k)
	return nil
}

// CheckIssuer returns an error if issuer cannot be the name of an issuer.
func CheckIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("issuer %q is not a URL such as %s", issuer, DefaultIssuer)
	}
	return nil
}

// Audiences are those of the API server.
func (i *Issuer) Audiences() authenticator.Audiences { return slices.Clone(i.cfg.Audiences) }

// MaxLife is the longest life of a token; 0 means as long as the API allows.
func (i *Issuer) MaxLife() time.Duration { return i.cfg.MaxLife }

// A Grant is the content of a token.
type Grant struct {
	Namespace, Name string // of the account
	UID             types.UID
	Audiences       []string
	Life            time.Duration
	// The token is bound to at most one of Pod, Secret and Node. With Pod, Node is the
	// pod's node, whose UID may be unknown.
	Pod, Secret, Node *Named
}

// Named is an object of the account's namespace, or a Node.
type Named struct {
	Name string
	UID  types.UID
}

func (n *Named) claim() *object {
	if n == nil {
		return nil
	}
	return &object{n.Name, n.UID}
}

// audiences are an array also if there is one, as in Kubernetes: its clients read nothing else.
// jwt.Audience would be a string (RFC 7519, section 4.1.3, allows both).
type audiences struct {
	Audience []string `json:"aud"`
}

// Issue returns a token and its unique id.
func (i *Issuer) Issue(g Grant) (token, id string, err error) {
	now := i.cfg.Now()
	c := jwt.Claims{
		Issuer: i.cfg.Issuers[0], Subject: serviceaccount.MakeUsername(g.Namespace, g.Name),
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(g.Life)),
		ID: string(uuid.NewUUID()),
	}
	p := private{bound{
		Namespace: g.Namespace, Account: object{g.Name, g.UID}, Pod: g.Pod.claim(), Secret: g.Secret.claim(), Node: g.Node.claim(),
	}}
	if token, err = jwt.Signed(i.keys.Load().signer).Claims(c).Claims(audiences{g.Audiences}).Claims(p).Serialize(); err != nil {
		return "", "", fmt.Errorf("sign token of %s: %w", c.Subject, err)
	}
	return token, credentialID(c.ID), nil
}

// KeySet is the JSON Web Key Set of the public keys (RFC 7517).
func (i *Issuer) KeySet() ([]byte, error) {
	return json.Marshal(jose.JSONWebKeySet{Keys: i.keys.Load().public})
}

// Metadata is the discovery document of OpenID Connect. keysURL is the URL of KeySet.
func (i *Issuer) Metadata(keysURL string) ([]byte, error) {
	return json.Marshal(struct {
		Issuer        string                    `json:"issuer"`
		KeysURL       string                    `json:"jwks_uri"`
		ResponseTypes []string                  `json:"response_types_supported"`
		SubjectTypes  []string                  `json:"subject_types_supported"`
		Algorithms    []jose.SignatureAlgorithm `json:"id_token_signing_alg_values_supported"`
	}{i.cfg.Issuers[0], keysURL, []string{"id_token"}, []string{"public"}, i.keys.Load().public.algorithms()})
}
