// Certificates and authorities in followed files.

package auth

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A KeyPair is a certificate and its key in followed PEM files. A replacement is not used
// until both files have been written.
type KeyPair struct{ *File[pair] }

// A pair is a certificate and its key, and the contents of their files.
type pair struct {
	cert    *tls.Certificate
	certPEM []byte
	keyPEM  []byte
}

// KeyPair follows a pair; both names may be the same file.
func (f *Files) KeyPair(certFile, keyFile string) (*KeyPair, error) {
	names := [2]string{certFile, keyFile}
	f.mu.Lock()
	k := f.pairs[names]
	f.mu.Unlock()
	if k != nil {
		return k, nil
	}
	file, err := Follow(f, "certificate and key", parsePair, certFile, keyFile)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pairs == nil {
		f.pairs = make(map[[2]string]*KeyPair)
	}
	f.pairs[names] = &KeyPair{file}
	return f.pairs[names], nil
}

// KeyPairFrom follows a pair in files of another format. extract returns the PEM of the
// certificate and of the key, from the contents of the files.
func (f *Files) KeyPairFrom(extract func(contents [][]byte) (cert, key []byte, err error), files ...string) (*KeyPair, error) {
	file, err := Follow(f, "certificate and key", func(contents [][]byte) (pair, error) {
		cert, key, err := extract(contents)
		if err != nil {
			return pair{}, err
		}
		return parsePair([][]byte{cert, key})
	}, files...)
	return &KeyPair{file}, err
}

func parsePair(contents [][]byte) (pair, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	return pair{&cert, contents[0], contents[1]}, err
}

// Certificate is the pair on disk, which is at most a second old.
func (k *KeyPair) Certificate() *tls.Certificate { return k.Get().cert }

// PEM is the content of the files of the pair. It must not be changed.
func (k *KeyPair) PEM() (cert, key []byte) {
	p := k.Get()
	return p.certPEM, p.keyPEM
}

// GetCertificate has the signature of tls.Config's field.
func (k *KeyPair) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return k.Certificate(), nil
}

// GetClientCertificate has the signature of tls.Config's field.
func (k *KeyPair) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return k.Certificate(), nil
}

// Authorities are the certificates in a followed PEM file.
//
// The first is the authority that signs now. Others that were made before it are its
// predecessors: certificates that they signed before the first one was made are valid until they
// expire, and later ones are not valid; see Check. One that was made after the first is to
// replace it: what it signs is valid, as other servers may sign with it already. Those of
// Files.Bundle are independent instead.
type Authorities struct {
	*File[authorities]

	bundle bool // whether they are independent
}

type authorities struct {
	pool *x509.CertPool
	list []*x509.Certificate // one at least
	pem  []byte
}

// Authorities follows a file of one authority and its predecessors.
func (f *Files) Authorities(file string) (*Authorities, error) {
	return f.authorities(file, false, f.successors(file))
}

// Bundle follows a file of independent authorities, in any order, as administrators give them
// to kube-apiserver. Check accepts what any of them signs.
func (f *Files) Bundle(file string) (*Authorities, error) {
	return f.authorities(file, true, parseAuthorities)
}

func (f *Files) authorities(file string, bundle bool, parse func(contents [][]byte) (authorities, error)) (*Authorities, error) {
	key := listed{file, bundle}
	f.mu.Lock()
	a := f.lists[key]
	f.mu.Unlock()
	if a != nil {
		return a, nil
	}
	followed, err := Follow(f, "certificate authorities", parse, file)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lists == nil {
		f.lists = make(map[listed]*Authorities)
	}
	f.lists[key] = &Authorities{followed, bundle}
	return f.lists[key], nil
}

// Backdate is how long before it is signed a certificate becomes valid, which allows for machines
// whose clock is slow. So a successor that is no older when it is put first refuses nothing that
// its predecessor has signed.
const Backdate = 5 * time.Minute

// comes reports whether an authority that is listed after the first one is to replace it: it was
// made later. Its predecessors were made before.
func comes(a, first *x509.Certificate) bool { return a.NotBefore.After(first.NotBefore) }

// successors parses authorities, and warns of one that was made long before it is put
// first: see Check.
func (f *Files) successors(file string) func(contents [][]byte) (authorities, error) {
	var before []*x509.Certificate
	return func(contents [][]byte) (authorities, error) {
		next, err := parseAuthorities(contents)
		if err != nil {
			return next, err
		}
		first := next.list[0]
		known := before == nil || first.Equal(before[0])
		replaces := slices.ContainsFunc(next.list[1:], func(c *x509.Certificate) bool { return !comes(c, first) })
		if !known && replaces && time.Since(first.NotBefore) > Backdate && f.Log != nil {
			f.Log.Warn("this authority was made long before it was put first, and what its predecessors have signed since is refused: make its certificate anew",
				"file", file, "made", first.NotBefore.UTC().Format(time.RFC3339), "most", Backdate)
		}
		before = next.list
		return next, nil
	}
}

// AuthoritiesFrom follows authorities in files of another format. extract returns their PEM,
// from the contents of the files.
func (f *Files) AuthoritiesFrom(extract func(contents [][]byte) ([]byte, error), files ...string) (*Authorities, error) {
	file, err := Follow(f, "certificate authorities", func(contents [][]byte) (authorities, error) {
		text, err := extract(contents)
		if err != nil {
			return authorities{}, err
		}
		return parseAuthorities([][]byte{text})
	}, files...)
	return &Authorities{File: file}, err
}

func parseAuthorities(contents [][]byte) (authorities, error) {
	list, err := ParseCertificates(contents[0])
	if err != nil {
		return authorities{}, err
	}
	pool := x509.NewCertPool()
	for _, cert := range list {
		pool.AddCert(cert)
	}
	return authorities{pool, list, contents[0]}, nil
}

// Pool is the file's content, which is at most a second old. It must not be changed.
func (a *Authorities) Pool() *x509.CertPool { return a.Get().pool }

// Certificates are those in the file. They must not be changed.
func (a *Authorities) Certificates() []*x509.Certificate { return a.Get().list }

// PEM is the content of the file. It must not be changed.
func (a *Authorities) PEM() []byte { return a.Get().pem }

// ErrSuperseded is wrapped by errors about certificates that an authority signed after it
// was replaced by another.
var ErrSuperseded = errors.New("the authority that signed this certificate had been superseded before: get another certificate")

// Check returns an error for a verified certificate if none of its chains ends at the
// authority that signs now, or at one that is to replace it, and its validity starts after the
// former was made. Without chains there is no certificate to check. Authorities of Files.Bundle
// accept all chains.
func (a *Authorities) Check(chains [][]*x509.Certificate) error {
	if a.bundle {
		return nil
	}
	first := a.Get().list[0]
	for _, chain := range chains {
		root := chain[len(chain)-1]
		if root.Equal(first) || comes(root, first) || !chain[0].NotBefore.After(first.NotBefore) {
			return nil
		}
	}
	if len(chains) == 0 {
		return nil
	}
	return fmt.Errorf("%w (common name %q)", ErrSuperseded, chains[0][0].Subject.CommonName)
}

// CheckConnection is Check for the peer of a connection. It has the signature of
// tls.Config's VerifyConnection.
func (a *Authorities) CheckConnection(cs tls.ConnectionState) error {
	return a.Check(cs.VerifiedChains)
}

// ParseCertificates reads one certificate or more, in PEM. Blocks of other types
// are skipped.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	var list []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(list)+1, err)
		}
		list = append(list, cert)
	}
	if len(list) == 0 {
		return nil, errors.New("no certificate in it")
	}
	return list, nil
}
