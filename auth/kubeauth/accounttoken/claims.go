package accounttoken

// The claims of a token.

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// maxToken bounds a token. The longest names, and audiences of several kilobytes, fit.
const maxToken = 32 << 10

// A Reference names an object that a token depends on.
type Reference struct {
	Kind      string // ServiceAccount, Pod, Secret or Node
	Namespace string // empty for a Node
	Name      string
	UID       types.UID
}

func (r Reference) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// claims are the claims of a token: those of RFC 7519 and Kubernetes' own.
type claims struct {
	jwt.Claims
	private
}

type private struct {
	Kubernetes bound `json:"kubernetes.io"`
}

// bound has the objects that a token depends on. With Pod, Node is a hint about the pod's
// node; alone it is the object that the token is bound to.
type bound struct {
	Namespace string  `json:"namespace,omitempty"`
	Account   object  `json:"serviceaccount"`
	Pod       *object `json:"pod,omitempty"`
	Secret    *object `json:"secret,omitempty"`
	Node      *object `json:"node,omitempty"`
}

type object struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid,omitempty"`
}

// account is the user of the token.
func (c *claims) account() string {
	return serviceaccount.MakeUsername(c.Kubernetes.Namespace, c.Kubernetes.Account.Name)
}

// references are the objects that must exist for the token to be valid.
func (c *claims) references() []Reference {
	k := &c.Kubernetes
	out := []Reference{{"ServiceAccount", k.Namespace, k.Account.Name, k.Account.UID}}
	if k.Secret != nil {
		out = append(out, Reference{"Secret", k.Namespace, k.Secret.Name, k.Secret.UID})
	}
	switch {
	case k.Pod != nil:
		out = append(out, Reference{"Pod", k.Namespace, k.Pod.Name, k.Pod.UID})
	case k.Node != nil:
		out = append(out, Reference{"Node", "", k.Node.Name, k.Node.UID})
	}
	return out
}

// info is the identity of the token's holder.
func (c *claims) info() *serviceaccount.ServiceAccountInfo {
	k := &c.Kubernetes
	info := &serviceaccount.ServiceAccountInfo{Namespace: k.Namespace, Name: k.Account.Name, UID: string(k.Account.UID)}
	if c.ID != "" {
		info.CredentialID = credentialID(c.ID)
	}
	if k.Pod != nil {
		info.PodName, info.PodUID = k.Pod.Name, string(k.Pod.UID)
	}
	if k.Node != nil {
		info.NodeName, info.NodeUID = k.Node.Name, string(k.Node.UID)
	}
	return info
}

func credentialID(jti string) string { return "JTI=" + jti }

// decode returns the claims of a token that one of keys has signed. It does not check the
// claims.
func decode(token string, keys publicKeys) (*claims, error) {
	if len(token) > maxToken {
		return nil, fmt.Errorf("service account token has %d bytes, more than %d", len(token), maxToken)
	}
	parsed, err := jwt.ParseSigned(token, keys.algorithms())
	if err != nil {
		return nil, fmt.Errorf("service account token: %w", err)
	}
	id := ""
	if len(parsed.Headers) > 0 {
		id = parsed.Headers[0].KeyID
	}
	candidates := keys.candidates(id)
	for i := range candidates {
		c := &claims{}
		if err = parsed.Claims(candidates[i].Key, &c.Claims, &c.private); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("service account token: %w", err)
}

// ClaimedNode is the node in a token, of its pod or to which it is bound; empty if there is
// none. It is not verified: the token may be forged.
func ClaimedNode(token string) string {
	if c := claimed(token); c.Kubernetes.Node != nil {
		return c.Kubernetes.Node.Name
	}
	return ""
}

// Issued is the time at which a token says that it was issued; zero if it does not say. The
// caller has verified the token.
func Issued(token string) time.Time { return claimed(token).IssuedAt.Time() }

// claimed are the claims of a token that is not verified; empty if it has none.
func claimed(token string) (c claims) {
	if len(token) > maxToken || strings.Count(token, ".") != 2 {
		return claims{}
	}
	parsed, err := jwt.ParseSigned(token, everyAlgorithm)
	if err != nil || parsed.UnsafeClaimsWithoutVerification(&c.Claims, &c.private) != nil {
		return claims{}
	}
	return c
}

// errForm is the error for a signed token that is not one of an account.
var errForm = errors.New("service account token does not name its account, its issuer, its audience and its end")

// check checks the issuer and the times of the claims.
func (c *claims) check(issuers []string, now time.Time) error {
	k := &c.Kubernetes
	if k.Namespace == "" || k.Account.Name == "" || k.Account.UID == "" || c.Expiry == nil || len(c.Audience) == 0 || c.Subject != c.account() {
		return errForm
	}
	for _, o := range []*object{k.Pod, k.Secret} {
		if o != nil && (o.Name == "" || o.UID == "") {
			return errForm
		}
	}
	if k.Pod == nil && k.Node != nil && (k.Node.Name == "" || k.Node.UID == "") {
		return errForm
	}
	known := false
	for _, issuer := range issuers {
		known = known || issuer == c.Issuer
	}
	if !known {
		return fmt.Errorf("service account token is of the issuer %q", c.Issuer)
	}
	switch err := c.Validate(jwt.Expected{Time: now}); {
	case errors.Is(err, jwt.ErrExpired):
		return errors.New("service account token has expired")
	case err != nil:
		return fmt.Errorf("service account token: %w", err)
	}
	return nil
}
