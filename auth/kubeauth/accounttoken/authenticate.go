package accounttoken

// The authenticator.

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// A Lookup returns an object that a token of account depends on, or NotFound. A result from
// a cache may be a moment old, unless it is an object with another uid or none. Reads that
// the cache cannot answer count against the rate limit of account.
type Lookup func(ctx context.Context, account string, r Reference) (metav1.Object, error)

// Authenticator returns an authenticator of the issuer's tokens.
func (i *Issuer) Authenticator(objects Lookup) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if strings.Count(token, ".") != 2 {
			return nil, false, nil // no JWT: it may be a token of another kind
		}
		return i.authenticate(ctx, token, objects)
	})
}

func (i *Issuer) authenticate(ctx context.Context, token string, objects Lookup) (*authenticator.Response, bool, error) {
	c, err := decode(token, i.keys.Load().public)
	if err != nil {
		return nil, false, err
	}
	now := i.cfg.Now()
	if err := c.check(i.cfg.Issuers, now); err != nil {
		return nil, false, err
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = i.cfg.Audiences
	}
	common := authenticator.Audiences(c.Audience).Intersect(wanted)
	if len(common) == 0 {
		return nil, false, fmt.Errorf("service account token is for the audiences %q, not for %q", c.Audience, wanted)
	}
	account := c.account()
	for _, r := range c.references() {
		if err := exists(ctx, objects, account, r, now); err != nil {
			return nil, false, err
		}
	}
	return &authenticator.Response{User: c.info().UserInfo(), Audiences: common}, true, nil
}

// exists returns an error unless r exists. An object that is being deleted counts until a
// minute after its deletion time, since clocks may differ: for a pod that is after its
// grace period.
func exists(ctx context.Context, objects Lookup, account string, r Reference, now time.Time) error {
	o, err := objects(ctx, account, r)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("service account token has ended: %s is gone", r)
	case err != nil:
		return fmt.Errorf("look up %s of a service account token: %w", r, err)
	case o.GetUID() != r.UID:
		return fmt.Errorf("service account token has ended: %s is another one now", r)
	}
	if at := o.GetDeletionTimestamp(); at != nil && at.Time.Before(now.Add(-jwt.DefaultLeeway)) {
		return fmt.Errorf("service account token has ended: %s was deleted", r)
	}
	return nil
}
