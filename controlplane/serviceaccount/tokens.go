package serviceaccount

// Secrets of type kubernetes.io/service-account-token: tokens that last as long as their Secret.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// tokenSeconds is the life that is asked for: the longest that the API gives.
const tokenSeconds = 1 << 32

// TokensConfig configures a Tokens.
type TokensConfig struct {
	// CA returns the certificates, PEM, by which the API server is known. Required.
	CA func() []byte
	// Changed has f called whenever they are others, until stop is called. Nil means
	// that they never are.
	Changed func(f func()) (stop func())
}

// Tokens is Kubernetes' serviceaccount-token-controller. A Secret that names an account gets a
// token of it, which is bound to the Secret and so ends with it. One whose account is gone, or
// is another one now, is deleted. Of all Secrets only those of the type are watched.
type Tokens struct {
	cfg           TokensConfig
	client        kubernetes.Interface
	accounts      corelisters.ServiceAccountLister
	accountEvents cache.SharedIndexInformer
	log           *slog.Logger
}

// NewTokens returns a controller that watches service accounts through d.Informers, and Secrets by itself.
// It starts nothing.
func NewTokens(d loop.Deps, c TokensConfig) (*Tokens, error) {
	if c.CA == nil {
		return nil, errors.New("tokens of service accounts: no CA")
	}
	if c.Changed == nil {
		c.Changed = func(func()) func() { return func() {} }
	}
	accounts := d.Informers.Core().V1().ServiceAccounts()
	t := &Tokens{cfg: c, client: d.Client, accounts: accounts.Lister(), accountEvents: accounts.Informer()}
	t.log = loop.Logger(d.Log, t.Name())
	return t, nil
}

// Name is the controller's name in Kubernetes.
func (*Tokens) Name() string { return "serviceaccount-token-controller" }

// Run fills and deletes Secrets until ctx is done. The factory's informers must be running.
func (t *Tokens) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	byAccount := func(o any) ([]string, error) {
		s, ok := o.(*corev1.Secret)
		if !ok {
			return nil, nil
		}
		return []string{s.Namespace + "/" + s.Annotations[corev1.ServiceAccountNameKey]}, nil
	}
	secrets := coreinformers.NewFilteredSecretInformer(t.client, metav1.NamespaceAll, 0, cache.Indexers{"account": byAccount}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
	})
	q := loop.NewQueue(loop.Config[string]{
		Name: t.Name(), Workers: 1, Log: t.log,
		Do: func(ctx context.Context, key string) (time.Duration, error) {
			o, ok, err := secrets.GetIndexer().GetByKey(key)
			if s, is := o.(*corev1.Secret); err == nil && ok && is {
				err = t.sync(ctx, s)
			}
			return 0, err
		},
	})
	var watches loop.Watches
	watches.Add(loop.Watch(secrets, q.Add))
	watches.Add(loop.Watch(t.accountEvents, func(account string) {
		keys, err := secrets.GetIndexer().IndexKeys("account", account)
		if err != nil {
			t.log.Error("find the secrets of an account", "account", account, "err", err)
		}
		for _, key := range keys {
			q.Add(key)
		}
	}))
	stop, err := watches.All()
	if err != nil {
		return err
	}
	defer stop()
	defer t.cfg.Changed(func() {
		for _, key := range secrets.GetIndexer().ListKeys() {
			q.Add(key)
		}
	})()
	return loop.Together(ctx,
		func(ctx context.Context) error { secrets.RunWithContext(ctx); return nil },
		func(ctx context.Context) error {
			if !cache.WaitForCacheSync(ctx.Done(), secrets.HasSynced) {
				return nil // asked to stop
			}
			return q.Run(ctx)
		},
	)
}

// sync makes one Secret what it has to be.
func (t *Tokens) sync(ctx context.Context, s *corev1.Secret) error {
	name := s.Annotations[corev1.ServiceAccountNameKey]
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil || name == "" {
		return nil
	}
	account, err := t.accounts.ServiceAccounts(s.Namespace).Get(name)
	if apierrors.IsNotFound(err) || err == nil && !isOf(s, account) {
		// The cache may lag behind, and what is deleted is gone.
		account, err = t.client.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err) || err == nil && !isOf(s, account):
		t.log.Info("a token's account is gone", "secret", s.Namespace+"/"+s.Name, "account", name)
		err = t.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
		})
	case err == nil:
		err = t.fill(ctx, s, account)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it has changed, which the cache will tell
	}
	return err
}

// isOf reports whether a Secret is of the account, as far as it says which of the name.
func isOf(s *corev1.Secret, account *corev1.ServiceAccount) bool {
	uid := s.Annotations[corev1.ServiceAccountUIDKey]
	return uid == "" || uid == string(account.UID)
}

// fill writes what a Secret lacks.
func (t *Tokens) fill(ctx context.Context, s *corev1.Secret, account *corev1.ServiceAccount) error {
	data := map[string][]byte{}
	if ca := t.cfg.CA(); string(s.Data[corev1.ServiceAccountRootCAKey]) != string(ca) {
		data[corev1.ServiceAccountRootCAKey] = ca
	}
	if string(s.Data[corev1.ServiceAccountNamespaceKey]) != s.Namespace {
		data[corev1.ServiceAccountNamespaceKey] = []byte(s.Namespace)
	}
	if len(s.Data[corev1.ServiceAccountTokenKey]) == 0 {
		life := int64(tokenSeconds)
		r, err := t.client.CoreV1().ServiceAccounts(s.Namespace).CreateToken(ctx, account.Name, &authenticationv1.TokenRequest{
			ObjectMeta: metav1.ObjectMeta{UID: account.UID},
			Spec: authenticationv1.TokenRequestSpec{
				ExpirationSeconds: &life,
				BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: s.Name, UID: s.UID},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("token of secret %s/%s: %w", s.Namespace, s.Name, err)
		}
		data[corev1.ServiceAccountTokenKey] = []byte(r.Status.Token)
	}
	if len(data) == 0 && s.Annotations[corev1.ServiceAccountUIDKey] != "" {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"data": data, "metadata": map[string]any{
		"uid": s.UID, "resourceVersion": s.ResourceVersion, "annotations": map[string]string{corev1.ServiceAccountUIDKey: string(account.UID)},
	}})
	if err != nil {
		return err
	}
	_, err = t.client.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
