// This file is the identity of a node.

package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/auth"
)

// An Identity is what makes a machine a node: its certificate and key, and the CA
// of the cluster. Its methods may be called at the same time; the certificate is
// replaced by a Rotation.
type Identity struct {
	cfg  Config
	cas  *x509.CertPool
	ca   *x509.Certificate
	cert atomic.Pointer[tls.Certificate]
}

// NodeName is the name the certificate says.
func (i *Identity) NodeName() string { return i.cfg.NodeName }

// CAs has the cluster's CA. The caller does not change it.
func (i *Identity) CAs() *x509.CertPool { return i.cas }

// CA is the cluster's CA.
func (i *Identity) CA() *x509.Certificate { return i.ca }

// GetClientCertificate shows the certificate as it is now; it is for tls.Config.
func (i *Identity) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return i.cert.Load(), nil
}

// ClientTLS is the configuration of a client that is the node, for a server whose
// certificate carries serverName.
func (i *Identity) ClientTLS(serverName string) *tls.Config {
	return auth.ClientTLS(i.GetClientCertificate, i.cas, serverName)
}

func (i *Identity) expires() time.Time { return i.cert.Load().Leaf.NotAfter }

// rejoin gets a certificate as a machine does that was never a node, from the first
// server that gives one. The cluster is still the same one.
func (i *Identity) rejoin(ctx context.Context) error {
	c := i.cfg
	c.Pins = []Pin{PinOf(i.ca)}
	var last error
	for _, server := range c.Servers {
		again, err := c.join(ctx, server)
		if err == nil {
			i.cert.Store(again.cert.Load())
			return nil
		}
		if last = err; ctx.Err() != nil || final(err) {
			break
		}
	}
	return last
}
