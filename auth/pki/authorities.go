// The authorities, and the migration from one that signed everything to three.
//
// A directory in which CA signed everything is migrated in these steps. A step is skipped
// if its result exists, so that a start after a crash continues the migration.
//
//  1. The old key and certificate are copied: legacy-ca.key, then legacy-ca.crt.
//  2. ClientCA and KubeletCA are made.
//  3. CA is made anew: its key, then its certificate, in the place of the old ones.
//  4. The old authority signs the new CA and the new ClientCA. Both signatures are
//     kept in legacy-ca.crt, behind the old certificate.
//  5. The certificates of the server are made anew.
//  6. The old key, which is not needed any more, is removed: legacy-ca.key.
//
// Running agents, kubeconfigs and join commands have the old authority only. By the
// signatures of step 4 they can verify the new ones. The files of ClientCA and KubeletCA
// have the old authority second: certificates that it signed before are valid until they
// expire, see auth.Authorities. Removing legacy-ca.crt ends that.

package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hawser-project/hawser/auth"
)

// legacyCA is the authority that signed everything.
const (
	legacyCA      = "legacy-ca"
	legacySubject = "hawser-ca" // its common name
)

// An authority signs certificates.
type authority struct {
	name  string // of its files
	usage x509.ExtKeyUsage
	cert  *x509.Certificate
	key   crypto.Signer
	// before are predecessors that are still trusted: those that follow cert in its file.
	before []*x509.Certificate
}

// legacy is the authority from before the migration. A nil one has no certificates.
type legacy struct {
	cert    *x509.Certificate
	key     crypto.Signer       // nil once it has been removed
	crosses []*x509.Certificate // its signatures of the new authorities
}

func (p *PKI) ensureAuthorities() error {
	p.server = authority{name: CA, usage: x509.ExtKeyUsageServerAuth}
	p.client = authority{name: ClientCA, usage: x509.ExtKeyUsageClientAuth}
	p.kubelet = authority{name: KubeletCA, usage: x509.ExtKeyUsageServerAuth}
	p.frontProxy = authority{name: FrontProxyCA, usage: x509.ExtKeyUsageClientAuth}
	if err := p.retire(); err != nil {
		return err
	}
	if err := p.loadLegacy(); err != nil {
		return err
	}
	for _, a := range p.all() {
		if err := p.ensureAuthority(a); err != nil {
			return err
		}
	}
	if err := p.crossSign(); err != nil {
		return err
	}
	for _, a := range p.ofNodes() {
		if err := p.ensureBundle(a); err != nil {
			return err
		}
	}
	return nil
}

// all are the authorities. CA is last: a directory with CA and without the others is
// migrated.
func (p *PKI) all() []*authority {
	if p.cfg.HubOnly {
		return append(p.ofNodes(), &p.server)
	}
	return append(p.ofNodes(), &p.frontProxy, &p.server)
}

// ofNodes are the authorities of certificates of others than the server.
func (p *PKI) ofNodes() []*authority {
	if p.cfg.HubOnly {
		return []*authority{&p.client}
	}
	return []*authority{&p.client, &p.kubelet}
}

// retire copies an authority that signed everything.
func (p *PKI) retire() error {
	migrated, err := exists(p.Path(legacyCA, false), p.Path(ClientCA, false), p.Path(ClientCA, true))
	if err != nil || migrated {
		return err
	}
	if found, err := exists(p.Path(CA, false)); err != nil || !found {
		return err
	}
	old := authority{name: CA}
	if err := p.load(&old); err != nil {
		return err
	}
	for _, name := range []string{APIServer, KubeletClient, ConnectClient, Admin, ControllerManager, Scheduler} {
		certs, err := readCerts(p.Path(name, false))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("certificate of before: %w", err)
		}
		if name == Admin && certs[0].CheckSignatureFrom(old.cert) != nil {
			return fmt.Errorf("%s and its key are missing: restore the pair from a backup", p.Path(ClientCA, false))
		}
		// The time of the migration separates certificates of the old authority from ones
		// that are signed with its stolen key.
		if now := p.cfg.Now(); now.Before(certs[0].NotBefore) {
			return fmt.Errorf("the clock says %s, and %s was made at %s: set the clock, the authorities are about to be made anew",
				now.UTC().Format(time.RFC3339), p.Path(name, false), certs[0].NotBefore.UTC().Format(time.RFC3339))
		}
	}
	if err := writeKey(p.Path(legacyCA, true), old.key); err != nil {
		return err
	}
	return writeFile(p.Path(legacyCA, false), encodeCerts(old.cert), 0o644)
}

// loadLegacy reads the authority from before the migration, if there was one.
func (p *PKI) loadLegacy() error {
	certs, err := readCerts(p.Path(legacyCA, false))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the authority of before: %w", err)
	}
	p.legacy = &legacy{cert: certs[0], crosses: certs[1:]}
	key, err := readKey(p.Path(legacyCA, true))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("key of the authority of before: %w", err)
	}
	p.legacy.key = key
	return nil
}

// ensureAuthority reads a, or makes it if it is missing.
func (p *PKI) ensureAuthority(a *authority) error {
	found, err := exists(p.Path(a.name, false), p.Path(a.name, true))
	if err != nil {
		return fmt.Errorf("cluster authority: %w", err)
	}
	if !found {
		return p.make(a, nil)
	}
	if certs, err := readCerts(p.Path(a.name, false)); err == nil && p.legacy != nil && certs[0].Equal(p.legacy.cert) {
		return p.make(a, nil) // it was copied
	}
	return p.load(a)
}

// load reads a. For a key without certificate, which a crash may leave, it makes a new
// certificate: clients identify the authority by its key.
func (p *PKI) load(a *authority) error {
	certFile, keyFile := p.Path(a.name, false), p.Path(a.name, true)
	key, err := readKey(keyFile)
	if err != nil {
		return fmt.Errorf("key of the cluster authority: %w: restore the pair from a backup", err)
	}
	certs, err := readCerts(certFile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return p.make(a, key)
	case err != nil:
		return fmt.Errorf("cluster authority: %w", err)
	case !matches(certs[0], key):
		return fmt.Errorf("%s does not belong to %s: restore the pair from a backup", keyFile, certFile)
	case p.cfg.Now().After(certs[0].NotAfter):
		return fmt.Errorf("the cluster's authority %s expired on %s: move that file away, and another is made for its key", certFile, certs[0].NotAfter.Format(time.DateOnly))
	}
	a.cert, a.key, a.before = certs[0], key, nil
	for _, c := range certs[1:] {
		if c.Subject.CommonName != legacySubject { // it stays as long as legacy-ca.crt does
			a.before = append(a.before, c)
		}
	}
	return nil
}

// make makes the certificate of a, and its key if there is none.
func (p *PKI) make(a *authority, key crypto.Signer) (err error) {
	if key == nil {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return err
		}
		if err = writeKey(p.Path(a.name, true), key); err != nil {
			return err
		}
	}
	now := p.cfg.Now()
	tmpl := a.template(now.Add(-auth.Backdate), now.Add(caLife))
	if a.cert, err = sign(tmpl, tmpl, key.Public(), key); err != nil {
		return err
	}
	a.key = key
	return writeFile(p.Path(a.name, false), encodeCerts(a.cert), 0o644)
}

func (a *authority) template(from, until time.Time) *x509.Certificate {
	subject := map[string]string{CA: "hawser-server-ca", ClientCA: "hawser-client-ca", KubeletCA: "hawser-kubelet-ca", FrontProxyCA: "hawser-front-proxy-ca"}
	return &x509.Certificate{
		Subject:               pkix.Name{CommonName: subject[a.name]},
		NotBefore:             from,
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{a.usage},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // it signs leaves only
	}
}

// crossSign has the old authority sign the new ones, for clients that have only the old
// one.
func (p *PKI) crossSign() error {
	if p.legacy == nil || p.legacy.key == nil {
		return nil
	}
	var crosses []*x509.Certificate
	for _, a := range []*authority{&p.server, &p.client} {
		known := p.legacy.cross(a)
		if len(known) == 0 {
			tmpl := a.template(a.cert.NotBefore, p.legacy.cert.NotAfter)
			tmpl.Subject = a.cert.Subject
			cert, err := sign(tmpl, p.legacy.cert, a.key.Public(), p.legacy.key)
			if err != nil {
				return err
			}
			known = []*x509.Certificate{cert}
		}
		crosses = append(crosses, known...)
	}
	if sameCerts(crosses, p.legacy.crosses) {
		return nil
	}
	p.legacy.crosses = crosses
	return writeFile(p.Path(legacyCA, false), encodeCerts(append([]*x509.Certificate{p.legacy.cert}, crosses...)...), 0o644)
}

// cross returns the old authority's signatures of a.
func (l *legacy) cross(a *authority) []*x509.Certificate {
	if l == nil {
		return nil
	}
	for _, c := range l.crosses {
		if matches(c, a.key) && c.Subject.String() == a.cert.Subject.String() {
			return []*x509.Certificate{c}
		}
	}
	return nil
}

// servingChain verifies the server's certificate by every authority whose hash joining
// machines may have.
func (p *PKI) servingChain() []*x509.Certificate {
	if cross := p.legacy.cross(&p.server); len(cross) > 0 {
		return append(cross, p.legacy.cert)
	}
	return []*x509.Certificate{p.server.cert}
}

// ensureBundle writes the file of a with its predecessors: those that an administrator has
// added, and the old authority.
func (p *PKI) ensureBundle(a *authority) error {
	want := append([]*x509.Certificate{a.cert}, a.before...)
	if p.legacy != nil {
		want = append(want, p.legacy.cert)
	}
	file := p.Path(a.name, false)
	if have, err := readCerts(file); err != nil || sameCerts(have, want) {
		return err
	}
	return writeFile(file, encodeCerts(want...), 0o644)
}

// dropLegacyKey removes the key of the old authority, once all of its signatures exist.
func (p *PKI) dropLegacyKey() error {
	if p.legacy == nil || p.legacy.key == nil {
		return nil
	}
	p.legacy.key = nil
	if err := os.Remove(p.Path(legacyCA, true)); err != nil {
		return fmt.Errorf("remove the key of the authority of before: %w", err)
	}
	return nil
}
