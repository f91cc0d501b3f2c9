// Keys and certificates of a run.

package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/cmd/internal/bench/sshd"
)

// certificateLife is longer than any run.
const certificateLife = 24 * time.Hour

// makeKeys makes in dir what all processes of a run share: an authority, the
// control side's serving certificate, and keys for ssh.
func makeKeys(dir string) error {
	if _, err := pki.Ensure(pkiConfig(dir)); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}
	return sshd.MakeKeys(dir)
}

func pkiConfig(dir string) pki.Config {
	return pki.Config{Dir: filepath.Join(dir, "pki"), Names: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}
}

// An issuer signs certificates of nodes, which in life the control plane does.
type issuer struct {
	ca      tls.Certificate
	clients *x509.CertPool // has ca
	pool    *x509.CertPool // has the authority of the control side
}

func openIssuer(dir string) (*issuer, error) {
	keys, err := pki.Ensure(pkiConfig(dir))
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	i := &issuer{pool: x509.NewCertPool(), clients: x509.NewCertPool()}
	if i.ca, err = tls.LoadX509KeyPair(keys.Path(pki.ClientCA, false), keys.Path(pki.ClientCA, true)); err != nil {
		return nil, fmt.Errorf("read authority: %w", err)
	}
	i.pool.AddCert(keys.CACert())
	i.clients.AddCert(i.ca.Leaf)
	return i, nil
}

// node is the TLS configuration of the node of that name.
func (i *issuer) node(name string) (func(context.Context) (*tls.Config, error), error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make node's key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: auth.NodeUserPrefix + name, Organization: []string{auth.NodesGroup}},
		NotBefore:    now.Add(-time.Minute), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, i.ca.Leaf, key.Public(), i.ca.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("sign node's certificate: %w", err)
	}
	cert := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return func(context.Context) (*tls.Config, error) {
		return auth.ClientTLS(func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }, i.pool, ""), nil
	}, nil
}

// servingTLS is the control side's configuration, as hawser server has it.
func servingTLS(dir string) (*tls.Config, error) {
	keys, err := pki.Ensure(pkiConfig(dir))
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	pair, err := new(auth.Files).KeyPair(keys.Path(pki.APIServer, false), keys.Path(pki.APIServer, true))
	if err != nil {
		return nil, err
	}
	cas, err := new(auth.Files).Authorities(keys.Path(pki.ClientCA, false))
	if err != nil {
		return nil, err
	}
	return cas.ServerTLS(pair.GetCertificate), nil
}
