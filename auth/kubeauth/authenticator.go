package kubeauth

// The authenticator: client certificates, then bootstrap tokens, then nobody.

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
)

// AuthenticatorConfig configures an authenticator. ClientCAFile is required.
type AuthenticatorConfig struct {
	// ClientCAFile holds the certificates, in PEM, that sign clients. It is read
	// again when it changes.
	ClientCAFile string
	// Secrets finds the Secrets of bootstrap tokens, as they are now: a token must
	// work as soon as it is made. Nil means there are no bootstrap tokens.
	Secrets SecretLookup
}

// NewAuthenticator returns an authenticator of requests.
//
// A request with a client certificate or a bearer token is who it proves to be,
// or is refused; one with neither is system:anonymous, which the Authorizer
// lets ask for health and version only.
func NewAuthenticator(c AuthenticatorConfig) (authenticator.Request, error) {
	ca := &clientCA{file: c.ClientCAFile}
	if _, err := ca.load(); err != nil {
		return nil, fmt.Errorf("authenticator: %w", err)
	}
	known := []authenticator.Request{newVerifiedCertificates(ca, certificatesKept)}
	if c.Secrets != nil {
		known = append(known, bearertoken.New(&bootstrapTokens{secrets: c.Secrets}))
	}
	return group.NewAuthenticatedGroupAdder(
		union.NewFailOnError(union.New(known...), anonymous.NewAuthenticator(nil)),
	), nil
}

// recheck is how often clientCA looks whether its file has changed.
const recheck = time.Second

// clientCA is the pool of certificates in a file, kept in step with it.
type clientCA struct {
	file string

	mu      sync.Mutex
	pool    *x509.CertPool
	checked time.Time // when the file was last looked at
	changed time.Time // the modification time of what pool was read from
}

// options returns how to verify a client. A file that has become unreadable
// leaves the last good certificates in force.
func (c *clientCA) options() (x509.VerifyOptions, bool) {
	o := requestx509.DefaultVerifyOptions()
	pool, err := c.load()
	if err != nil && pool == nil {
		return o, false
	}
	o.Roots = pool
	return o, true
}

func (c *clientCA) load() (*x509.CertPool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.pool != nil && now.Sub(c.checked) < recheck {
		return c.pool, nil
	}
	c.checked = now
	info, err := os.Stat(c.file)
	if err != nil {
		return c.pool, fmt.Errorf("read the client certificate authority: %w", err)
	}
	if c.pool != nil && info.ModTime().Equal(c.changed) {
		return c.pool, nil
	}
	pem, err := os.ReadFile(c.file)
	if err != nil {
		return c.pool, fmt.Errorf("read the client certificate authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return c.pool, errors.New("read the client certificate authority: no certificate in " + c.file)
	}
	c.pool, c.changed = pool, info.ModTime()
	return pool, nil
}
