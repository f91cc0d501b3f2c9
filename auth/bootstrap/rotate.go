// This file renews certificates.

package bootstrap

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// RotationConfig configures a Rotation.
type RotationConfig struct {
	// Identity whose client certificate is renewed, and that the serving certificate
	// is for. Required.
	Identity *Identity
	// Requests is the certificates API, as the node. Required.
	Requests Requests
	// ConfigMaps reads, as the node, the ConfigMaps with the cluster's authorities. Nil means
	// that the authorities do not change.
	ConfigMaps ConfigMaps
	// TrustChanged is called when the authorities of the server have changed: new
	// connections should call ClientTLS again. May be nil.
	TrustChanged func()
	// Renewed is called when the client certificate has been replaced: connections
	// made before should be closed. May be nil.
	Renewed func()
	// NotServing means that another process serves the node's API with a certificate of its
	// own.
	NotServing bool
	// Addresses returns the addresses for the serving certificate, possibly none. With nil the
	// certificate has the node's name alone. The present certificate is used until one for
	// other addresses is approved. It must not block.
	Addresses func() []netip.Addr
	// FollowTunnel means that there is a tunnel, whose authority may change.
	FollowTunnel bool
	// Follow is how often the authorities are read, random by a quarter: 1 h.
	Follow time.Duration
	// Poll is how often the certificates are checked: 5 s.
	Poll time.Duration
	Log  *slog.Logger // nil discards
}

// A Rotation keeps both certificates of a node valid while Run runs.
type Rotation struct {
	cfg     RotationConfig
	client  *renewal
	serving *renewal
	cert    atomic.Pointer[tls.Certificate] // the serving one
	// replaced is when the client certificate was replaced last, nil if it was not.
	replaced atomic.Pointer[time.Time]
}

// ErrNoServingCertificate means that the node has no serving certificate yet.
var ErrNoServingCertificate = errors.New("the node has no serving certificate yet")

// Back-off between tries to renew.
const (
	renewFirst = 5 * time.Second
	renewLimit = 5 * time.Minute
	eagerPoll  = 250 * time.Millisecond
)

// NewRotation makes a Rotation, with the serving certificate on disk if it is still
// valid. It starts nothing.
func NewRotation(c RotationConfig) (*Rotation, error) {
	if c.Identity == nil || c.Requests == nil {
		return nil, errors.New("bootstrap: RotationConfig.Identity and Requests are required")
	}
	c.Poll, c.Follow = cmp.Or(c.Poll, 5*time.Second), cmp.Or(c.Follow, DefaultFollow)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Rotation{cfg: c}
	id := c.Identity
	r.client = &renewal{
		what: "client certificate", kind: clientCertificate, rotation: r, file: id.cfg.path(clientFile),
		cert: &id.cert,
	}
	r.serving = &renewal{
		what: "serving certificate", kind: servingCertificate, rotation: r, file: id.cfg.path(servingFile),
		cert: &r.cert, names: []string{id.NodeName()}, addresses: c.Addresses,
	}
	pair, err := readPair(r.serving.file)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		c.Log.Warn("the serving certificate kept is of no use, asking for another", "file", filepath.Base(r.serving.file), "err", err)
	case time.Now().Before(pair.Leaf.NotAfter) && pair.Leaf.VerifyHostname(id.NodeName()) == nil:
		r.cert.Store(pair)
	}
	return r, nil
}

// GetCertificate returns the serving certificate; it is for tls.Config. The error wraps
// ErrNoServingCertificate if there is none.
func (r *Rotation) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := r.cert.Load(); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("node %s: %w", r.cfg.Identity.NodeName(), ErrNoServingCertificate)
}

// ServerTLS is the configuration of the node's API: clients must have a certificate of an
// authority of the cluster's clients. The authorities may change; Identity.ClientCAs has
// the present ones.
func (r *Rotation) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: r.GetCertificate,
		ClientAuth:     tls.RequireAndVerifyClientCert,
		ClientCAs:      r.cfg.Identity.ClientCAs(),
	}
}

// Client returns the client certificate of the node.
func (r *Rotation) Client() *x509.Certificate { return r.cfg.Identity.cert.Load().Leaf }

// Serving returns the certificate of the node's API, nil while there is none.
func (r *Rotation) Serving() *x509.Certificate {
	if c := r.cert.Load(); c != nil {
		return c.Leaf
	}
	return nil
}

// ServerCA returns the authority of the server.
func (r *Rotation) ServerCA() *x509.Certificate { return first(r.cfg.Identity.trust.Load().roots) }

// ClientCA returns the authority of clients, nil until it has been read from the cluster.
func (r *Rotation) ClientCA() *x509.Certificate { return first(r.cfg.Identity.trust.Load().clients) }

// KubeletCAs are the authorities of the serving certificates of kubelets: those that the
// cluster publishes, or else its own. There are none until they have been read.
func (r *Rotation) KubeletCAs() []*x509.Certificate {
	switch t := r.cfg.Identity.trust.Load(); {
	case !t.asked:
		return nil
	case len(t.kubelets) > 0:
		return t.kubelets
	default:
		return t.roots
	}
}

func first(list []*x509.Certificate) *x509.Certificate {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// Run renews until ctx is done, and returns nil then.
func (r *Rotation) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	if r.cfg.Identity.given != nil {
		wg.Go(func() { r.followGiven(ctx) })
	} else {
		wg.Go(func() { r.client.run(ctx) })
	}
	if r.cfg.FollowTunnel {
		wg.Go(func() { r.followTunnel(ctx) })
	}
	if !r.cfg.NotServing {
		wg.Go(func() { r.serving.run(ctx) })
	}
	wg.Go(func() { r.followTrust(ctx) })
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
	names    []string // the names that the certificate must have
	// addresses are the addresses that it must have; nil means none.
	addresses func() []netip.Addr
	asked     []netip.Addr // those of the last request
	// key is that of the last request while it has no answer. The next request for the same
	// addresses has the same name, and so finds it.
	key *ecdsa.PrivateKey
	// rejected is the certificate that a server did not admit.
	rejected atomic.Pointer[tls.Certificate]
	// refused is the certificate that a server refused, whatever its key.
	refused  atomic.Pointer[tls.Certificate]
	refusals refusals

	unsaved []byte // the certificate and key while the file does not have them, PEM encoded
	told    bool   // whether it was logged that they cannot be written

	at    time.Time         // when to renew of
	of    *x509.Certificate // the certificate that is for
	by    *x509.Certificate // the authority that of has been compared with
	wait  time.Duration     // back-off
	after time.Time         // time of the next try
	last  string            // the failure last logged
}

func (n *renewal) run(ctx context.Context) {
	for {
		if n.due(time.Now()) {
			n.renew(ctx)
		}
		n.keep()
		select {
		case <-ctx.Done():
			return
		case <-time.After(n.poll()):
		}
	}
}

// poll is the wait before the next check. It is short while the node has no serving
// certificate.
func (n *renewal) poll() time.Duration {
	if n.cert.Load() == nil {
		return min(n.rotation.cfg.Poll, eagerPoll)
	}
	return n.rotation.cfg.Poll
}

// due reports whether a new certificate is needed now: there is none, it has other names
// than it should, its authority was replaced, or a random point between 30 and 50 percent
// of its life is past. So a disconnected node has half of that life to reconnect.
func (n *renewal) due(now time.Time) bool {
	if n.refusedAgain(now) || now.Before(n.after) { // in this order: an admission is noticed during a back-off
		return false
	}
	if n.stale(now) {
		return true
	}
	leaf := n.cert.Load().Leaf
	return !covers(leaf, n.names, n.wanted(leaf))
}

// wanted are the addresses for the certificate after leaf. While none are known, those of
// leaf stay.
func (n *renewal) wanted(leaf *x509.Certificate) []netip.Addr {
	if n.addresses == nil {
		return nil
	}
	if all := sortedAddresses(n.addresses()); len(all) > 0 {
		return all
	}
	return addressesOf(leaf)
}

// stale reports whether the certificate must be replaced regardless of its names: there is
// none, or it is time to renew it.
func (n *renewal) stale(now time.Time) bool {
	pair := n.cert.Load()
	if pair == nil || n.rejected.Load() == pair || n.refused.Load() == pair {
		return true
	}
	if n.of != pair.Leaf {
		life := pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore)
		n.of = pair.Leaf
		n.at = pair.Leaf.NotBefore.Add(time.Duration(float64(life) * (0.3 + 0.2*rand.Float64())))
	}
	return !now.Before(n.at) || n.superseded(pair.Leaf)
}

// superseded reports whether the cluster's authority of clients, or of kubelets' APIs, is
// another than that of leaf. It returns true once for each authority, since a certificate
// of it may not be available.
func (n *renewal) superseded(leaf *x509.Certificate) bool {
	trusted := n.rotation.cfg.Identity.trust.Load()
	signing := trusted.kubelets
	if n.kind.signer == clientCertificate.signer {
		signing = nil
		if trusted.published {
			signing = trusted.clients
		}
	}
	if len(signing) == 0 || signing[0].Equal(n.by) {
		return false
	}
	n.by = signing[0]
	if leaf.CheckSignatureFrom(n.by) == nil {
		return false
	}
	n.at = time.Time{} // until there is another certificate
	return true
}

func (n *renewal) renew(ctx context.Context) {
	log := n.rotation.cfg.Log
	refused := n.refused.Load() // nil if it is not the present one
	if refused != n.cert.Load() {
		refused = nil
	}
	err := n.replace(ctx)
	switch {
	case err == nil:
		n.after, n.last = time.Time{}, ""
		if refused == nil {
			n.wait = 0
		} else { // the next one may be refused, too
			n.backOff(0)
		}
		leaf := n.cert.Load().Leaf
		log.Info("the "+n.what+" is new", "node", n.rotation.cfg.Identity.NodeName(), "until", leaf.NotAfter)
		if !covers(leaf, n.names, n.asked) {
			log.Warn("the signer has given the "+n.what+" other names than were asked for", "names", leaf.DNSNames, "addresses", leaf.IPAddresses)
			n.after = time.Now().Add(renewLimit)
		}
		return
	case ctx.Err() != nil:
		return
	}
	n.backOff(retryAfterIn(err))
	if msg := err.Error(); msg != n.last {
		n.last = msg
		level := slog.LevelWarn
		if errors.As(err, new(*expiredError)) || errors.As(err, new(*rejectedError)) || errors.As(err, new(*refusedError)) {
			level = slog.LevelError // an administrator must act
		}
		log.Log(ctx, level, "no new "+n.what+" yet, will keep trying", "node", n.rotation.cfg.Identity.NodeName(), "err", err)
	}
}

// backOff has the next try wait longer than the last one, and for at least so long.
func (n *renewal) backOff(least time.Duration) {
	n.wait = min(max(2*n.wait, renewFirst), renewLimit)
	n.after = time.Now().Add(max(n.wait/2+rand.N(n.wait), least))
}

// replace gets a new certificate and takes it into use. The server must admit the node for that.
// If the client certificate has expired, is refused, or is not admitted any more, a token is
// needed, unless only this machine's clock is wrong, or it is admitted again.
func (n *renewal) replace(ctx context.Context) error {
	id := n.rotation.cfg.Identity
	if n.rejected.Load() == n.cert.Load() && n.rejected.Load() != nil {
		if _, err := id.cfg.token(); err != nil {
			return &rejectedError{err}
		}
		data, err := id.rejoin(ctx, nil)
		if err != nil {
			return &rejectedError{err}
		}
		return n.use(data)
	}
	have, until := id.cert.Load(), id.expires()
	expired, refused := time.Now().After(until), n.refused.Load() == have
	if n.kind.signer != clientCertificate.signer || !expired && !refused {
		return n.request(ctx)
	}
	_, none := id.cfg.token()
	err := none
	if none == nil {
		// The name is still held by the key: another one would be denied.
		var data []byte
		if data, err = id.rejoin(ctx, have); err == nil {
			if err = n.use(data); err == nil && refused {
				n.refusals.got(have, n.cert.Load())
			}
		}
	}
	if err != nil && (none != nil || !expired) { // it may have been refused for a moment
		if failed := n.request(ctx); failed != nil {
			err = fmt.Errorf("%w; %w", failed, err)
		} else {
			err = nil
		}
	}
	switch {
	case err == nil:
		return nil
	case expired:
		return &expiredError{since: until, err: err}
	default:
		return &refusedError{err}
	}
}

// ask are the addresses of the next request: none if the certificate must be replaced
// anyway. An administrator has to approve one with addresses, and until then the node's
// API could not be reached.
func (n *renewal) ask(now time.Time) []netip.Addr {
	if n.stale(now) {
		return nil
	}
	return n.wanted(n.cert.Load().Leaf)
}

// request requests a certificate for a new key as the node, or continues to wait for an
// earlier request.
func (n *renewal) request(ctx context.Context) error {
	c := &n.rotation.cfg
	addresses := n.ask(time.Now())
	if n.key == nil || !slices.Equal(addresses, n.asked) {
		key, err := newKey()
		if err != nil {
			return err
		}
		n.key, n.asked = key, addresses
	}
	r := &request{
		api: c.Requests, log: c.Log, kind: n.kind, node: c.Identity.NodeName(), names: n.names, addresses: n.asked,
		key: n.key, lifetime: c.Identity.cfg.Lifetime, timeout: c.Identity.cfg.ApprovalTimeout,
	}
	data, err := r.certificate(ctx)
	if denied := (*DeniedError)(nil); data != nil || errors.As(err, &denied) || errors.Is(err, errNotOurs) {
		n.key = nil // answered: the next request needs another name
	}
	if err != nil {
		return err
	}
	if data, err = encodePair(data, r.key); err != nil {
		return err
	}
	return n.use(data)
}

// use takes a certificate with its key, PEM encoded, into use, and stores it. That it cannot
// be written is no error: keep tries again.
func (n *renewal) use(data []byte) error {
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return fmt.Errorf("use the %s: %w", n.what, err)
	}
	n.cert.Store(&pair)
	n.unsaved = data
	n.keep()
	n.renewed()
	return nil
}

// keep writes the certificate if that is still to do. The first failure is logged.
func (n *renewal) keep() {
	if n.unsaved == nil {
		return
	}
	err := writeFile(n.file, n.unsaved, 0o600)
	if err == nil && n.kind.signer == clientCertificate.signer {
		err = remove(n.rotation.cfg.Identity.cfg.path(pendingFile))
	}
	if err == nil {
		n.unsaved, n.told = nil, false
		return
	}
	if !n.told {
		n.told = true
		n.rotation.cfg.Log.Warn("the new "+n.what+" is in use, and cannot be kept for the next start; will keep trying", "node", n.rotation.cfg.Identity.NodeName(), "err", err)
	}
}

// renewed calls RotationConfig.Renewed if the client certificate has been replaced.
func (n *renewal) renewed() {
	if n.kind.signer != clientCertificate.signer {
		return
	}
	now := time.Now()
	n.rotation.replaced.Store(&now)
	if f := n.rotation.cfg.Renewed; f != nil {
		f()
	}
}
