// What the library is given of the files that are followed: the server's certificate, the
// authorities of its clients.

package apiserver

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/kubeauth"
)

// followed are the files of a Config.
type followed struct {
	serving *auth.KeyPair
	clients *auth.Authorities
	proxies *auth.Authorities // nil if there are none
	own     *auth.Authorities // of Config.Proxy; nil likewise

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
		if f.proxies, err = cfg.Files.Bundle(cfg.FrontProxy.CAFile); err != nil {
			return f, fmt.Errorf("CA of front proxies: %w", err)
		}
	}
	if cfg.Proxy.CAFile != "" {
		if f.own, err = cfg.Files.Authorities(cfg.Proxy.CAFile); err != nil {
			return f, fmt.Errorf("CA of the certificate for extension servers: %w", err)
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

// ourHeaders are where this server says for whom it asks an extension server.
var ourHeaders = kubeauth.FrontProxy{
	UserHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
	GroupHeaders: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"},
}

// proxyHeaders are the headers of Config.FrontProxy, which the server removes from a request once
// it knows the user. It always removes ourHeaders.
func (c *Config) proxyHeaders() *authenticatorfactory.RequestHeaderConfig {
	if c.FrontProxy == nil {
		return nil
	}
	return &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice(c.FrontProxy.UserHeaders),
		UIDHeaders:          headerrequest.StaticStringSlice(c.FrontProxy.UIDHeaders),
		GroupHeaders:        headerrequest.StaticStringSlice(c.FrontProxy.GroupHeaders),
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice(c.FrontProxy.ExtraPrefixes),
	}
}

// tellProxies adds to data whom extension servers are to believe for whom they ask: this
// server, and the front proxies of Config.FrontProxy.
func (s *Server) tellProxies(data map[string]string) error {
	var told kubeauth.FrontProxy
	var authorities []byte
	if s.files.own != nil {
		told, authorities = ourHeaders, append(authorities, s.files.own.PEM()...)
		told.AllowedNames = []string{s.cfg.Proxy.Name}
	}
	if p := s.cfg.FrontProxy; p != nil {
		told.AllowedNames = append(told.AllowedNames, p.AllowedNames...)
		if len(p.AllowedNames) == 0 {
			told.AllowedNames = nil // every name counts
		}
		told.UserHeaders, told.UIDHeaders = both(told.UserHeaders, p.UserHeaders), both(told.UIDHeaders, p.UIDHeaders)
		told.GroupHeaders, told.ExtraPrefixes = both(told.GroupHeaders, p.GroupHeaders), both(told.ExtraPrefixes, p.ExtraPrefixes)
		authorities = append(authorities, s.files.proxies.PEM()...)
	}
	if authorities == nil {
		return nil
	}
	data["requestheader-client-ca-file"] = string(authorities)
	for key, list := range map[string][]string{
		"username-headers": told.UserHeaders, "uid-headers": told.UIDHeaders, "group-headers": told.GroupHeaders,
		"extra-headers-prefix": told.ExtraPrefixes, "allowed-names": told.AllowedNames,
	} {
		if list == nil {
			list = []string{}
		}
		text, err := json.Marshal(list)
		if err != nil {
			return err
		}
		data["requestheader-"+key] = string(text)
	}
	return nil
}

// both are a and what b has besides, as headers are compared.
func both(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.ContainsFunc(out, func(have string) bool { return strings.EqualFold(have, s) }) {
			out = append(out, s)
		}
	}
	return out
}
