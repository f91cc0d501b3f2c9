package csr

// Cleaners: requests that are done with, and bootstrap tokens that have expired.

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/hawser-project/hawser/controlplane/loop"
)

// How long a request is kept in each state.
const (
	pendingFor = 24 * time.Hour
	decidedFor = time.Hour
	// DefaultCleanPeriod is how often a Cleaner looks if not told otherwise.
	DefaultCleanPeriod = time.Hour
)

var everything = labels.Everything()

// A Cleaner is the controller certificatesigningrequest-cleaner-controller.
type Cleaner struct {
	client   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
	inf      cache.SharedIndexInformer
	period   time.Duration
	log      *slog.Logger
}

// CleanerConfig configures a Cleaner. The zero value is good.
type CleanerConfig struct {
	Period time.Duration // from one look to the next; zero means DefaultCleanPeriod
}

// NewCleaner returns a cleaner that watches through d.Informers.
func NewCleaner(d loop.Deps, c CleanerConfig) (*Cleaner, error) {
	loop.Default(&c.Period, DefaultCleanPeriod)
	r := d.Informers.Certificates().V1().CertificateSigningRequests()
	cleaner := &Cleaner{client: d.Client, requests: r.Lister(), inf: r.Informer(), period: c.Period}
	cleaner.log = loop.Logger(d.Log, cleaner.Name())
	return cleaner, nil
}

// Name is the controller's name in Kubernetes.
func (*Cleaner) Name() string { return "certificatesigningrequest-cleaner-controller" }

// Run cleans until ctx is done. The informers must be running.
func (c *Cleaner) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), c.inf.HasSynced) {
		return nil
	}
	tick := time.NewTicker(c.period)
	defer tick.Stop()
	for {
		if err := c.pass(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.log.Warn("some requests could not be deleted; will try again", "error", err, "in", c.period)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// pass deletes the requests that are done with.
func (c *Cleaner) pass(ctx context.Context, now time.Time) error {
	all, err := c.requests.List(everything)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if why := stale(r, now); why != "" && ctx.Err() == nil {
			c.log.Debug("delete request", "request", r.Name, "why", why)
			err := c.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, r.Name,
				metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("delete %s: %w", r.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// stale returns why a request is of no more use, or nothing.
func stale(r *certificatesv1.CertificateSigningRequest, now time.Time) string {
	if len(r.Status.Conditions) == 0 && len(r.Status.Certificate) == 0 {
		if now.Sub(r.CreationTimestamp.Time) > pendingFor {
			return "pending for too long"
		}
		return ""
	}
	for _, c := range r.Status.Conditions {
		at := c.LastUpdateTime
		if at.IsZero() {
			at = r.CreationTimestamp
		}
		if now.Sub(at.Time) <= decidedFor {
			continue
		}
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			return string(c.Type) + " long ago"
		}
	}
	if expired(r.Status.Certificate, now) {
		return "its certificate has expired"
	}
	return ""
}

func expired(text []byte, now time.Time) bool {
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	return err == nil && now.After(cert.NotAfter)
}

// A TokenCleaner is the controller token-cleaner-controller: it deletes
// bootstrap tokens when they expire.
type TokenCleaner struct {
	client kubernetes.Interface
	log    *slog.Logger
}

// TokenCleanerConfig configures a TokenCleaner: there is nothing to set.
type TokenCleanerConfig struct{}

// NewTokenCleaner returns a cleaner. It watches the tokens by itself, since
// nobody else has a use for them.
func NewTokenCleaner(d loop.Deps, _ TokenCleanerConfig) (*TokenCleaner, error) {
	t := &TokenCleaner{client: d.Client}
	t.log = loop.Logger(d.Log, t.Name())
	return t, nil
}

// Name is the controller's name in Kubernetes.
func (*TokenCleaner) Name() string { return "token-cleaner-controller" }

// Run deletes expired tokens until ctx is done.
func (t *TokenCleaner) Run(ctx context.Context) error {
	inf := coreinformers.NewFilteredSecretInformer(t.client, metav1.NamespaceSystem, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String()
		})
	q := loop.NewQueue(loop.Config[string]{
		Name: t.Name(), Workers: 1, Log: t.log,
		Do: func(ctx context.Context, key string) (time.Duration, error) { return t.sync(ctx, inf.GetStore(), key) },
	})
	stop, err := loop.Watch(inf, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return loop.Together(ctx, q.Run, func(ctx context.Context) error {
		inf.RunWithContext(ctx)
		return nil
	})
}

func (t *TokenCleaner) sync(ctx context.Context, store cache.Store, key string) (time.Duration, error) {
	obj, ok, err := store.GetByKey(key)
	if err != nil || !ok {
		return 0, err
	}
	s, ok := obj.(*corev1.Secret)
	if !ok || s.Type != bootstrapapi.SecretTypeBootstrapToken {
		return 0, nil
	}
	left, expires := lifetime(s, time.Now())
	if !expires || left > 0 {
		return left, nil
	}
	t.log.Info("delete expired bootstrap token", "secret", s.Name)
	err = t.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("delete bootstrap token %s: %w", s.Name, err)
	}
	return 0, nil
}

// lifetime returns how long a token has left. One whose date cannot be read can
// authenticate nobody, but is left for its maker to see.
func lifetime(s *corev1.Secret, now time.Time) (left time.Duration, expires bool) {
	at, err := time.Parse(time.RFC3339, string(s.Data[bootstrapapi.BootstrapTokenExpirationKey]))
	if err != nil {
		return 0, false
	}
	return at.Sub(now), true
}
