package kubeauth

// Front proxies: servers of the cluster that name the user of a request in headers.

import (
	"crypto/x509"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"

	"github.com/hawser-project/hawser/auth"
)

// A FrontProxy configures which proxies are accepted, and their headers.
type FrontProxy struct {
	// CAFile has the authorities of the proxies' certificates, PEM, required. They must sign
	// for no other clients. It is read again when it changes.
	CAFile string
	// AllowedNames are the accepted common names; none means every certificate.
	AllowedNames []string
	// The first header of each kind that is present is used; UserHeaders is required.
	UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// newFrontProxy authenticates requests whose client certificate is a proxy's. The headers
// of other clients are ignored.
func newFrontProxy(f *FrontProxy, files *auth.Files) (authenticator.Request, error) {
	ca, err := files.Bundle(f.CAFile)
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
