// This file renews certificates.

package bootstrap

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// RotationConfig says what to renew certificates with.
type RotationConfig struct {
	// Identity whose client certificate is renewed, and that the serving certificate
	// is for. Required.
	Identity *Identity
	// Requests is the certificates API, as the node. Required.
	Requests Requests
	// Addresses returns the addresses of the node, which the serving certificate
	// carries beside the node's name. While there are none there is no serving
	// certificate to be had. Required.
	Addresses func() []string
	// Renewed is called when the client certificate has been replaced: connections
	// made before should be closed. May be nil.
	Renewed func()
	// Poll is how often addresses are looked at: 5 s.
	Poll time.Duration
	Log  *slog.Logger // nil discards
}

// A Rotation keeps both certificates of a node valid while Run runs.
type Rotation struct {
	cfg     RotationConfig
	client  *renewal
	serving *renewal
	cert    atomic.Pointer[tls.Certificate] // the serving one
}

// ErrNoServingCertificate means that the node has no serving certificate yet.
var ErrNoServingCertificate = errors.New("the node has no serving certificate yet")

// Back-off between tries to renew.
const (
	renewFirst = 5 * time.Second
	renewLimit = 5 * time.Minute
	eagerPoll  = 250 * time.Millisecond
)

// NewRotation makes a Rotation, with the serving certificate kept from before if
// it still counts. It starts nothing.
func NewRotation(c RotationConfig) (*Rotation, error) {
	if c.Identity == nil || c.Requests == nil || c.Addresses == nil {
		return nil, errors.New("bootstrap: RotationConfig.Identity, Requests and Addresses are required")
	}
	c.Poll = cmp.Or(c.Poll, 5*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Rotation{cfg: c}
	id := c.Identity
	r.client = &renewal{
		what: "client certificate", kind: clientCertificate, rotation: r, file: id.cfg.path(clientFile),
		cert:  &id.cert,
		named: func() ([]string, []netip.Addr, bool) { return nil, nil, true },
	}
	r.serving = &renewal{
		what: "serving certificate", kind: servingCertificate, rotation: r, file: id.cfg.path(servingFile),
		cert:  &r.cert,
		named: r.servingNames,
	}
	pair, err := readPair(r.serving.file)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		c.Log.Warn("the serving certificate kept is of no use, asking for another", "file", filepath.Base(r.serving.file), "err", err)
	case verifies(pair.Leaf, id.cas):
		r.cert.Store(pair)
	}
	return r, nil
}

// verifies reports whether a certificate is of the cluster's CA and still valid.
func verifies(cert *x509.Certificate, cas *x509.CertPool) bool {
	_, err := cert.Verify(x509.VerifyOptions{Roots: cas, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err == nil
}

// GetCertificate returns the serving certificate; it is for tls.Config. It wraps
// ErrNoServingCertificate while there is none.
func (r *Rotation) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := r.cert.Load(); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("node %s: %w", r.cfg.Identity.NodeName(), ErrNoServingCertificate)
}

// ServerTLS is the configuration of the node's API: clients must have a
// certificate of the cluster's CA.
func (r *Rotation) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: r.GetCertificate,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      r.cfg.Identity.cas,
	}
}

// Reject says that a server does not admit the node with the client certificate that
// it has: another one is needed, for which it takes a join token. It does not block.
func (r *Rotation) Reject() { r.client.rejected.Store(r.cfg.Identity.cert.Load()) }

func (r *Rotation) servingNames() ([]string, []netip.Addr, bool) {
	var ips []netip.Addr
	for _, a := range r.cfg.Addresses() {
		if ip, err := netip.ParseAddr(a); err == nil {
			ips = append(ips, ip.Unmap())
		}
	}
	return []string{r.cfg.Identity.NodeName()}, ips, len(ips) > 0
}

// Run renews until ctx is done, and returns nil then.
func (r *Rotation) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { r.client.run(ctx) })
	wg.Go(func() { r.serving.run(ctx) })
	wg.Wait()
	return nil
}

// A renewal keeps one certificate valid.
type renewal struct {
	what     string
	kind     kind
	rotation *Rotation
	file     string
	cert     *atomic.Pointer[tls.Certificate]
	// named returns what the certificate must carry, and whether that is known.
	named func() (names []string, ips []netip.Addr, ok bool)
	// rejected is the certificate with which the node is not admitted any more.
	rejected atomic.Pointer[tls.Certificate]

	at    time.Time         // when to renew of
	of    *x509.Certificate // the certificate that is for
	wait  time.Duration     // back-off
	after time.Time         // no try before
	last  string            // the failure last logged
}

func (n *renewal) run(ctx context.Context) {
	for {
		if n.due(time.Now()) {
			n.renew(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(n.poll()):
		}
	}
}

// poll is how long to wait before looking again: not long while the node cannot be
// spoken to.
func (n *renewal) poll() time.Duration {
	if n.cert.Load() == nil {
		return min(n.rotation.cfg.Poll, eagerPoll)
	}
	return n.rotation.cfg.Poll
}

// due reports whether a new certificate is wanted now: there is none, it carries
// other names than it should, or a point between 70 and 90 percent of its life is
// past.
func (n *renewal) due(now time.Time) bool {
	names, ips, ok := n.named()
	if !ok || now.Before(n.after) {
		return false
	}
	pair := n.cert.Load()
	if pair == nil || n.rejected.Load() == pair || !covers(pair.Leaf, names, ips) {
		return true
	}
	if n.of != pair.Leaf {
		life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
		n.of = pair.Leaf
		n.at = pair.Leaf.NotBefore.Add(time.Duration(float64(life) * (0.7 + 0.2*rand.Float64())))
	}
	return !now.Before(n.at)
}

func (n *renewal) renew(ctx context.Context) {
	log := n.rotation.cfg.Log
	err := n.replace(ctx)
	switch {
	case err == nil:
		n.wait, n.after, n.last = 0, time.Time{}, ""
		log.Info("the "+n.what+" is new", "node", n.rotation.cfg.Identity.NodeName(), "until", n.cert.Load().Leaf.NotAfter)
		return
	case ctx.Err() != nil:
		return
	}
	n.wait = min(max(2*n.wait, renewFirst), renewLimit)
	n.after = time.Now().Add(max(n.wait/2+rand.N(n.wait), asked(err)))
	if msg := err.Error(); msg != n.last {
		n.last = msg
		level := slog.LevelWarn
		expired, rejected := (*expiredError)(nil), (*rejectedError)(nil)
		if errors.As(err, &expired) || errors.As(err, &rejected) {
			level = slog.LevelError // somebody must act
		}
		log.Log(ctx, level, "no new "+n.what+" yet, will keep trying", "node", n.rotation.cfg.Identity.NodeName(), "err", err)
	}
}

// replace gets a new certificate and puts it in the place of the old. Who renews
// has to be let in first: for a client certificate that has expired, or with which the
// node is not admitted any more, that takes a token, unless it is only this machine's
// clock that says so.
func (n *renewal) replace(ctx context.Context) error {
	id := n.rotation.cfg.Identity
	if n.rejected.Load() == n.cert.Load() && n.rejected.Load() != nil {
		if id.cfg.Token == (Token{}) {
			return &rejectedError{errNoToken}
		}
		if err := id.rejoin(ctx); err != nil {
			return &rejectedError{err}
		}
		n.renewed()
		return nil
	}
	until := id.expires()
	if n.kind.signer != clientCertificate.signer || !time.Now().After(until) {
		return n.request(ctx)
	}
	var err error
	if id.cfg.Token != (Token{}) {
		if err = id.rejoin(ctx); err == nil {
			n.renewed()
		}
	} else {
		err = n.request(ctx)
	}
	if err != nil {
		return &expiredError{since: until, err: err}
	}
	return nil
}

// request asks for a certificate for a new key, as the node.
func (n *renewal) request(ctx context.Context) error {
	c := &n.rotation.cfg
	key, err := newKey()
	if err != nil {
		return err
	}
	names, ips, _ := n.named()
	r := &request{
		api: c.Requests, log: c.Log, kind: n.kind, node: c.Identity.NodeName(), names: names, ips: ips,
		key: key, lifetime: c.Identity.cfg.Lifetime, timeout: c.Identity.cfg.ApprovalTimeout,
	}
	data, err := r.certificate(ctx)
	if err != nil {
		return err
	}
	if err = writePair(n.file, data, key); err != nil {
		return err
	}
	pair, err := readPair(n.file)
	if err != nil {
		return err
	}
	n.cert.Store(pair)
	n.renewed()
	return nil
}

// renewed tells who wants to know that the client certificate is another.
func (n *renewal) renewed() {
	if f := n.rotation.cfg.Renewed; f != nil && n.kind.signer == clientCertificate.signer {
		f()
	}
}
