// How nodes get their identities, and how they are forgotten.

package fleet

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"

	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/auth/kubeauth"
	"github.com/hawser-project/hawser/auth/nodekeys"
)

const (
	// tokenLife is how long the join token lasts if nobody deletes it.
	tokenLife = 24 * time.Hour
	// endTimeout bounds what is done once everything else has ended.
	endTimeout = 30 * time.Second
	// cleanups is how many nodes are deleted at the same time.
	cleanups = 16
)

// pinsOf returns the hash by which nodes know the CA.
func pinsOf(ca []byte) ([]bootstrap.Pin, error) {
	block, _ := pem.Decode(ca)
	if block == nil {
		return nil, errors.New("the administrator's configuration has no CA: nodes would not know whom to trust")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("CA of the administrator's configuration: %w", err)
	}
	return []bootstrap.Pin{bootstrap.PinOf(cert)}, nil
}

// token makes a join token; done deletes it.
func (f *Fleet) token(ctx context.Context) (_ bootstrap.Token, done func(), err error) {
	text, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return bootstrap.Token{}, nil, fmt.Errorf("make a join token: %w", err)
	}
	token, err := bootstrap.ParseToken(text)
	if err != nil {
		return bootstrap.Token{}, nil, err
	}
	secrets, name := f.admin.CoreV1().Secrets(metav1.NamespaceSystem), bootstrapapi.BootstrapTokenSecretPrefix+token.ID
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               token.ID,
			bootstrapapi.BootstrapTokenSecretKey:           token.Secret,
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey:      kubeauth.JoinGroup,
			bootstrapapi.BootstrapTokenDescriptionKey:      "for simulated nodes",
			bootstrapapi.BootstrapTokenExpirationKey:       time.Now().Add(tokenLife).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return bootstrap.Token{}, nil, fmt.Errorf("store the join token: %w", err)
	}
	return token, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		if err := secrets.Delete(end, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			f.cfg.Log.Warn("the join token could not be deleted; it expires by itself", "secret", name, "after", tokenLife, "err", err)
		}
	}, nil
}

// joinAs returns the identity of the named node, asking for one if there is none
// kept.
func (f *Fleet) joinAs(ctx context.Context, name string) (*bootstrap.Identity, error) {
	c := f.join
	c.NodeName, c.Dir = name, f.dir(name)
	return bootstrap.Join(ctx, c)
}

// Delete deletes the nodes' objects, their identities, their leases and all that is kept of them in
// Config.Dir. It is for after Run.
func (f *Fleet) Delete(ctx context.Context) error {
	defer f.idle()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cleanups)
	for _, m := range f.members {
		group.Go(func() error {
			gone := func(err error) error {
				if apierrors.IsNotFound(err) {
					return nil
				}
				return err
			}
			// One that never registered has a name and no Node object.
			if err := nodekeys.NewBook(f.admin).Forget(ctx, m.name); err != nil {
				return fmt.Errorf("fleet: %w", err)
			}
			if err := gone(f.admin.CoreV1().Nodes().Delete(ctx, m.name, metav1.DeleteOptions{})); err != nil {
				return fmt.Errorf("fleet: delete node: %w", err)
			}
			leases := f.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease)
			if err := gone(leases.Delete(ctx, m.name, metav1.DeleteOptions{})); err != nil {
				return fmt.Errorf("fleet: delete lease: %w", err)
			}
			if err := os.RemoveAll(f.dir(m.name)); err != nil {
				return fmt.Errorf("fleet: %w", err)
			}
			return nil
		})
	}
	return group.Wait()
}
