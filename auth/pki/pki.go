// Package pki makes and keeps the cluster's own keys and certificates: four
// certificate authorities, the serving certificate of the API port, the client
// certificates of the control plane and the keys of service accounts' tokens.
//
// Each authority signs for one purpose: CA the serving certificate of the API port,
// ClientCA certificates of clients, including nodes, KubeletCA the serving certificates of
// kubelets, and FrontProxyCA the API server's client certificate for extension servers. So
// a node cannot get a certificate that is accepted as the API server's. A directory in
// which one authority signs everything, as Hawser made them once, is migrated; see
// authorities.go.
//
// The files of one directory are made on the first start and read on the next one.
// Certificates that expire soon, or whose names have changed, are made again; keys of the
// authorities never are. Private keys have mode 0600, the directory 0700, and files are
// replaced atomically.
//
// The package does not sign certificates of nodes: package csr does, with the authorities
// of this package.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/auth/privatedir"
)

// Names of the files, without directory. A certificate NAME.crt has its key in
// NAME.key.
const (
	CA                = "ca"
	ClientCA          = "client-ca"
	KubeletCA         = "kubelet-ca"
	FrontProxyCA      = "front-proxy-ca"
	APIServer         = "apiserver"
	KubeletClient     = "kubelet-client"
	ConnectClient     = "connect-client"
	Admin             = "admin"
	ControllerManager = "controller-manager"
	Scheduler         = "scheduler"
	FrontProxyClient  = "front-proxy-client"
	// Hub is the serving certificate of a hub that has no API server.
	Hub = "hub"
)

// Identities of the control plane, as certificate common names, and their groups.
const (
	AdminUser             = "kubernetes-admin"
	AdminGroup            = "system:masters"
	ControllerManagerUser = "system:kube-controller-manager"
	SchedulerUser         = "system:kube-scheduler"
	// KubeletClientUser is the API server as a client of kubelet APIs.
	KubeletClientUser  = "kube-apiserver-kubelet-client"
	KubeletClientGroup = "hawser:kubelet-admin"
	// ConnectClientUser may use the CONNECT front end. Its certificate is for another
	// cluster's kube-apiserver.
	ConnectClientUser = "hawser:connect-client"
	// FrontProxyClientUser is the API server as a front proxy of extension servers.
	FrontProxyClientUser = "front-proxy-client"
)

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced: before
	// auth.ExpiryWatch warns of it.
	renewBefore = leafLife * 2 / 5
	// settle is how long nodes may take to read a new authority. Until then certificates
	// of its predecessor stay in use, as long as that is trusted.
	settle = 4 * time.Hour
)

// Config configures Ensure.
type Config struct {
	Dir string // required; made if missing, mode 0700
	// Names and IPs are the subject alternative names of the serving certificate.
	Names []string
	IPs   []net.IP
	// HubOnly makes only what a hub with another API server needs: CA with the serving
	// certificate Hub, and ClientCA with ConnectClient.
	HubOnly bool
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	Log *slog.Logger // nil means discard
}

// A PKI is a directory with all keys and certificates.
type PKI struct {
	cfg Config

	mu                      sync.Mutex // guards the following once Ensure has returned
	server, client, kubelet authority
	frontProxy              authority
	legacy                  *legacy // nil unless another authority signed everything before
	accounts                AccountKeys
}

// Ensure makes missing files in c.Dir, and replaces certificates that have less than 40 %
// of their life left or other names than those of c. Its errors name the file. If a
// certificate that lacks nothing but time cannot be replaced, that is no error, but logged.
func Ensure(c Config) (*PKI, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := privatedir.Make(c.Dir); err != nil {
		return nil, fmt.Errorf("key directory: %w", err)
	}
	p := &PKI{cfg: c}
	if err := p.ensureAuthorities(); err != nil {
		return nil, err
	}
	if err := p.ensureLeaves(); err != nil {
		return nil, err
	}
	if !c.HubOnly {
		if err := p.ensureAccountKeys(); err != nil {
			return nil, err
		}
	}
	return p, p.dropLegacyKey()
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

// CACert returns the certificate of the authority CA.
func (p *PKI) CACert() *x509.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server.cert
}

// Renew replaces the leaf certificates that are due, with the present authorities in the
// files: an administrator may have replaced one. A running server calls it regularly, and
// when an authority has changed.
func (p *PKI) Renew() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.all() {
		if err := p.load(a); err != nil {
			return err
		}
	}
	return p.ensureLeaves()
}

func (p *PKI) ensureLeaves() error {
	for _, l := range p.leaves() {
		if err := p.ensureLeaf(l); err != nil {
			return fmt.Errorf("certificate %s: %w", p.Path(l.name, false), err)
		}
	}
	return nil
}

type leaf struct {
	name    string
	issuer  *authority
	subject pkix.Name
	usage   []x509.ExtKeyUsage
	names   []string
	ips     []net.IP
	// chain is sent after the certificate: for clients that have only the hash of an
	// authority, or only the old one.
	chain []*x509.Certificate
	// toNodes is whether nodes or extension servers verify the certificate.
	toNodes bool
}

func (p *PKI) leaves() []leaf {
	server := leaf{
		name: APIServer, issuer: &p.server, subject: pkix.Name{CommonName: "kube-apiserver"}, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		names: p.cfg.Names, ips: p.cfg.IPs, chain: p.servingChain(), toNodes: true,
	}
	clients := map[string]pkix.Name{
		KubeletClient:     {CommonName: KubeletClientUser, Organization: []string{KubeletClientGroup}},
		ConnectClient:     {CommonName: ConnectClientUser},
		Admin:             {CommonName: AdminUser, Organization: []string{AdminGroup}},
		ControllerManager: {CommonName: ControllerManagerUser},
		Scheduler:         {CommonName: SchedulerUser},
	}
	leaves := []leaf{{
		name: FrontProxyClient, issuer: &p.frontProxy, subject: pkix.Name{CommonName: FrontProxyClientUser},
		usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, toNodes: true,
	}}
	if p.cfg.HubOnly {
		leaves = nil
		server.name, server.subject.CommonName = Hub, "hawser-hub"
		clients = map[string]pkix.Name{ConnectClient: clients[ConnectClient]}
	}
	leaves = append(leaves, server)
	for name, subject := range clients {
		l := leaf{name: name, issuer: &p.client, subject: subject, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		if name == KubeletClient {
			l.chain, l.toNodes = p.legacy.cross(&p.client), true
		}
		leaves = append(leaves, l)
	}
	return leaves
}

// ensureLeaf makes l if there is none that may be kept. One that is only due stays in use if
// it cannot be replaced, as on a full disk.
func (p *PKI) ensureLeaf(l leaf) error {
	cert := p.kept(l)
	if cert != nil && !p.cfg.Now().Add(renewBefore).After(cert.NotAfter) {
		return nil
	}
	err := p.makeLeaf(l)
	if err != nil && cert != nil {
		p.cfg.Log.Warn("a certificate is due and cannot be replaced; it stays in use, and that is tried again", "file", p.Path(l.name, false), "ends", cert.NotAfter, "err", err)
		return nil
	}
	return err
}

// kept returns the present certificate of l, which may be due; nil if it may not be kept.
func (p *PKI) kept(l leaf) *x509.Certificate {
	certs, certErr := readCerts(p.Path(l.name, false))
	key, keyErr := readKey(p.Path(l.name, true))
	if certErr != nil || keyErr != nil || !matches(certs[0], key) || !p.good(certs[0], l) {
		return nil
	}
	if sameCerts(certs[1:], l.chain) && certs[0].CheckSignatureFrom(l.issuer.cert) == nil || p.settling(certs[0], l) {
		return certs[0]
	}
	return nil
}

// makeLeaf makes l. The key is not replaced unless there is space for the certificate.
func (p *PKI) makeLeaf(l leaf) error {
	fresh, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now, ca := p.cfg.Now(), l.issuer
	end := now.Add(leafLife)
	if end.After(ca.cert.NotAfter) {
		end = ca.cert.NotAfter
	}
	tmpl := &x509.Certificate{
		Subject: l.subject, NotBefore: now.Add(-auth.Backdate), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: l.usage,
		BasicConstraintsValid: true, DNSNames: l.names, IPAddresses: l.ips,
	}
	made, err := sign(tmpl, ca.cert, fresh.Public(), ca.key)
	if err != nil {
		return err
	}
	data := encodeCerts(append([]*x509.Certificate{made}, l.chain...)...)
	return writeFileAnd(p.Path(l.name, false), data, 0o644, func() error { return writeKey(p.Path(l.name, true), fresh) })
}

// settling reports whether cert is of a predecessor of l's authority that is still
// trusted, while its verifiers may not have the new one.
func (p *PKI) settling(cert *x509.Certificate, l leaf) bool {
	if !l.toNodes || !p.cfg.Now().Before(l.issuer.cert.NotBefore.Add(auth.Backdate+settle)) {
		return false
	}
	return slices.ContainsFunc(l.issuer.before, func(a *x509.Certificate) bool { return cert.CheckSignatureFrom(a) == nil })
}

// good reports whether cert may be kept for l, regardless of its signer.
func (p *PKI) good(cert *x509.Certificate, l leaf) bool {
	now := p.cfg.Now()
	if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return false
	}
	if cert.Subject.CommonName != l.subject.CommonName {
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

func sign(tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	tmpl.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func matches(cert *x509.Certificate, key crypto.Signer) bool {
	return sameKey(cert.PublicKey, key.Public())
}
