package csr

// The signer: issues what has been approved.

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"slices"
	"time"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane/loop"
)

const (
	// DefaultDuration is how long a certificate lasts if nothing else is said. Agents
	// renew theirs before half of it is over, so one that is cut off comes back by
	// itself for three days and a half at least.
	DefaultDuration = 7 * 24 * time.Hour
	minDuration     = 10 * time.Minute
)

// SignerConfig configures a Signer. CertFile and KeyFile are required.
type SignerConfig struct {
	// CertFile and KeyFile hold the authority, in PEM. They are followed.
	CertFile, KeyFile string
	// Files reads them. Nil means one of its own.
	Files *auth.Files
	// ServingCertFile and ServingKeyFile are the authority of the signer
	// kubernetes.io/kubelet-serving; none means that of the others.
	ServingCertFile, ServingKeyFile string
	// Server are the names that are signed for nobody; nil means those that every
	// server has.
	Server *auth.ServerNames
	// Duration is the longest that a certificate lasts; zero means
	// DefaultDuration. None outlasts the authority.
	Duration time.Duration
}

// AddFlags adds the flags that set c.
func (c *SignerConfig) AddFlags(f *pflag.FlagSet) {
	f.DurationVar(&c.Duration, "cluster-signing-duration", DefaultDuration, "longest life of certificates signed for nodes and users; agents renew theirs before half of it is over, so one that is cut off for as long comes back by itself")
}

// A Signer is the controller certificatesigningrequest-signing-controller.
type Signer struct {
	cfg      SignerConfig
	client   kubernetes.Interface
	names    *nodekeys.Book
	requests certificateslisters.CertificateSigningRequestLister
	inf      cache.SharedIndexInformer
	log      *slog.Logger
}

// NewSigner returns a signer that watches through d.Informers. It fails if the authority
// cannot be read.
func NewSigner(d loop.Deps, c SignerConfig) (*Signer, error) {
	loop.Default(&c.Duration, DefaultDuration)
	if c.Files == nil {
		c.Files = &auth.Files{}
	}
	if c.Server == nil {
		c.Server = &auth.ServerNames{}
	}
	if c.ServingCertFile == "" {
		c.ServingCertFile, c.ServingKeyFile = c.CertFile, c.KeyFile
	}
	for _, signer := range signers {
		if _, err := c.authority(signer); err != nil {
			return nil, err
		}
	}
	r := d.Informers.Certificates().V1().CertificateSigningRequests()
	s := &Signer{cfg: c, client: d.Client, names: nodekeys.NewBook(d.Client), requests: r.Lister(), inf: r.Informer()}
	s.log = loop.Logger(d.Log, s.Name())
	return s, nil
}

// authority is who signs for a signer.
func (c *SignerConfig) authority(signer string) (*authority, error) {
	if signer == certificatesv1.KubeletServingSignerName {
		return loadAuthority(c.Files, c.ServingCertFile, c.ServingKeyFile)
	}
	return loadAuthority(c.Files, c.CertFile, c.KeyFile)
}

// Name is the controller's name in Kubernetes.
func (*Signer) Name() string { return "certificatesigningrequest-signing-controller" }

// Run signs until ctx is done. The informers must be running.
func (s *Signer) Run(ctx context.Context) error {
	q := loop.NewQueue(loop.Config[string]{Name: s.Name(), Do: s.sync, Workers: workers, Log: s.log})
	stop, err := loop.Watch(s.inf, q.Add)
	if err != nil {
		return err
	}
	defer stop()
	return q.Run(ctx)
}

func (s *Signer) sync(ctx context.Context, name string) (time.Duration, error) {
	r, err := s.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	approved, no, broken := decided(r)
	if !approved || no || broken || len(r.Status.Certificate) > 0 || !slices.Contains(signers, r.Spec.SignerName) {
		return 0, nil
	}
	req, err := parse(r)
	if err == nil {
		err = checkSigner(r, req, s.cfg.Server)
	}
	if err == nil {
		err = entitled(ctx, s.names, r, req)
	}
	if errors.Is(err, errLater) {
		return 0, err
	}
	if err != nil {
		return 0, s.fail(ctx, r, err)
	}
	ca, err := s.cfg.authority(r.Spec.SignerName)
	if err != nil {
		return 0, err
	}
	cert, err := ca.sign(req, r.Spec.Usages, s.duration(r), time.Now())
	if err != nil {
		return 0, err
	}
	r = r.DeepCopy()
	r.Status.Certificate = cert
	if _, err := s.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("store the certificate of %s: %w", r.Name, err)
	}
	s.log.Info("sign", "request", r.Name, "signer", r.Spec.SignerName, "subject", req.Subject.CommonName)
	return 0, nil
}

// duration is what was asked for, within bounds.
func (s *Signer) duration(r *certificatesv1.CertificateSigningRequest) time.Duration {
	if r.Spec.ExpirationSeconds == nil {
		return s.cfg.Duration
	}
	want := time.Duration(*r.Spec.ExpirationSeconds) * time.Second
	return min(max(want, minDuration), s.cfg.Duration)
}

// fail records that an approved request breaks the signer's rules. It will
// never be signed.
func (s *Signer) fail(ctx context.Context, r *certificatesv1.CertificateSigningRequest, why error) error {
	ungranted.note(s.log, slog.LevelWarn, failed, r, why.Error())
	r = r.DeepCopy()
	now := metav1.Now()
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue,
		Reason: "SignerValidationFailure", Message: why.Error(),
		LastUpdateTime: now, LastTransitionTime: now,
	})
	if _, err := s.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("record the failure of %s: %w", r.Name, err)
	}
	return nil
}

// authority is a certificate and key that sign.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func loadAuthority(files *auth.Files, certFile, keyFile string) (*authority, error) {
	pair, err := files.KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("load the signing authority: %w", err)
	}
	now := pair.Certificate()
	key, ok := now.PrivateKey.(crypto.Signer)
	if !ok || !now.Leaf.IsCA {
		return nil, fmt.Errorf("load the signing authority: %s is not a certificate authority", certFile)
	}
	return &authority{now.Leaf, key}, nil
}

// sign issues a certificate for req, in PEM, good from a little before now and
// for d at most. Of the subject it keeps the common name and the organizations, of
// the extensions the alternative names.
func (ca *authority) sign(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage, d time.Duration, now time.Time) ([]byte, error) {
	if !now.Before(ca.cert.NotAfter) {
		return nil, fmt.Errorf("the signing authority expired at %s", ca.cert.NotAfter.Format(time.RFC3339))
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber:          serial.Add(serial, big.NewInt(1)),
		Subject:               pkix.Name{CommonName: req.Subject.CommonName, Organization: req.Subject.Organization},
		DNSNames:              req.DNSNames,
		IPAddresses:           req.IPAddresses,
		EmailAddresses:        req.EmailAddresses,
		URIs:                  req.URIs,
		NotBefore:             now.Add(-auth.Backdate),
		NotAfter:              now.Add(d),
		BasicConstraintsValid: true,
	}
	if t.NotAfter.After(ca.cert.NotAfter) {
		t.NotAfter = ca.cert.NotAfter
	}
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature:
			t.KeyUsage |= x509.KeyUsageDigitalSignature
		case certificatesv1.UsageKeyEncipherment:
			t.KeyUsage |= x509.KeyUsageKeyEncipherment
		case certificatesv1.UsageClientAuth:
			t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		case certificatesv1.UsageServerAuth:
			t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		default:
			return nil, fmt.Errorf("usage %q cannot be signed", u)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.cert, req.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
