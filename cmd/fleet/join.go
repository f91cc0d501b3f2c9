// How nodes get their identities, and how they are forgotten.

package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
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

// joinConfig is how the named node joins.
func (f *Fleet) joinConfig(name string) bootstrap.Config {
	c := f.join
	c.NodeName, c.Dir = name, f.dir(name)
	return c
}

// Delete deletes the nodes whose names are held by keys in Config.Dir: their objects, their
// identities, their leases and all that is kept of them there. A node that somebody else has
// stays, whatever its name. Delete returns how many there were, and the first error. It is
// for after Run.
func (f *Fleet) Delete(ctx context.Context) (int, error) {
	defer f.idle()
	var deleted atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cleanups)
	for _, m := range f.members {
		group.Go(func() error {
			var ours bool
			err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
				ours, err = f.deleteNode(ctx, m)
				return err
			})
			if err != nil {
				return fmt.Errorf("fleet: %w", err)
			}
			if ours {
				deleted.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	return int(deleted.Load()), err
}

// deleteNode deletes a node that is ours, and says whether it is. It fails with a conflict if
// the node has changed meanwhile.
func (f *Fleet) deleteNode(ctx context.Context, m *member) (ours bool, err error) {
	c := f.joinConfig(m.name)
	keys, err := c.Keys()
	if err != nil {
		return false, err
	}
	book := nodekeys.NewBook(f.admin)
	record, err := book.Get(ctx, m.name)
	if err != nil && !errors.Is(err, nodekeys.ErrUnknown) {
		return false, err
	}
	ours = err == nil && slices.ContainsFunc(keys, func(k bootstrap.Pin) bool { return record.Holds(nodekeys.Key(k)) })
	if ours {
		if err = f.deleteObjects(ctx, m.name, record.NodeUID); err != nil {
			return true, err
		}
		if err = book.Forget(ctx, record); err != nil {
			return true, err
		}
	}
	// A certificate of another cluster is not this fleet's to delete.
	if !ours && m.identity == nil && c.Joined() {
		return false, nil
	}
	return ours, os.RemoveAll(c.Dir)
}

// deleteObjects deletes the Node, if it has that uid, and its Lease. One that never
// registered has a name and neither of them, and no uid is noted for a short time after it has.
func (f *Fleet) deleteObjects(ctx context.Context, name, uid string) error {
	node, err := f.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err == nil && uid != "" && string(node.UID) != uid {
		return nil
	}
	if err == nil {
		err = f.admin.CoreV1().Nodes().Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(node.UID)))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node: %w", err)
	}
	err = f.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete lease: %w", err)
	}
	return nil
}
