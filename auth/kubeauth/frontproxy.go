package kubeauth

// Front proxies: servers of the cluster's own that say in headers for whom they ask.

import (
	"crypto/x509"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"

	"github.com/hawser-project/hawser/auth"
)

// A FrontProxy says which proxies are believed, and where they say whom they ask for.
type FrontProxy struct {
	// CAFile holds the authorities of the proxies' certificates, PEM, required. They must
	// sign for nobody else. It is read again when it changes.
	CAFile string
	// AllowedNames are the common names that count; none means every certificate.
	AllowedNames []string
	// In the first header of each kind that is there; UserHeaders is required.
	UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// newFrontProxy believes requests whose client certificate is a proxy's. Such headers of
// anybody else mean nothing.
func newFrontProxy(f *FrontProxy, files *auth.Files) (authenticator.Request, error) {
	ca, err := files.Authorities(f.CAFile)
	if err != nil {
		return nil, fmt.Errorf("front proxies: %w", err)
	}
	verify := func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}
	list := func(l []string) headerrequest.StringSliceProvider { return headerrequest.StaticStringSlice(l) }
	return headerrequest.NewDynamicVerifyOptionsSecure(verify, list(f.AllowedNames),
		list(f.UserHeaders), list(f.UIDHeaders), list(f.GroupHeaders), list(f.ExtraPrefixes)), nil
}
