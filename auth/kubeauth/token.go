package kubeauth

// Bootstrap tokens: Secrets in kube-system by which a machine requests its first
// certificate. The format is that of Kubernetes' bootstrap tokens.

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
)

// errToken is the answer for every refused token: it does not tell the reason.
var errToken = errors.New("invalid bootstrap token")

var extraGroup = regexp.MustCompile(`^` + bootstrapapi.BootstrapGroupPattern + `$`)

// A SecretLookup returns the present Secret of a bootstrap token. It may return NotFound if
// good returns false for the cached one: a caller without the right secret learns nothing
// and need not cause a read. Objects.Secret is one.
type SecretLookup func(ctx context.Context, namespace, name string, good func(*corev1.Secret) bool) (*corev1.Secret, error)

type bootstrapTokens struct {
	secrets SecretLookup
}

// AuthenticateToken implements authenticator.Token. A token that is not of the
// form ID.SECRET is left to other authenticators.
func (b *bootstrapTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !bootstraputil.IsValidBootstrapToken(token) {
		return nil, false, nil
	}
	id, secret, _ := strings.Cut(token, ".")
	good := func(s *corev1.Secret) bool {
		_, err := checkToken(s, id, secret, time.Now())
		return err == nil
	}
	s, err := b.secrets(ctx, metav1.NamespaceSystem, bootstrapapi.BootstrapTokenSecretPrefix+id, good)
	if apierrors.IsNotFound(err) {
		return nil, false, errToken
	}
	if err != nil {
		return nil, false, fmt.Errorf("look up bootstrap token %s: %w", id, err)
	}
	groups, err := checkToken(s, id, secret, time.Now())
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name:   bootstrapapi.BootstrapUserPrefix + id,
		Groups: groups,
	}}, true, nil
}

// checkToken returns the groups of the token in s if it is the given one, may be used to
// authenticate, and has not expired. The comparison takes constant time.
func checkToken(s *corev1.Secret, id, secret string, now time.Time) ([]string, error) {
	text := func(key string) string { return string(s.Data[key]) }
	want := text(bootstrapapi.BootstrapTokenSecretKey)
	switch {
	case s.DeletionTimestamp != nil,
		s.Type != corev1.SecretType(bootstrapapi.SecretTypeBootstrapToken),
		text(bootstrapapi.BootstrapTokenIDKey) != id,
		want == "" || subtle.ConstantTimeCompare([]byte(want), []byte(secret)) != 1,
		text(bootstrapapi.BootstrapTokenUsageAuthentication) != "true":
		return nil, errToken
	}
	if at := text(bootstrapapi.BootstrapTokenExpirationKey); at != "" {
		// A date that cannot be parsed counts as expired.
		if t, err := time.Parse(time.RFC3339, at); err != nil || !now.Before(t) {
			return nil, errToken
		}
	}
	groups := []string{bootstrapapi.BootstrapDefaultGroup}
	for g := range strings.SplitSeq(text(bootstrapapi.BootstrapTokenExtraGroupsKey), ",") {
		if g = strings.TrimSpace(g); g == "" {
			continue
		}
		if !extraGroup.MatchString(g) {
			return nil, errToken
		}
		groups = append(groups, g)
	}
	return groups, nil
}
