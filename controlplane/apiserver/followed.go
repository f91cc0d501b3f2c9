// What the library is given of the files that are followed: the server's certificate, the
// authorities of its clients.

package apiserver

import (
	"crypto/x509"
	"fmt"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/hawser-project/hawser/auth"
)

// followed are the files of a Config.
type followed struct {
	serving *auth.KeyPair
	clients *auth.Authorities
	proxies *auth.Authorities // nil if there are none

	kubelets *auth.Authorities // nil if nodes are not told
}

// newFollowed reads the files of cfg, now and whenever they change.
func newFollowed(cfg *Config) (f followed, err error) {
	if f.serving, err = cfg.Files.KeyPair(cfg.ServingCertFile, cfg.ServingKeyFile); err != nil {
		return f, fmt.Errorf("serving certificate: %w", err)
	}
	if f.clients, err = cfg.Files.Authorities(cfg.ClientCAFile); err != nil {
		return f, fmt.Errorf("client CA: %w", err)
	}
	if cfg.KubeletCAFile != "" {
		if f.kubelets, err = cfg.Files.Authorities(cfg.KubeletCAFile); err != nil {
			return f, fmt.Errorf("CA of kubelets: %w", err)
		}
	}
	if cfg.FrontProxy != nil {
		if f.proxies, err = cfg.Files.Authorities(cfg.FrontProxy.CAFile); err != nil {
			return f, fmt.Errorf("CA of front proxies: %w", err)
		}
	}
	return f, nil
}

// serve lets info serve with the files.
func (f *followed) serve(info *genericapiserver.SecureServingInfo) {
	info.Cert, info.ClientCA = servingPair{f.serving}, clientCAs{"client-ca", f.clients}
	if f.proxies != nil {
		info.ClientCA = dynamiccertificates.NewUnionCAContentProvider(info.ClientCA, clientCAs{"request-header", f.proxies})
	}
}

// A servingPair is a KeyPair as the library wants it.
type servingPair struct{ pair *auth.KeyPair }

var _ dynamiccertificates.CertKeyContentProvider = servingPair{}

func (servingPair) Name() string { return "serving" }

func (s servingPair) CurrentCertKeyContent() ([]byte, []byte) { return s.pair.PEM() }

func (s servingPair) AddListener(l dynamiccertificates.Listener) { s.pair.Changed(l.Enqueue) }

// clientCAs are Authorities as the library wants them: clients are asked for certificates
// of these. Who is believed is decided by Config.Authenticator.
type clientCAs struct {
	name string
	cas  *auth.Authorities
}

var _ dynamiccertificates.CAContentProvider = clientCAs{}

func (c clientCAs) Name() string { return c.name }

func (c clientCAs) CurrentCABundleContent() []byte { return c.cas.PEM() }

func (c clientCAs) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{Roots: c.cas.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
}

func (c clientCAs) AddListener(l dynamiccertificates.Listener) { c.cas.Changed(l.Enqueue) }
