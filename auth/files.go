// Certificates and authorities that follow their files.

package auth

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// recheck is how long what was loaded is believed before the files are looked
// at again.
const recheck = time.Second

// A KeyPair is a certificate and its key in PEM files that may be replaced at
// any time. If a replacement cannot be loaded, for instance because only one of
// the two files has been written yet, the previous pair stays in use.
type KeyPair struct {
	certFile, keyFile string

	mu    sync.Mutex // guards the following
	cert  *tls.Certificate
	stamp stamp
	next  time.Time
	err   error // why the latest replacement is not in use
}

// LoadKeyPair loads a pair; both names may be the same file.
func LoadKeyPair(certFile, keyFile string) (*KeyPair, error) {
	k := &KeyPair{certFile: certFile, keyFile: keyFile}
	if _, err := k.Certificate(); err != nil {
		return nil, err
	}
	return k, nil
}

// Certificate is the pair as it is on disk, or was at most a second ago.
func (k *KeyPair) Certificate() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.cert != nil && now.Before(k.next) {
		return k.cert, nil
	}
	k.next = now.Add(recheck)
	at := stampOf(k.certFile, k.keyFile)
	if k.cert != nil && at == k.stamp {
		return k.cert, nil
	}
	cert, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		k.err = fmt.Errorf("load certificate %s and key %s: %w", k.certFile, k.keyFile, err)
		if k.cert == nil {
			return nil, k.err
		}
		return k.cert, nil
	}
	k.cert, k.stamp, k.err = &cert, at, nil
	return k.cert, nil
}

// Err is why the files as they are now are not in use; nil if they are.
func (k *KeyPair) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// GetCertificate has the shape of tls.Config's field.
func (k *KeyPair) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return k.Certificate()
}

// Authorities are the certificates in a PEM file that may be replaced at any
// time, as for KeyPair.
//
// The first is the authority that signs now. Others are its predecessors: what
// they signed before the first one was made counts until it expires, and what
// they seem to have signed since does not; see Check.
type Authorities struct {
	file string

	mu    sync.Mutex // guards the following
	pool  *x509.CertPool
	first *x509.Certificate
	stamp stamp
	next  time.Time
}

// LoadAuthorities loads a file.
func LoadAuthorities(file string) (*Authorities, error) {
	a := &Authorities{file: file}
	if _, err := a.Pool(); err != nil {
		return nil, err
	}
	return a, nil
}

// Pool is the file's content, as it is or was at most a second ago. It must not
// be changed.
func (a *Authorities) Pool() (*x509.CertPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if a.pool != nil && now.Before(a.next) {
		return a.pool, nil
	}
	a.next = now.Add(recheck)
	at := stampOf(a.file)
	if a.pool != nil && at == a.stamp {
		return a.pool, nil
	}
	list, err := readAuthorities(a.file)
	if err != nil {
		if a.pool == nil {
			return nil, err
		}
		return a.pool, nil // half-written: the next look is a second away
	}
	a.pool, a.first, a.stamp = x509.NewCertPool(), list[0], at
	for _, cert := range list {
		a.pool.AddCert(cert)
	}
	return a.pool, nil
}

// ErrSuperseded is wrapped by errors about certificates that an authority signed
// after another one had taken its place.
var ErrSuperseded = errors.New("the authority that signed this certificate had been superseded before: get another certificate")

// Check refuses a certificate that has been verified, by chains, if none of them
// ends at the authority that signs now, and it begins after that one was made. No
// chains are none to refuse.
func (a *Authorities) Check(chains [][]*x509.Certificate) error {
	a.mu.Lock()
	first := a.first
	a.mu.Unlock()
	for _, chain := range chains {
		if chain[len(chain)-1].Equal(first) || !chain[0].NotBefore.After(first.NotBefore) {
			return nil
		}
	}
	if len(chains) == 0 {
		return nil
	}
	return fmt.Errorf("%w (common name %q)", ErrSuperseded, chains[0][0].Subject.CommonName)
}

// CheckConnection is Check for the peer of a connection. It has the shape of
// tls.Config's VerifyConnection.
func (a *Authorities) CheckConnection(cs tls.ConnectionState) error {
	return a.Check(cs.VerifiedChains)
}

func readAuthorities(file string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("load certificate authorities %s: %w", file, err)
	}
	list, err := ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("load certificate authorities %s: %w", file, err)
	}
	return list, nil
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
			return nil, fmt.Errorf("parse certificate: %w", err)
		}
		list = append(list, cert)
	}
	if len(list) == 0 {
		return nil, errors.New("no certificate in it")
	}
	return list, nil
}

// A stamp tells two versions of up to two files apart. A replacement of the
// same size within the file system's clock tick is seen one replacement late.
type stamp [2]struct {
	size int64
	mod  time.Time
}

func stampOf(files ...string) stamp {
	var s stamp
	for i, f := range files {
		if fi, err := os.Stat(f); err == nil {
			s[i].size, s[i].mod = fi.Size(), fi.ModTime()
		}
	}
	return s
}
