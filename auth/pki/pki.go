// Package pki makes and keeps the cluster's own keys and certificates: one
// certificate authority, the serving certificate of the API port and the client
// certificates of the control plane.
//
// Everything is a file of one directory, made on the first start and found on
// the next one. Certificates that are about to expire, or whose names no longer
// fit, are made anew; keys of the authority never are. Private keys have mode
// 0600, the directory 0700, and a file appears under its name only when it is
// complete.
//
// The package does not sign certificates of nodes: package csr does, with the
// authority that is kept here.
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
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hawser-project/hawser/auth/privatedir"
)

// Names of the files, without directory. A certificate NAME.crt has its key in
// NAME.key.
const (
	CA                = "ca"
	APIServer         = "apiserver"
	KubeletClient     = "kubelet-client"
	ConnectClient     = "connect-client"
	Admin             = "admin"
	ControllerManager = "controller-manager"
	Scheduler         = "scheduler"
)

// Identities of the control plane, as certificate common names, and the groups
// that go with them.
const (
	AdminUser             = "kubernetes-admin"
	AdminGroup            = "system:masters"
	ControllerManagerUser = "system:kube-controller-manager"
	SchedulerUser         = "system:kube-scheduler"
	// KubeletClientUser is who the API server is when it talks to kubelet APIs.
	KubeletClientUser  = "kube-apiserver-kubelet-client"
	KubeletClientGroup = "hawser:kubelet-admin"
	// ConnectClientUser may use the CONNECT front end: the certificate to give to
	// another cluster's kube-apiserver.
	ConnectClientUser = "hawser:connect-client"
)

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced.
	renewBefore = 60 * 24 * time.Hour
	// backdate makes a fresh certificate valid on machines whose clock is late.
	backdate = 5 * time.Minute
)

// Config says what to keep where.
type Config struct {
	Dir string // required; made if missing, mode 0700
	// Names and IPs are the subject alternative names of the serving certificate.
	Names []string
	IPs   []net.IP
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// A PKI is a directory in which Ensure has found or made everything.
type PKI struct {
	cfg    Config
	caCert *x509.Certificate
	caKey  crypto.Signer
}

// Ensure makes what is missing in c.Dir, replaces what expires within 60 days
// or has other names than c asks for, and leaves the rest alone. Its errors name
// the file.
func Ensure(c Config) (*PKI, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if err := privatedir.Make(c.Dir); err != nil {
		return nil, fmt.Errorf("key directory: %w", err)
	}
	p := &PKI{cfg: c}
	if err := p.ensureCA(); err != nil {
		return nil, err
	}
	if err := p.Renew(); err != nil {
		return nil, err
	}
	return p, nil
}

// Path returns the file that holds the certificate (or, with key, the private
// key) of that name.
func (p *PKI) Path(name string, key bool) string {
	ext := ".crt"
	if key {
		ext = ".key"
	}
	return filepath.Join(p.cfg.Dir, name+ext)
}

// CACert returns the authority's certificate.
func (p *PKI) CACert() *x509.Certificate { return p.caCert }

// Renew replaces the leaf certificates that are due. A server that runs for
// longer than their life calls it now and then; who serves them reads the files
// again.
func (p *PKI) Renew() error {
	for _, l := range p.leaves() {
		if err := p.ensureLeaf(l); err != nil {
			return fmt.Errorf("certificate %s: %w", p.Path(l.name, false), err)
		}
	}
	return nil
}

type leaf struct {
	name    string
	subject pkix.Name
	usage   []x509.ExtKeyUsage
	names   []string
	ips     []net.IP
	// chain appends the authority's certificate, so that who holds only its hash
	// can find it in the handshake.
	chain bool
}

func (p *PKI) leaves() []leaf {
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return []leaf{
		{
			name: APIServer, subject: pkix.Name{CommonName: "kube-apiserver"}, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			names: p.cfg.Names, ips: p.cfg.IPs, chain: true,
		},
		{name: KubeletClient, subject: pkix.Name{CommonName: KubeletClientUser, Organization: []string{KubeletClientGroup}}, usage: client},
		{name: ConnectClient, subject: pkix.Name{CommonName: ConnectClientUser}, usage: client},
		{name: Admin, subject: pkix.Name{CommonName: AdminUser, Organization: []string{AdminGroup}}, usage: client},
		{name: ControllerManager, subject: pkix.Name{CommonName: ControllerManagerUser}, usage: client},
		{name: Scheduler, subject: pkix.Name{CommonName: SchedulerUser}, usage: client},
	}
}

func (p *PKI) ensureCA() error {
	certFile, keyFile := p.Path(CA, false), p.Path(CA, true)
	cert, certErr := readCert(certFile)
	key, keyErr := readKey(keyFile)
	switch {
	case certErr == nil && keyErr == nil:
		if !matches(cert, key) {
			return fmt.Errorf("%s does not belong to %s: restore the pair from a backup", keyFile, certFile)
		}
		if now := p.cfg.Now(); now.After(cert.NotAfter) {
			return fmt.Errorf("the cluster's authority %s expired on %s", certFile, cert.NotAfter.Format(time.DateOnly))
		}
		p.caCert, p.caKey = cert, key
		return nil
	case errors.Is(certErr, os.ErrNotExist) && errors.Is(keyErr, os.ErrNotExist):
		return p.makeCA()
	case certErr != nil:
		return fmt.Errorf("cluster authority: %w", certErr)
	default:
		return fmt.Errorf("key of the cluster authority: %w", keyErr)
	}
}

func (p *PKI) makeCA() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := p.cfg.Now()
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "hawser-ca"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := sign(tmpl, tmpl, key.Public(), key)
	if err != nil {
		return err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	// The key first: a crash in between leaves a key without certificate, which
	// the next start reports instead of quietly founding another cluster.
	if err := writeKey(p.Path(CA, true), key); err != nil {
		return err
	}
	if err := writeFile(p.Path(CA, false), encodeCerts(cert), 0o644); err != nil {
		return err
	}
	p.caCert, p.caKey = cert, key
	return nil
}

func (p *PKI) ensureLeaf(l leaf) error {
	cert, certErr := readCert(p.Path(l.name, false))
	key, keyErr := readKey(p.Path(l.name, true))
	if certErr == nil && keyErr == nil && matches(cert, key) && p.good(cert, l) {
		return nil
	}
	fresh, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := p.cfg.Now()
	end := now.Add(leafLife)
	if end.After(p.caCert.NotAfter) {
		end = p.caCert.NotAfter
	}
	tmpl := &x509.Certificate{
		Subject: l.subject, NotBefore: now.Add(-backdate), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: l.usage,
		BasicConstraintsValid: true, DNSNames: l.names, IPAddresses: l.ips,
	}
	der, err := sign(tmpl, p.caCert, fresh.Public(), p.caKey)
	if err != nil {
		return err
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	chain := []*x509.Certificate{made}
	if l.chain {
		chain = append(chain, p.caCert)
	}
	if err := writeKey(p.Path(l.name, true), fresh); err != nil {
		return err
	}
	return writeFile(p.Path(l.name, false), encodeCerts(chain...), 0o644)
}

// good tells whether cert may stay in place for l.
func (p *PKI) good(cert *x509.Certificate, l leaf) bool {
	now := p.cfg.Now()
	if now.Before(cert.NotBefore) || now.Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	if cert.CheckSignatureFrom(p.caCert) != nil || cert.Subject.CommonName != l.subject.CommonName {
		return false
	}
	for _, n := range l.names {
		if !slices.Contains(cert.DNSNames, n) {
			return false
		}
	}
	for _, ip := range l.ips {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

func sign(tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	tmpl.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return der, nil
}

func matches(cert *x509.Certificate, key crypto.Signer) bool {
	pub, ok := cert.PublicKey.(*ecdsa.PublicKey)
	return ok && pub.Equal(key.Public())
}
