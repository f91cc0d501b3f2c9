// This file is the identity of a node.

package bootstrap

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/auth"
)

// An Identity is the identity of a node: its certificate and key, and the authorities of
// the cluster. Its methods may be called at the same time. A Rotation replaces the
// certificate and the authorities.
type Identity struct {
	cfg   Config
	trust atomic.Pointer[trust]
	cert  atomic.Pointer[tls.Certificate]
	shown atomic.Pointer[[]*x509.Certificate] // the server's last certificates
	// tunnel are authorities of the hub alone: empty if there are none, nil if that is not
	// known.
	tunnel   atomic.Pointer[[]*x509.Certificate]
	trusting sync.Mutex // held while trust or tunnel is replaced, and while they are written
	onDisk   *trust     // what was written last; guarded by trusting
	unsaved  bool       // whether tunnel is to be written; guarded by trusting
	given    *given     // nil if the node requests its certificate itself
}

// NodeName is the name in the certificate.
func (i *Identity) NodeName() string { return i.cfg.NodeName }

// ClientCAs has the present authorities of the cluster's clients. The caller does not
// change it. It is empty until they have been read from the cluster.
func (i *Identity) ClientCAs() *x509.CertPool { return i.trust.Load().clientPool }

// GetClientCertificate returns the present certificate; it is for tls.Config.
func (i *Identity) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return i.cert.Load(), nil
}

// ClientTLS is the configuration of a client that is the node, for a server whose
// certificate has serverName. It uses the present authorities.
func (i *Identity) ClientTLS(serverName string) *tls.Config {
	c := auth.ClientTLS(i.GetClientCertificate, i.trust.Load().rootPool, serverName)
	c.VerifyConnection = i.see
	return c
}

// APIServerName is the name in the certificate of the API server: the configured one, or
// the one discovered when the node joined, or else DefaultAPIServerName.
func (i *Identity) APIServerName() string { return cmp.Or(i.cfg.apiServerName(), DefaultAPIServerName) }

func (i *Identity) expires() time.Time { return i.cert.Load().Leaf.NotAfter }

// rejoin gets a certificate as a new machine does, from the first server that gives one, and
// returns it with its key, PEM encoded. The cluster must be the same one. have is the
// certificate whose key may go on; nil means that the node needs another key. What is wrong with
// one server, or with what answers at its address, keeps no node from the others.
func (i *Identity) rejoin(ctx context.Context, have *tls.Certificate) ([]byte, error) {
	c := i.cfg
	c.Pins = nil
	for _, root := range i.trust.Load().roots {
		c.Pins = append(c.Pins, PinOf(root))
	}
	var all error
	for _, server := range c.Servers {
		data, err := c.obtain(ctx, server, have)
		if err == nil {
			return data, nil
		}
		if all == nil {
			all = err
		} else {
			all = fmt.Errorf("%w; %w", all, err)
		}
		if ctx.Err() != nil || decided(err) {
			break
		}
	}
	return nil, all
}
