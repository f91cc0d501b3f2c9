package kubeauth

// Bootstrap tokens: Secrets in kube-system that let a machine ask for its first
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

// errToken is all that a caller learns about why a token is refused.
var errToken = errors.New("invalid bootstrap token")

var extraGroup = regexp.MustCompile(`^` + bootstrapapi.BootstrapGroupPattern + `$`)

// A SecretLookup returns the Secret of a bootstrap token as it is now. It may say
// that there is none if good does not say yes to it: what has not been shown the
// right secret learns nothing, and need not cost a read. Objects.Secret is one.
type SecretLookup func(ctx context.Context, namespace, name string, good func(*corev1.Secret) bool) (*corev1.Secret, error)

type bootstrapTokens struct {
	secrets SecretLookup
}

// AuthenticateToken implements authenticator.Token. A token that is not of the
// form ID.SECRET is not ours and is left to others.
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

// checkToken returns the groups of the token that s holds if it is the one
// shown, may be used to authenticate, and has not expired. The comparison takes
// the same time wherever the first difference is.
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
		// A date that cannot be read is no permission to go on for ever.
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
