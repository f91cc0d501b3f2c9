// Authorities of several files, each followed by itself.

package auth

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync"
)

// An AnyOf believes what one of several Authorities believes. A file that cannot be read does
// not keep the others from changing.
type AnyOf struct {
	of []*Authorities

	mu    sync.Mutex // guards the following
	pools []*x509.CertPool
	union *x509.CertPool // of pools
}

// AnyOf follows the file of an own authority with its predecessors, see Authorities, and
// bundles of others, see Bundle.
func (f *Files) AnyOf(own string, bundles ...string) (*AnyOf, error) {
	first, err := f.Authorities(own)
	if err != nil {
		return nil, err
	}
	a := &AnyOf{of: []*Authorities{first}}
	for _, file := range bundles {
		next, err := f.Bundle(file)
		if err != nil {
			return nil, err
		}
		a.of = append(a.of, next)
	}
	return a, nil
}

// Pool is the content of all files. It is another one once a file has changed, and must not be
// changed.
func (a *AnyOf) Pool() *x509.CertPool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := make([]*x509.CertPool, len(a.of))
	for i, cas := range a.of {
		now[i] = cas.Pool()
	}
	if a.union == nil || !slices.Equal(now, a.pools) {
		a.pools, a.union = now, x509.NewCertPool()
		for _, cas := range a.of {
			for _, cert := range cas.Certificates() {
				a.union.AddCert(cert)
			}
		}
	}
	return a.union
}

// Check returns an error for a verified certificate unless one of the Authorities that its
// chains end at accepts it; see Authorities.Check.
func (a *AnyOf) Check(chains [][]*x509.Certificate) error {
	var refused error
	for _, cas := range a.of {
		own := slices.DeleteFunc(slices.Clone(chains), func(chain []*x509.Certificate) bool {
			return !slices.ContainsFunc(cas.Certificates(), chain[len(chain)-1].Equal)
		})
		if len(own) == 0 {
			continue
		}
		err := cas.Check(own)
		if err == nil {
			return nil
		}
		refused = err
	}
	if refused == nil && len(chains) > 0 {
		return a.of[0].Check(chains) // its file has changed since
	}
	return refused
}

// Believe is Authorities.Believe with all of them.
func (a *AnyOf) Believe(c *tls.Config) { believe(c, a) }
