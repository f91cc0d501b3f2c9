// This file is the identity of a node.

package bootstrap

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/auth"
)

// An Identity is what makes a machine a node: its certificate and key, and the
// authorities of the cluster. Its methods may be called at the same time; the
// certificate and the authorities are replaced by a Rotation.
type Identity struct {
	cfg   Config
	trust atomic.Pointer[trust]
	cert  atomic.Pointer[tls.Certificate]
	shown atomic.Pointer[[]*x509.Certificate] // what the server has shown last
	// tunnel are authorities of the hub alone: none if there are no such, nil if that is
	// not known.
	tunnel   atomic.Pointer[[]*x509.Certificate]
	trusting sync.Mutex // held by who replaces trust
	given    *given     // nil for a node that has asked for its certificate
}

// NodeName is the name the certificate says.
func (i *Identity) NodeName() string { return i.cfg.NodeName }

// ClientCAs has the authorities by which the cluster's clients are known, as they are
// now. The caller does not change it. Until the cluster has said which there are it
// has none.
func (i *Identity) ClientCAs() *x509.CertPool { return i.trust.Load().clientPool }

// GetClientCertificate shows the certificate as it is now; it is for tls.Config.
func (i *Identity) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return i.cert.Load(), nil
}

// ClientTLS is the configuration of a client that is the node, for a server whose
// certificate carries serverName. It believes the authorities of now.
func (i *Identity) ClientTLS(serverName string) *tls.Config {
	c := auth.ClientTLS(i.GetClientCertificate, i.trust.Load().rootPool, serverName)
	c.VerifyConnection = i.see
	return c
}

// APIServerName is what the certificate of the API server carries: the name configured or
// found when the node joined, or else DefaultAPIServerName.
func (i *Identity) APIServerName() string { return cmp.Or(i.cfg.apiServerName(), DefaultAPIServerName) }

func (i *Identity) expires() time.Time { return i.cert.Load().Leaf.NotAfter }

// rejoin gets a certificate as a machine does that was never a node, from the first
// server that gives one. The cluster is still the same one.
func (i *Identity) rejoin(ctx context.Context) error {
	c := i.cfg
	c.Pins = nil
	for _, root := range i.trust.Load().roots {
		c.Pins = append(c.Pins, PinOf(root))
	}
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
